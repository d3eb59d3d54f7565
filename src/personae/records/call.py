"""The exchange with a model: `Call` asks, `Reply` answers or records why there is no answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator
from pydantic_core import PydanticSerializationError, to_json

from personae.records.base import Record, canonical_json

JSON = Any

PERSON = "person:"
"""How the model id of somebody at the terminal begins; the name of the seat follows."""


def is_person(model_id: str) -> bool:
    """Whether a person answers the calls to this id: at leisure, in words, free of charge."""
    return model_id.startswith(PERSON)


class Message(Record):
    """One message of a dialogue."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(Record):
    """How a reply is drawn; `None` leaves the choice to the endpoint.

    `logprobs` asks for the log-probability (nats) of each generated token with that many
    alternatives; an endpoint without them drops the wish and notes it in the reply.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int = Field(default=0, ge=0, le=20)


class ReplySchema(Record):
    """The JSON Schema that a structured reply must meet. `name` is letters, digits, `_` and `-`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    body: dict[str, JSON]


class Call(Record):
    """One question to a model.

    Attributes:
        role: who asks or speaks: `character`, `examiner`, `exemplar_writer`, `judge` ...
        model: the model's id, as the user wrote it.
        kind: `generate` asks for a reply; `score` asks for the log-probabilities of the last
            message, which must be the assistant's, given the messages before it.
        reply_schema: the schema of a structured reply (JSON name `schema`).
        repeat: 0, 1, 2 ... for independent repeats of the same call.
        meta: ids of persona, question, scene, character, metric, round, as far as they apply.
            For people and scripts; not part of the content key.

    """

    role: str = Field(min_length=1)
    model: str = Field(min_length=1)
    messages: tuple[Message, ...] = Field(min_length=1)
    sampling: Sampling = Sampling()
    reply_schema: ReplySchema | None = Field(default=None, alias="schema")
    repeat: int = Field(default=0, ge=0)
    kind: Literal["generate", "score"] = "generate"
    meta: dict[str, str | int] = {}

    @model_validator(mode="after")
    def _score_ends_with_the_assistant(self) -> Call:
        if self.kind == "score" and self.messages[-1].role != "assistant":
            raise ValueError("a score call's last message must be the assistant's")
        return self

    def key(self) -> bytes:
        """The 32-byte content key (BLAKE2b) over all that decides the reply, `meta` left out.

        Fields count in the order of their declaration and a schema's keys in their own: models do
        read that order.
        """
        rest = self.to_json(exclude={"meta", "messages"}).encode()
        return blake2b(_digest(self.messages) + rest, digest_size=32).digest()


@lru_cache(maxsize=512)
def _digest(messages: tuple[Message, ...]) -> bytes:
    """The digest of a prompt; a panel of judges shares one, and it is most of the work."""
    return blake2b(messages_json(messages), digest_size=32).digest()


@lru_cache(maxsize=256)
def messages_json(messages: tuple[Message, ...]) -> bytes:
    """Messages as one line of JSON in UTF-8; hashed, sent to each judge of a panel, and kept."""
    pairs = [{"role": m.role, "content": m.content} for m in messages]
    try:
        return to_json(pairs)
    except PydanticSerializationError:
        return json.dumps(pairs, separators=(",", ":")).encode()


class Usage(Record):
    """Tokens of one reply; `None` where the endpoint did not say.

    `cached` is part of `tokens_in`, `reasoning` of `tokens_out`.
    """

    tokens_in: int | None = Field(default=None, ge=0)
    tokens_out: int | None = Field(default=None, ge=0)
    cached: int | None = Field(default=None, ge=0)
    reasoning: int | None = Field(default=None, ge=0)


class TokenLogprob(Record):
    """A token, its log-probability in nats, and the likeliest alternatives at its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Failure(Record):
    """Why there is no usable reply: a stable short `cause` and a sentence of `detail`."""

    cause: str = Field(min_length=1)
    detail: str = ""


class Reply(Record):
    """What came back.

    Exactly one of these holds: `failure` is set; or the call was `generate` and `text` is set; or
    the call was `score` and `logprobs` is set (one entry per token of the scored message).

    Attributes:
        value: the parsed value of a structured reply. Derived from `text` by the client.
        reasoning: the model's thinking, kept apart from the answer.
        finish: why generation ended: `stop`, `length`, or the endpoint's own word.
        served_model: the model name that the endpoint reported.
        seconds: from sending the request to the last byte.
        retries: the causes of the attempts that failed before this one.
        notes: what the endpoint could not honour (`"seed dropped"` ...).
        reused: this reply came from the journal; not part of what is stored.

    """

    text: str | None = None
    value: JSON = None
    reasoning: str | None = None
    failure: Failure | None = None
    usage: Usage = Usage()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: str | None = None
    served_model: str | None = None
    seconds: float | None = Field(default=None, ge=0)
    retries: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reused: bool = Field(default=False, exclude=True)

    @model_validator(mode="after")
    def _answer_or_failure(self) -> Reply:
        if self.text is None and self.logprobs is None and self.failure is None:
            raise ValueError("a reply without text, logprobs or failure says nothing")
        return self

    @property
    def ok(self) -> bool:
        """Whether there is a usable answer."""
        return self.failure is None


class Capabilities(Record):
    """What an endpoint can do.

    `structured`: `schema` constrains a reply to a JSON Schema, `json` to any JSON, `none` not at
    all (strict parsing and one repair exchange do the work then). `score`: it returns
    log-probabilities of given text. `logprobs`: it returns those of generated tokens.
    """

    structured: Literal["schema", "json", "none"] = "none"
    score: bool = False
    logprobs: bool = False


@runtime_checkable
class Model(Protocol):
    """What every pipeline asks. Never raises for one failed exchange: that is a failed `Reply`.

    Raises (from `ask`): StoppedEarlyError when a cap or the user stops the run; a fatal
    TransportError when no later call could fare better; ReplayMissError in a replay.
    """

    async def ask(self, call: Call) -> Reply:
        """Have one call answered."""
        ...


@runtime_checkable
class Refusing(Protocol):
    """A `Model` that can be told that replies, well-formed as they are, could not stand."""

    async def refuse(self, calls: Sequence[Call], failure: Failure) -> None:
        """Record the replies to these calls as failed: resuming asks them again."""
        ...


@runtime_checkable
class Backend(Protocol):
    """The far end of the wire: one attempt at one exchange.

    Retries, limits and memory are not its business: `personae.journal.client` adds them and is
    the `Model` that pipelines see.
    """

    @property
    def endpoint(self) -> str:
        """What shares one concurrency limit, for instance the base URL."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this endpoint can do, as far as known now."""
        ...

    async def complete(self, call: Call) -> Reply:
        """One attempt.

        Raises:
            TransportError: the exchange failed; its class says whether to try again.

        """
        ...

    async def close(self) -> None:
        """Release connections and engines."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A backend whose answer may never come unless it is told that nobody waits for it any more.

    Its `complete` raises StoppedEarlyError then, and also when the run is to stop because of it: a
    person may pause, or leave.
    """

    def interrupt(self, reason: str) -> None:
        """The run stops: whoever is being asked need not answer."""
        ...


def prompt_text(call: Call) -> str:
    """All message contents in order, for counting and estimating."""
    return canonical_json([m.content for m in call.messages])
