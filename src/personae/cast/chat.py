"""`personae cast chat`: a talk with the characters of a cast, line by line.

Each line is answered by the character whom it asks for (the router, once a turn), or by the one who
was chosen; who answers, and why, stands before the answer, which comes piece by piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tomllib
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from personae.cast.backend import SCHEME, CastBackend, Casts, pinned, read_manifest
from personae.cast.dialogue import Dialogue, own_system
from personae.cast.layout import messages_for
from personae.cast.store import Cast
from personae.errors import ContextLengthError, TransportError, UsageError
from personae.records import Call, Language, Sampling
from personae.records.cast import BASE, CastTurn, Routed
from personae.records.language import written_in
from personae.records.shown import clean

Read = Callable[[], Awaitable[str | None]]
"""The next line that the person types, without its end; None: there is none any more."""
Write = Callable[[str], None]
"""Shows a text as it is; lines end where it has `\\n`."""

LANGUAGES: tuple[Language, ...] = ("en", "zh")
MAX_TOKENS = 300
TEMPERATURE, TOP_P = 0.7, 0.95


@lru_cache(maxsize=2)
def words(language: Language) -> dict[str, Any]:
    """What the person reads, by key."""
    return tomllib.loads(files(__package__).joinpath(f"chat.{language}.toml").read_text("utf-8"))


async def chat(cast_path: Path, role: str | None, read: Read, write: Write) -> None:
    """Talk until `/quit` or the end of the input.

    Args:
        role: who answers every line; None: whom each line asks for.

    Raises:
        UsageError: the cast has no such character, or a package is absent.
        InputError: there is no cast, or it is damaged.
    """
    await Chat(cast_path, role, read, write).run()


def chat_in_terminal(cast_path: Path, role: str | None) -> int:
    """The same on standard input and output; the exit code. Raises what `chat` raises.

    Ctrl-C stops a reply; where none is under way, it ends the talk.
    """
    from rich.console import Console

    from personae.models.person import Terminal

    terminal = Terminal(Console(highlight=False))

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    async def talk() -> None:
        one = Chat(cast_path, role, terminal.line, write)
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, one.interrupt)
        await one.run()

    with contextlib.suppress(BrokenPipeError):
        asyncio.run(talk())
    return 0


class _Talk(Protocol):
    """A dialogue with an engine behind it."""

    def say(self, text: str) -> None:
        """The person says something."""

    async def reply(self, who: str, heard: Write) -> str:
        """A character answers; what it said becomes part of the dialogue."""


class Chat:
    """One talk; see `chat`."""

    def __init__(self, cast_path: Path, role: str | None, read: Read, write: Write) -> None:
        self._path, self._read, self._write = cast_path, read, write
        self._casts = Casts()
        self._model = f"{SCHEME}:{cast_path}"
        self._casts.check(self._model)
        self._role = None if role is None else self._chosen(role)
        self._previous: str | None = None
        self._language: Language = "en"
        self._talk: _Talk | None = None
        self._under_way: asyncio.Task[Any] | None = None

    @property
    def waits(self) -> bool:
        """Whether a line or a reply is waited for."""
        return self._under_way is not None

    def interrupt(self) -> None:
        """Stop the reply under way; where there is none, end the talk."""
        if self._under_way is not None:
            self._under_way.cancel()

    async def run(self) -> None:
        """Talk until the end."""
        backend = self._casts.backend(f"{self._model}#{BASE}")
        try:
            cast = await backend.cast()
            if any(written_in([name]) == "zh" for name in cast.names[:1]):
                self._language = "zh"
            self._tell("greeting", cast=self._path.resolve().name)
            while (line := await self._line()) is not None:
                line = line.strip()
                if line.startswith("/") and not line.startswith("//"):
                    if not self._command(line):
                        break
                elif line:
                    line = line[1:] if line.startswith("//") else line
                    self._language = written_in([line])
                    await self._answer(cast, backend, line)
        finally:
            await backend.close()

    async def _line(self) -> str | None:
        """The next line; None also when the person interrupts."""
        self._under_way = asyncio.ensure_future(self._read())
        try:
            line: str | None = await self._under_way
        except asyncio.CancelledError:
            if _being_cancelled():
                raise
            self._write("\n")
            return None
        finally:
            self._under_way = None
        return line

    def _command(self, line: str) -> bool:
        """Carry out a command; False ends the talk."""
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        if command in ("/quit", "/exit", "/退出"):
            return False
        if command in ("/help", "/?", "/帮助"):
            self._tell("help")
        elif command in ("/who", "/谁"):
            self._tell("greeting", cast=self._path.name)
        elif command in ("/new", "/重来"):
            self._talk, self._previous = None, None
            self._tell("anew")
        elif command in ("/role", "/角色"):
            self._choose(rest)
        else:
            self._tell("unknown_command", command=command)
        return True

    def _choose(self, name: str) -> None:
        if not name:
            self._role = None
            self._tell("routed")
            return
        try:
            self._role = self._named(name)
        except UsageError:
            self._tell("unknown_role", role=name)
        else:
            self._tell("fixed", role=self._role)

    async def _answer(self, cast: Cast, backend: CastBackend, line: str) -> None:
        if self._role is not None:
            who, why = self._role, words(self._language)["by"]["role"]
        else:
            routed = cast.route(line, previous=self._previous)
            found = await self._whom(cast, routed)
            if found is None:
                return
            who, why = found
        if self._talk is None:
            self._talk = await self._begin(cast, backend)
        self._talk.say(line)
        self._previous = who
        self._write(clean(f"{who} ({why}): "))
        heard = _Heard(self._write)
        self._under_way = asyncio.ensure_future(self._talk.reply(who, heard))
        try:
            said = await self._under_way
            self._write("\n" if said.strip() else words(self._language)["silent"] + "\n")
        except asyncio.CancelledError:
            if _being_cancelled():
                raise
            self._write(" ")
            self._tell("stopped")
        except ContextLengthError:
            self._tell("full")
        except TransportError as error:
            self._write(clean(str(error)) + "\n")
        finally:
            self._under_way = None

    async def _whom(self, cast: Cast, routed: Routed) -> tuple[str, str] | None:
        """Who answers, and why; asks where the router does. None: nobody."""
        told = words(self._language)
        if routed.decision == "accept" and routed.role is not None:
            return routed.role, told["by"][routed.by].format(confidence=routed.confidence)
        if routed.decision == "reject" or routed.role is None:
            self._tell("nobody", confidence=routed.confidence)
            return None
        self._tell("perhaps", role=routed.role, confidence=routed.confidence)
        line = ((await self._line()) or "").strip()
        chosen = told["by"]["role"]
        if _is("yes", line):
            return routed.role, chosen
        if line and not _is("no", line):
            named = cast.route(line)
            if named.decision == "accept" and named.role is not None:
                return named.role, chosen
        self._tell("unanswered")
        return None

    async def _begin(self, cast: Cast, backend: CastBackend) -> _Talk:
        generator = await backend.generator()
        if generator is not None:
            return _OnTorch(Dialogue(generator, language=self._language))
        return _OnLlama(cast, self._casts, self._model, self._language)

    def _chosen(self, role: str) -> str:
        try:
            return self._named(role)
        except UsageError:
            raise UsageError(
                f"{self._path} has no {role!r}; there are {', '.join(self._names)}. Give one of "
                f"them with --role, or add the character: personae cast add {self._path}"
            ) from None

    def _named(self, name: str) -> str:
        """The character of that name, whatever its case, or of that alias."""
        return pinned(self._model, [name])[name].rpartition("#")[2]

    def _tell(self, key: str, **values: Any) -> None:
        known = {"names": ", ".join(self._names), "path": self._path}
        text: str = words(self._language)[key].format(**{**known, **values})
        self._write(clean(text) + "\n")

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(one.name for one in read_manifest(self._path).characters)


def _is(key: str, line: str) -> bool:
    """Whether a line says yes, or no, in either language."""
    return any(line.casefold() in words(language)[key] for language in LANGUAGES)


def _being_cancelled() -> bool:
    """Whether the whole talk is to end, and not only what it was waiting for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Heard:
    """Shows the pieces of a reply: no white space before it, no control characters."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._begun = False

    def __call__(self, piece: str) -> None:
        shown = clean(piece if self._begun else piece.lstrip())
        if shown:
            self._begun = True
            self._write(shown)


class _OnTorch:
    """Keys and values are kept, and the reply comes token by token (`cast.dialogue`)."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self.say = dialogue.say

    async def reply(self, who: str, heard: Write) -> str:
        found = await self._dialogue.reply(
            who,
            heard=heard,
            max_tokens=MAX_TOKENS,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            seed=len(self._dialogue.turns),
        )
        return found.text


class _OnLlama:
    """Each reply is a call to the embedded engine, which keeps prefixes itself."""

    def __init__(self, cast: Cast, casts: Casts, model: str, language: Language) -> None:
        self._cast, self._casts, self._model, self._language = cast, casts, model, language
        self._turns: list[CastTurn] = []

    def say(self, text: str) -> None:
        self._turns.append(CastTurn(text=text))

    async def reply(self, who: str, heard: Write) -> str:
        system = own_system(self._cast, who, self._language)
        call = Call(
            role="character",
            model=f"{self._model}#{who}",
            messages=messages_for(self._turns, who, system, "full"),
            sampling=Sampling(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=MAX_TOKENS),
        )
        backend = self._casts.backend(call.model)
        try:
            reply = await backend.stream(call, heard)
        finally:
            await backend.close()
        text = (reply.text or "").strip()
        if text:
            self._turns.append(CastTurn(speaker=who, text=text))
        return text
