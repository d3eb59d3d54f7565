"""From an endpoint's answer to a reply: text, thinking, usage, log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from personae.errors import ContentFilterError, ServerError, UnsupportedError
from personae.models.complaints import as_dict, complaint
from personae.models.keys import scrub_shapes
from personae.models.providers import Dialect
from personae.records import Call, Failure, Reply, TokenLogprob, Usage

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# vLLM writes this for a probability of zero (JSON has no -Infinity).
_VLLM_ZERO = -9999.0


def read_answer(
    call: Call,
    answer: dict[str, Any],
    seconds: float,
    notes: list[str],
    usage: Usage,
    served: str | None,
) -> Reply:
    """The reply to a `generate` call.

    Returns:
        A reply, failed with cause `truncated` or `empty` where there is no answer in it.

    Raises:
        ServerError: there is no completion in it.
        ContentFilterError: the provider withheld the answer.

    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ServerError("the completion holds no choices")
    choice = choices[0]
    finish = choice.get("finish_reason")
    if choice.get("error") or finish == "error":
        detail = complaint({"error": choice.get("error") or "error"})[0]
        raise ServerError(f"the model behind the endpoint failed: {scrub_shapes(detail)[:200]}")
    if isinstance(finish, str) and finish.lower().startswith(("content_filter", "safety")):
        raise ContentFilterError("the provider withheld the answer (finish_reason content_filter)")
    message = choice["message"]
    text, reasoning = _split(message)
    refusal = message.get("refusal")
    if not text and isinstance(refusal, str) and refusal.strip():
        # A refusal is an answer: it is judged, not hidden.
        text = refusal
        notes.append("refusal field")
    logprobs = token_logprobs(choice.get("logprobs")) if call.sampling.logprobs else None
    if call.sampling.logprobs and logprobs is None and "logprobs dropped" not in notes:
        notes.append("logprobs not returned")
    text, repaired = valid_unicode(text)
    if repaired:
        notes.append("broken characters replaced")
    common = {
        "reasoning": valid_unicode(reasoning)[0] if reasoning else None,
        "usage": usage,
        "finish": finish if isinstance(finish, str) else None,
        "served_model": served,
        "seconds": seconds,
        "notes": tuple(notes),
    }
    if not text.strip():
        return Reply(failure=_no_answer(finish, reasoning), **common)
    return Reply(text=text, logprobs=logprobs, **common)


def _no_answer(finish: Any, reasoning: str | None) -> Failure:
    thinking = " after its thinking" if reasoning else ""
    if finish == "length":
        return Failure(
            cause="truncated",
            detail=f"the tokens ran out before the first word of answer{thinking}; "
            "allow more (max_tokens)",
        )
    return Failure(
        cause="empty", detail=f"the model stopped without an answer{thinking} ({finish})"
    )


def _split(message: dict[str, Any]) -> tuple[str, str | None]:
    """Answer and thinking, from fields, from content parts and from a leading think block."""
    content, thinking = message.get("content"), []
    for field in ("reasoning_content", "reasoning"):
        if isinstance(value := message.get(field), str) and value:
            thinking.append(value)
            break
    if isinstance(content, list):
        text, parts = _join_parts(content)
        thinking += parts
    else:
        text = content if isinstance(content, str) else ""
    opening = text.lstrip()
    if opening.startswith("<think>"):
        thought, closed, rest = opening.removeprefix("<think>").partition("</think>")
        thinking.append(thought)
        text = rest.lstrip() if closed else ""
    elif not thinking and "</think>" in text:
        # The template had opened the block in the prompt, and no parser took it off.
        thought, _, rest = text.partition("</think>")
        thinking.append(thought)
        text = rest.lstrip()
    reasoning = "\n".join(t.strip() for t in thinking if t.strip())
    return text, reasoning or None


def _join_parts(parts: list[Any]) -> tuple[str, list[str]]:
    """Text and thinking of a content that is a list of parts (Mistral's reasoning models)."""
    text, thinking = [], []
    for part in parts:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "thinking":
            inner = part.get("thinking")
            thinking.append(inner if isinstance(inner, str) else _join_parts(inner or [])[0])
        elif isinstance(part.get("text"), str):
            text.append(part["text"])
    return "".join(text), thinking


