"""What the server needs of whoever speaks: the cast on torch, a vLLM server, or a script of tests.

The HTTP side knows no cast, no router and no weights; an engine knows no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from personae.records import Secret, TokenLogprob

AUTO = "auto"
"""The model's name under which each request is routed."""


@dataclass(frozen=True)
class ChatMessage:
    """One message of a request.

    Attributes:
        role: `system`, `user` or `assistant` (`developer` has become `system`).
        name: who said it; None is the person, or of an assistant's message whoever answers.
        perceived_by: who perceived it, the speaker included; None: everybody.
    """

    role: str
    content: str
    name: str | None = None
    perceived_by: frozenset[str] | None = None


@dataclass(frozen=True)
class ChatWanted:
    """A request for one answer, checked as far as that goes without the cast.

    Attributes:
        model: a character, or `auto`.
        secrets: of the chat, beside those of the cards; each reaches only who knows it.
        max_tokens: None leaves it to the engine, within the server's limit.
        sampling: `temperature`, `top_p`, `seed`, `stop`, `logprobs`, where given, by OpenAI's name.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    secrets: tuple[Secret, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True)
class Finished:
    """How an answer ended.

    Attributes:
        finish: `stop` or `length`.
        tokens_in, tokens_out, cached: None where the engine does not count them.
    """

    text: str
    finish: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


class Speech(Protocol):
    """An answer under way. Left before its end, nothing goes on behind it."""

    character: str
    """Who answers, also where `auto` was asked."""

    async def __aenter__(self) -> Speech:
        """Begin."""

    async def __aexit__(self, *error: object) -> None:
        """Leave; what is still under way is cancelled."""

    def __aiter__(self) -> AsyncIterator[str]:
        """The pieces of the text as they come; none splits a character."""

    async def done(self) -> Finished:
        """How it ended, after the last piece (or without having asked for any)."""


@dataclass(frozen=True)
class ServedCharacter:
    """A character that can be asked for.

    Attributes:
        about: what `/v1/models` says of it beside its name.
    """

    name: str
    about: dict[str, Any]

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names that mean it."""
        return tuple(self.about.get("aliases", ()))


class Engine(Protocol):
    """Who speaks."""

    def characters(self) -> Sequence[ServedCharacter]:
        """Who can be asked for, in the cast's order."""

    async def speak(self, wanted: ChatWanted) -> Speech:
        """Prepare an answer: who gives it, and what that one may know.

        Raises:
            BadRequestError: nobody is meant, or nobody certain; the messages cannot be put to it.
            ContextLengthError: they do not fit.
            ServerError, TransportError: the engine, or the server behind it, failed.
        """

    async def refresh(self) -> tuple[str, ...]:
        """Take in the characters that the cast has gained; returns their names.

        Raises:
            InputError: the cast is damaged, or has changed otherwise.
        """

    def busy(self) -> int:
        """How many answers are under way or wait."""

    async def healthy(self) -> str | None:
        """None, or why it cannot answer now."""

    async def close(self) -> None:
        """End it; answers under way fail."""
