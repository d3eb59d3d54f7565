"""Answers as OpenAI's API words them: the whole, the chunks of a stream, the list of models.

Shapes: platform.openai.com/docs/api-reference/chat. `model` says who answered, also where `auto`
was asked.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from personae.records import TokenLogprob
from personae.serve.engine import Finished, ServedCharacter

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": waiting\n\n"
_UNKNOWN = "\ufffd"


def encode(document: Any) -> bytes:
    """JSON as UTF-8; half of a surrogate pair, which UTF-8 cannot hold, is escaped."""
    try:
        return json.dumps(
            document, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    except UnicodeEncodeError:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def event(document: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + encode(document) + b"\n\n"


@dataclass(frozen=True)
class Wording:
    """What all parts of one answer share.

    Attributes:
        model: who answers.
        usage: whether the stream ends with the count of tokens.
    """

    model: str
    usage: bool = False
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, finished: Finished) -> dict[str, Any]:
        """The answer in one document."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": finished.text, "refusal": None},
            "logprobs": _logprobs(finished.logprobs),
            "finish_reason": finished.finish,
        }
        return {**self._head("chat.completion"), "choices": [choice], "usage": _usage(finished)}

    def first(self) -> bytes:
        """The first event: who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        """A piece of the text."""
        return self._chunk({"content": text})

    def last(self, finished: Finished) -> bytes:
        """How it ended; engines know log-probabilities only then."""
        made = self._chunk({}, finished.finish, _logprobs(finished.logprobs))
        if self.usage:
            head = self._head("chat.completion.chunk")
            made += event({**head, "choices": [], "usage": _usage(finished)})
        return made + DONE

    def _chunk(
        self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        document = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self.usage:
            document["usage"] = None
        return event(document)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _usage(finished: Finished) -> dict[str, Any] | None:
    """None where the engine does not count."""
    if finished.tokens_in is None or finished.tokens_out is None:
        return None
    usage: dict[str, Any] = {
        "prompt_tokens": finished.tokens_in,
        "completion_tokens": finished.tokens_out,
        "total_tokens": finished.tokens_in + finished.tokens_out,
    }
    if finished.cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": finished.cached}
    return usage


def _logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    return {
        "content": [
            {
                **_token(t.token, t.logprob),
                "top_logprobs": [_token(token, logprob) for token, logprob in t.top],
            }
            for t in tokens
        ],
        "refusal": None,
    }


def _token(token: str, logprob: float) -> dict[str, Any]:
    """A token that is a part of a character has no text, so its bytes are not known here."""
    raw = None if _UNKNOWN in token else list(token.encode("utf-8", "surrogatepass"))
    return {"token": token, "logprob": logprob, "bytes": raw}


def model_entry(character: ServedCharacter, created: int) -> dict[str, Any]:
    """A character as `/v1/models` lists it."""
    return {
        "id": character.name,
        "object": "model",
        "created": created,
        "owned_by": "personae",
        "personae": character.about,
    }
