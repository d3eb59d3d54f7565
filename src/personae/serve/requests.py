"""Chat requests read and checked, after OpenAI's reference and what chat programs really send.

Three sorts of fields. Those we carry out are checked. Those that would change the answer and that
we cannot carry out are refused unless they ask for nothing (`_NEUTRAL`). All others (a user's id,
hints to providers) change nothing here and are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from personae.records import Secret
from personae.serve.api_errors import ApiError, invalid
from personae.serve.engine import ChatMessage, ChatWanted

MAX_MESSAGES = 10_000
MAX_STOPS = 4
MAX_STOP = 512
MAX_NAME = 200
MAX_SECRETS = 1000
MAX_KNOWING = 1000
"""Names of those who perceived one message, or who know one secret."""
MAX_SEED = 2**63 - 1

# Names stand at the heads of lines in prompts: one that breaks a line could speak for another.
_BREAK = r"\p{Cc}\p{Zl}\p{Zp}"
_Name = Annotated[
    str, Field(max_length=MAX_NAME, pattern=rf"^[^{_BREAK}]*[^\s{_BREAK}][^{_BREAK}]*$")
]

# What a field of a message holds that means `perceived_by` and is not spelt so: passed over, it
# would tell everybody what some were to hear.
_LIKE_PERCEIVED = ("perc", "ceived_by", "ceivedby", "cieved")

# What each parameter that we cannot carry out may say: then it asks for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1, 0),
    "logit_bias": ({}, []),
    "top_k": (0, -1),
    "top_a": (0,),
    "min_p": (0,),
    "typical_p": (1,),
    "tfs": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "n": (1,),
    "best_of": (1,),
    "json_schema": (),
    "grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "structured_outputs": (),
    "continue_final_message": (False,),
    "use_beam_search": (False,),
}


class _Lenient(BaseModel):
    """Other fields may stand beside; these are of their type exactly."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Part(_Lenient):
    type: Literal["text"]
    text: str


class _Message(_Lenient):
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[_Part, ...]
    name: _Name | None = None
    perceived_by: Annotated[frozenset[_Name], Field(max_length=MAX_KNOWING)] | None = None
    tool_calls: tuple[()] | None = None

    def read(self) -> ChatMessage:
        """The message as engines take it."""
        text = self.content
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text)
        heard = self.perceived_by
        if heard is not None and self.name is not None:
            heard |= {self.name}
        role = "system" if self.role == "developer" else self.role
        return ChatMessage(role, text, self.name, heard)


class _Ours(_Lenient):
    """Fields of this server alone: one that it does not know is misspelt."""

    model_config = ConfigDict(extra="forbid")


class _Secret(_Ours):
    fact: Annotated[str, Field(min_length=1, pattern=r"\S")]
    known_by: Annotated[tuple[_Name, ...], Field(max_length=MAX_KNOWING)]


class _Extension(_Ours):
    secrets: Annotated[tuple[_Secret, ...], Field(max_length=MAX_SECRETS)] = ()


class _StreamOptions(_Lenient):
    include_usage: bool | None = None


class _Body(_Lenient):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[tuple[_Message, ...], Field(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-1, le=MAX_SEED)] | None = None
    stop: (
        Annotated[str, Field(max_length=MAX_STOP)]
        | Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=MAX_STOP)], ...],
            Field(max_length=MAX_STOPS),
        ]
        | None
    ) = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    personae: _Extension | None = None


@dataclass(frozen=True)
class ChatAsked:
    """A request as it was understood.

    Attributes:
        stream: the answer is wanted piece by piece.
        usage: a stream ends with its count of tokens.
    """

    wanted: ChatWanted
    stream: bool = False
    usage: bool = False


def read_chat(raw: bytes, *, max_tokens: int, default_tokens: int) -> ChatAsked:
    """The body of a request to `/v1/chat/completions`.

    Args:
        max_tokens: what a request may ask for at most.
        default_tokens: for requests that name no number.

    Raises:
        ApiError: 400; names the parameter and what is wrong with it.
    """
    try:
        body = _Body.model_validate_json(raw)
    except ValidationError as error:
        raise _complaint(error) from None
    _refuse_what_we_cannot(body.model_extra or {})
    _refuse_misspelt(body.messages)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only for requests with stream: true", "stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    wanted = ChatWanted(
        model=body.model,
        messages=tuple(message.read() for message in body.messages),
        secrets=tuple(
            Secret(fact=s.fact, known_by=s.known_by)
            for s in (() if body.personae is None else body.personae.secrets)
        ),
        max_tokens=_tokens(body, max_tokens) or default_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=None if body.seed == -1 else body.seed,  # as vLLM and chat programs write "any"
        stop=_stops(body.stop),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return ChatAsked(
        wanted,
        stream=bool(body.stream),
        usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _refuse_what_we_cannot(others: dict[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        value = others.get(name)
        if value is None or _same_as_any(value, neutral):
            continue
        means = " or ".join(repr(v) for v in neutral)
        raise invalid(
            f"{name} is not supported here" + (f"; leave it out or give {means}" if means else ""),
            name,
            "unsupported_parameter",
        )


def _refuse_misspelt(messages: tuple[_Message, ...]) -> None:
    for number, message in enumerate(messages):
        for name in message.model_extra or {}:
            if any(part in name.casefold() for part in _LIKE_PERCEIVED):
                raise invalid(
                    f"messages[{number}]: there is no field {name[:40]!r}; perceived_by is meant?",
                    f"messages[{number}].{name[:40]}",
                    "unknown_parameter",
                )


def _same_as_any(value: Any, neutral: tuple[Any, ...]) -> bool:
    # In Python True is 1; in JSON it is not.
    return any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral)


def _tokens(body: _Body, most: int) -> int | None:
    named = {
        name: value
        for name in ("max_completion_tokens", "max_tokens")
        if (value := getattr(body, name)) is not None
    }
    if len(set(named.values())) > 1:
        raise invalid(
            "max_tokens and max_completion_tokens say different things", "max_completion_tokens"
        )
    for name, value in named.items():
        if value > most:
            raise invalid(f"{name} is {value}; this server allows {most} at most", name)
        return int(value)
    return None


def _stops(stop: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,) if stop else ()
    return stop or ()


def _complaint(error: ValidationError) -> ApiError:
    """The first complaint, by the parameter's place, without the value itself."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return invalid(f"The body is not JSON: {first['msg']}", code="invalid_json")
    if first["type"] == "model_type" and not first["loc"]:
        return invalid("The body must be a JSON object", code="invalid_json")
    place = _place(first["loc"])
    if first["type"] == "missing":
        return invalid(f"{place} is missing", place, "missing_required_parameter")
    if place.endswith(".content"):
        return invalid(
            f"{place} must be a text, or a list of parts of type text (no image, no sound)", place
        )
    if place == "stop":
        return invalid(f"stop is a text, or up to {MAX_STOPS} of them, none empty", place)
    if place.endswith(".tool_calls"):
        return invalid("calls of tools are not supported here", place, "unsupported_parameter")
    return invalid(f"{place}: {first['msg']}", place)


def _place(location: tuple[int | str, ...]) -> str:
    """`messages[1].role`; what pydantic says of the branches of a union is left out."""
    named: list[str] = []
    for part in location:
        if isinstance(part, int):
            named[-1:] = [f"{named[-1] if named else ''}[{part}]"]
        elif part.isidentifier() and part != "str":
            named.append(part)
        else:
            break
        if part in ("content", "stop"):
            break
    return ".".join(named)