def valid_unicode(text: str) -> tuple[str, bool]:
    """The text as UTF-8 can carry it; JSON may smuggle in halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), True
    return text, False


def usage_of(usage: Any, dialect: Dialect) -> Usage:
    """Token counts under the names that providers give them; what is not said stays None."""
    if not isinstance(usage, dict):
        return Usage()
    tokens_in = _count(usage, "prompt_tokens", "input_tokens")
    tokens_out = _count(usage, "completion_tokens", "output_tokens")
    cached = _count(as_dict(usage.get("prompt_tokens_details")), "cached_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens", "cache_read_input_tokens")
    reasoning = _count(as_dict(usage.get("completion_tokens_details")), "reasoning_tokens")
    if dialect.thinking_beside and tokens_in is not None and tokens_out is not None:
        total = _count(usage, "total_tokens")
        if total is not None and total > tokens_in + tokens_out:
            reasoning = total - tokens_in - tokens_out
            tokens_out = total - tokens_in
    return Usage(tokens_in=tokens_in, tokens_out=tokens_out, cached=cached, reasoning=reasoning)


def _count(counts: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = counts.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def token_logprobs(logprobs: Any) -> tuple[TokenLogprob, ...] | None:
    """Log-probabilities in the chat shape (`content`) or the older one (`tokens`)."""
    if not isinstance(logprobs, dict):
        return None
    if isinstance(content := logprobs.get("content"), list):
        return tuple(
            TokenLogprob(
                token=valid_unicode(t["token"])[0],
                logprob=t["logprob"],
                top=tuple(
                    (valid_unicode(a["token"])[0], a["logprob"])
                    for a in t.get("top_logprobs") or ()
                ),
            )
            for t in content
        )
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        return None
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        TokenLogprob(token=t, logprob=v, top=tuple((a or {}).items()))
        for t, v, a in zip(tokens, values, tops, strict=True)
    )


def read_score(
    call: Call, answer: dict[str, Any], seconds: float, usage: Usage, served: str | None
) -> Reply | None:
    """The reply to a `score` call; None where the endpoint returned no prompt log-probabilities.

    Raises:
        UnsupportedError: the message's tokens cannot be told from the chat template's.

    """
    entries = answer.get("prompt_logprobs")
    if not isinstance(entries, list) or not entries:
        return None
    content = call.messages[-1].content
    tokens = _prompt_tokens(entries, answer.get("prompt_token_ids"), call.sampling.logprobs)
    start = message_start([t.token if t else None for t in tokens], content)
    if start is None:
        raise UnsupportedError(
            f"the chat template behind {call.model} changes the scored message or closes it: its "
            "tokens cannot be told from the template's"
        )
    scored = tuple(t for t in tokens[start:] if t is not None)
    failure = None
    if not scored:
        failure = Failure(cause="empty", detail="there is no text to score")
    elif any(t.logprob <= _VLLM_ZERO for t in scored):
        failure = Failure(cause="zero_probability", detail="the model rules a token out")
    return Reply(
        logprobs=None if failure else scored,
        failure=failure,
        usage=usage,
        served_model=served,
        seconds=seconds,
    )


def _prompt_tokens(
    entries: Sequence[Any], ids: Any, alternatives: int
) -> list[TokenLogprob | None]:
    """The tokens of vLLM's `prompt_logprobs`.

    That is None for the first token, then `{token id: {logprob, rank, decoded_token}}` with the
    prompt's own token and the likeliest ones.
    """
    known = ids if isinstance(ids, list) and len(ids) == len(entries) else None
    tokens: list[TokenLogprob | None] = []
    for place, entry in enumerate(entries):
        if not entry:
            tokens.append(None)
            continue
        # The prompt's own token comes first; its id says so with more certainty.
        own = str(known[place]) if known else next(iter(entry))
        likeliest = sorted(
            (e for e in entry.values() if (e.get("rank") or 0) <= alternatives),
            key=lambda e: -e["logprob"],
        )
        tokens.append(
            TokenLogprob(
                token=valid_unicode(entry[own].get("decoded_token") or "")[0],
                logprob=entry[own]["logprob"],
                top=tuple(
                    (valid_unicode(e.get("decoded_token") or "")[0], e["logprob"])
                    for e in likeliest[:alternatives]
                ),
            )
        )
    return tokens


def message_start(tokens: Sequence[str | None], content: str) -> int | None:
    """Where the tokens of the last message begin in a prompt that ends with it.

    The decoded tokens are matched against the message from its end: a match of the whole is the
    proof that exactly the message is scored. Templates trim, so the trimmed message counts too.
    A token that holds a fragment of a character decodes to `""` (vLLM, whose next token then has
    the whole character) or to U+FFFD, which stands for up to one character.

    Args:
        tokens: the prompt's decoded tokens; None where there is no log-probability.
        content: the last message.

    Returns:
        The index of the message's first token, or None when the prompt does not end with the
        message.

    """
    for target in dict.fromkeys((content, content.rstrip(), content.strip())):
        start = _match_from_end(tokens, target)
        if start is not None:
            return start
    return None


def _match_from_end(tokens: Sequence[str | None], target: str) -> int | None:
    if not target:
        return len(tokens)
    found = None
    ends = {len(target)}  # the message is matched from each of these offsets on
    place = len(tokens)
    while place > 0 and ends:
        fragments = 0
        while place > 0 and _is_fragment(token := tokens[place - 1]):
            fragments += len(token or "")
            place -= 1
        if fragments:
            ends = {start for end in ends for start in _before_fragments(target, end, fragments)}
        elif place == 0 or (token := tokens[place - 1]) is None:
            break
        elif any(token.lstrip() == target[:e].lstrip() != "" for e in ends if e < len(token)):
            return place - 1  # the blank that the template put before the message is in the token
        else:
            ends = {e - len(token) for e in ends if target.endswith(token, 0, e)}
            place -= 1
        if 0 in ends:
            # Where fragments leave a choice, the match with the most tokens is the whole one: a
            # shorter one has let a fragment stand for a character that has a token of its own.
            found = place
            ends.discard(0)
    while found is not None and found > 0 and _is_fragment(tokens[found - 1]):
        found -= 1
    return found


def _before_fragments(target: str, end: int, fragments: int) -> Iterator[int]:
    """Where the target may stand before fragments of characters, if it stands at `end` after them.

    A fragment stands for up to one character, and for none that fits into one byte.
    """
    yield end
    for start in range(end - 1, max(end - fragments, 0) - 1, -1):
        if target[start].isascii():
            return
        yield start


def _is_fragment(token: str | None) -> bool:
    """Whether a token shows nothing but parts of characters."""
    return token is not None and not token.strip(_REPLACEMENT)
