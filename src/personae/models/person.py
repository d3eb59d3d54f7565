"""A person at the terminal as a backend: `person:NAME` answers calls like any other model.

So an answer of a person is in the journal, and nobody is asked twice: not after a kill, not in a
replay. A person is asked field by field for what the reply's schema wants, sees the situation that
a model would be told (`Call.meta`: `who`, `situation`, `language`), and may take all the time.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import queue
import re
import sys
import threading
import time
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from personae.errors import StoppedEarlyError, UnsupportedError
from personae.records import Call, Capabilities, Language, Reply, Usage
from personae.records.call import PERSON
from personae.records.shown import clean
from personae.records.structured import MalformedReplyError, check_value

MOST_TYPED = 100_000
"""Characters of one line; what is longer is no answer to any question."""

_NOBODY = "nobody watches any more"
_TAG = re.compile(r"</?[^<>/]+>")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-_])?")
_BETWEEN = re.compile(r"[\s,，、;；]+")
_YES, _NO = (
    frozenset({"y", "yes", "是", "对", "好"}),
    frozenset({"n", "no", "否", "不", "没有", "不是"}),
)
_COMMANDS = {
    "look": ("/look", "/看"),
    "again": ("/again", "/重来"),
    "help": ("/help", "/?", "/帮助"),
    "pause": ("/pause", "/quit", "/exit", "/暂停", "/退出"),
}


class Terminal:
    """Where a run talks with people: one question at a time, and what is said meanwhile waits.

    As a context manager it shows on a terminal that the run is at work while nobody is asked.
    Lines are read by a thread of its own, straight from the file descriptor: a thread that waits in
    `input` would hold up the end of the program.

    Args:
        console: where to show what.
        source: the file descriptor that answers come from; None is standard input.
    """

    def __init__(self, console: Console, *, source: int | None = None) -> None:
        self.console = console
        self._source = source
        self._turn = asyncio.Lock()
        self._asking = False
        self._held: list[Text] = []
        self._gone = False
        self._busy: Status | None = None
        self._stopped: str | None = None
        self._waiting: asyncio.Future[str | None] | None = None
        self._wanted: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Terminal:
        if self.console.is_terminal:
            self._busy = self.console.status("")
            self._busy.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._busy is not None:
            self._busy.stop()
            self._busy = None

    def say(self, text: Text) -> None:
        """Show a line, but not in the middle of a question."""
        if self._asking:
            self._held.append(text)
        else:
            self.show(text)

    def show(self, text: Text | str, *, end: str = "\n") -> None:
        """Show a text at once, wrapped on a terminal and as it is elsewhere.

        Raises:
            StoppedEarlyError: nobody watches any more (`personae play ... | head`).
        """
        if self._gone:
            raise StoppedEarlyError(_NOBODY)
        try:
            self._print(text, end)
        except SystemExit:  # rich's way out of a broken pipe; it has seen to standard output
            self._gone = True
            raise StoppedEarlyError(_NOBODY) from None

    def _print(self, text: Text | str, end: str) -> None:
        self.console.print(
            text,
            end=end,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=not self.console.is_terminal,
        )

    @contextlib.asynccontextmanager
    async def question(self) -> AsyncIterator[None]:
        """One question of several fields; others wait for its end.

        Raises:
            StoppedEarlyError: the run is stopping.
        """
        async with self._turn:
            self._check()
            self._asking = True
            if self._busy is not None:
                self._busy.stop()
            try:
                yield
            finally:
                self._asking = False
                if self._busy is not None and self._stopped is None:
                    self._busy.start()
                held, self._held = self._held, []
                for text in held:
                    self.show(text)

    async def line(self) -> str | None:
        """The next line that a person types, without its end; None at the end of the input.

        Raises:
            StoppedEarlyError: the run is stopping.
        """
        self._check()
        self.show("> ", end="")
        self.console.file.flush()
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="person", daemon=True)
            self._thread.start()
        self._wanted.put((loop, self._waiting))
        try:
            line = await self._waiting
        finally:
            self._waiting = None
        if line is None or not self._typed_here:
            self.show(Text(clean(line or "")))
        return line

    def interrupt(self, reason: str) -> None:
        """The run stops: whoever is being asked need not answer."""
        self._stopped = reason
        if self._waiting is not None and not self._waiting.done():
            self.show("")
            self._waiting.set_exception(StoppedEarlyError(reason))

    def _check(self) -> None:
        if self._stopped is not None:
            raise StoppedEarlyError(self._stopped)

    @property
    def _fd(self) -> int | None:
        if self._source is not None:
            return self._source
        try:
            return sys.stdin.fileno()
        except (AttributeError, OSError, ValueError):  # there is no standard input
            return None

    @property
    def _typed_here(self) -> bool:
        """Whether what is typed shows on the terminal by itself."""
        return self._fd is not None and os.isatty(self._fd) and self.console.is_terminal

    def _read(self) -> None:
        """The thread: reads no further than it is asked to."""
        fd = self._fd
        name = (sys.stdin.encoding if self._source is None and sys.stdin else None) or "utf-8"
        decoder = codecs.getincrementaldecoder(name)("replace")
        held, ended = "", fd is None
        while True:
            loop, future = self._wanted.get()
            while "\n" not in held and not ended and len(held) <= MOST_TYPED:
                try:
                    data = os.read(fd, 65536) if fd is not None else b""
                except OSError:  # the terminal has gone
                    data = b""
                ended = not data
                held += decoder.decode(data, final=ended)
            line: str | None
            if held:
                line, _, held = held.partition("\n")
            else:
                line = None
            try:
                loop.call_soon_threadsafe(_deliver, future, line)
            except RuntimeError:  # the run has ended meanwhile
                return


def _deliver(future: asyncio.Future[str | None], line: str | None) -> None:
    if not future.done():
        future.set_result(None if line is None else _ESCAPE.sub("", line).rstrip("\r"))


class Person:
    """A `Backend` that asks somebody at the terminal.

    Args:
        model_id: `person:NAME`.
        terminal: shared by all seats of a run.
    """

    capabilities = Capabilities(structured="schema")

    def __init__(self, model_id: str, terminal: Terminal) -> None:
        self.endpoint = model_id
        self._terminal = terminal
        self._name = model_id.removeprefix(PERSON)
        self._met: set[str] = set()

    async def complete(self, call: Call) -> Reply:
        """Ask, and ask again until the answer meets the schema.

        Raises:
            StoppedEarlyError: the person pauses or leaves, or the run stops.
            UnsupportedError: the call is no form that could be filled in.
        """
        if call.kind != "generate" or call.reply_schema is None:
            raise UnsupportedError("a person answers only what has a form (a play's calls)")
        async with self._terminal.question():
            began = time.monotonic()
            value = await _Form(self._terminal, call, self._name, self._met).fill()
        return Reply(
            text=json.dumps(value, ensure_ascii=False),
            usage=Usage(tokens_in=0, tokens_out=0),
            finish="stop",
            seconds=time.monotonic() - began,
        )

    def interrupt(self, reason: str) -> None:
        """The run stops: nobody waits for an answer any more."""
        self._terminal.interrupt(reason)

    async def close(self) -> None:
        """Nothing to release."""


class _StartOverError(Exception):
    """The person wants to begin the answer anew."""


@lru_cache(maxsize=2)
def words(language: Language) -> dict[str, Any]:
    """What a person reads, by key."""
    return tomllib.loads(files(__package__).joinpath(f"person.{language}.toml").read_text("utf-8"))


def readable(text: str) -> str:
    """A prompt's text for people: what stands between tags is indented instead."""
    lines: list[str] = []
    inside = 0
    for line in clean(text).split("\n"):
        if _TAG.fullmatch(line):
            inside += -1 if line.startswith("</") else 1
        else:
            lines.append("  " * max(0, inside) + line)
    return "\n".join(lines)


class _Form:
    """One reply, asked for field by field."""

    def __init__(self, terminal: Terminal, call: Call, name: str, met: set[str]) -> None:
        assert call.reply_schema is not None
        self.terminal, self.call, self.met = terminal, call, met
        self.schema = call.reply_schema
        language = call.meta.get("language")
        self.words = words("zh" if language == "zh" else "en")
        # One person may play several: the seat is the character's, whatever the person is called.
        played = str(call.meta.get("character") or name)
        self.name = self.words["narrator"] if call.role == "narrator" else played

    async def fill(self) -> dict[str, Any]:
        """The answer, once it meets the schema."""
        self._begin()
        while True:
            try:
                value: dict[str, Any] = {}
                await self._fields(self.schema.body["properties"], value)
            except _StartOverError:
                self._say(self.words["again"])
                continue
            problem = self._problem(value)
            if problem is None:
                return {name: value[name] for name in self.schema.body["properties"]}
            self._say(problem, style="red")

    def _begin(self) -> None:
        """Who one is, what the matter is, and, the second time, why one is asked again."""
        seat = f"{self.call.meta.get('scene')}/{self.call.role}/{self.name}"
        if "problem" in self.call.meta:
            problem = clean(str(self.call.meta["problem"]))
            self._say(self.words["refused"].format(problem=problem), style="red")
            return
        self._say("")
        self._say(self.words["seat"].format(name=clean(self.name)), style="bold")
        if seat not in self.met:
            self.met.add(seat)
            self._say(self.words["commands"], style="dim")
            self._look(("who", "situation"))
        else:
            self._look(("situation",))

    def _look(self, parts: Sequence[str]) -> None:
        for part in parts:
            if self.call.meta.get(part):
                self._say(readable(str(self.call.meta[part])))

    def _problem(self, value: Mapping[str, Any]) -> str | None:
        acts = [value[name].strip() for name in ("action", "speech") if name in value]
        if acts and not any(acts) and self.call.meta.get("step") != "dialogue":
            return str(self.words["nothing_done"])
        try:
            check_value(value, self.schema)
        except MalformedReplyError as error:
            return str(self.words["refused"]).format(problem=clean(str(error)))
        return None

    # Fields -----------------------------------------------------------------------------------

    async def _fields(self, properties: Mapping[str, Any], value: dict[str, Any]) -> None:
        """Ask for each; whom one addresses before whether one whispers."""
        names = list(properties)
        if "manner" in names and "to" in names:
            names.remove("to")
            names.insert(names.index("manner"), "to")
        for name in names:
            value[name] = await self._field(name, properties[name], value)

    async def _field(self, name: str, part: Mapping[str, Any], value: Mapping[str, Any]) -> Any:
        label = (
            self.words["ask"]
            .get(name, name)
            .format(
                affected=clean(str(value.get("affected", ""))),
                who=clean(str(value.get("who") or self.call.meta.get("whom", ""))),
            )
        )
        if name == "manner":
            return await self._manner(value)
        if name == "affected":
            *others, actor = part["enum"]
            chosen = await self._choose(label, name, others, most=1)
            return chosen[0] if chosen else actor
        if name == "influence":
            if value.get("affected") == self.call.meta.get("character"):
                return ""  # it touches nobody
            return await self._text(label, name, {**part, "minLength": 1})
        if name == "changes":
            return await self._changes(label, part["items"]["properties"])
        if name == "environment" and part.get("type") == "object":
            changed = await self._yes(label, name)
            fields: dict[str, Any] = dict.fromkeys(part["properties"], "")
            if changed:
                await self._fields(part["properties"], fields)
            return fields
        if "enum" in part:
            return await self._one_of(label, name, part["enum"])
        if part.get("type") == "array" and "enum" in part["items"]:
            options = part["items"]["enum"]
            default = options if name == "perceived_by" else []
            return await self._choose(label, name, options, default=default)
        if part.get("type") == "boolean":
            return await self._yes(label, name)
        return await self._text(label, name, part)

    async def _text(self, label: str, name: str, part: Mapping[str, Any]) -> str:
        needed = part.get("minLength", 0) > 0
        while True:
            line = await self._answer(label, "" if needed else name)
            if needed and not line:
                self._wrong("needed")
            elif len(line) > part.get("maxLength", MOST_TYPED):
                self._wrong("too_long", most=part.get("maxLength", MOST_TYPED), count=len(line))
            else:
                return line

    async def _yes(self, label: str, name: str) -> bool:
        while True:
            line = (await self._answer(f"{label} (y/n)", name)).casefold()
            if line in _YES or not line or line in _NO:
                return line in _YES
            self._wrong("yes_or_no")

    async def _manner(self, value: Mapping[str, Any]) -> str:
        if not value.get("to"):
            return "open"
        return "whisper" if await self._yes(self.words["whisper"], "whisper") else "open"

    async def _one_of(self, label: str, name: str, options: Sequence[str]) -> str:
        """One of several places; where one is already, if that is known."""
        here = self.call.meta.get("place")
        default = [str(here)] if here in options else []
        while True:
            chosen = await self._choose(label, name if default else "", options, default, most=1)
            if len(chosen) == 1:
                return chosen[0]
            self._wrong("one_number", most=len(options))

    async def _changes(self, label: str, properties: Mapping[str, Any]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        left, name = list(properties["who"]["enum"]), "changes"
        while left:
            chosen = await self._choose(label, name, left, most=1)
            if not chosen:
                break
            entry: dict[str, Any] = {"who": chosen[0]}
            left.remove(chosen[0])
            await self._fields({k: v for k, v in properties.items() if k != "who"}, entry)
            entries.append({k: entry[k] for k in properties})
            name, label = "more_changes", self.words["ask"]["more_changes"]
        return entries

    async def _choose(
        self,
        label: str,
        name: str,
        options: Sequence[str],
        default: Sequence[str] = (),
        *,
        most: int | None = None,
    ) -> list[str]:
        """Some of the options, by number or by name; 0 is none."""
        listed = "   ".join(f"{n} {clean(option)}" for n, option in enumerate(options, 1))
        while True:
            line = await self._answer(f"{label}  {listed}", name)
            if not line:
                return list(default)
            chosen = _chosen(line, options)
            if chosen is not None and (most is None or len(chosen) <= most):
                return chosen
            self._wrong("no_number" if most is None else "one_number", most=len(options))

    # The line ---------------------------------------------------------------------------------

    async def _answer(self, label: str, name: str) -> str:
        """A line that is no command; `name` is the field, to say what an empty line means."""
        enter = self.words["default"].get(name)
        head = Text(label, style="bold")
        if enter is not None:
            head.append(f"  [{self.words['enter'].format(what=enter)}]", style="dim")
        while True:
            self.terminal.show(head)
            line = await self.terminal.line()
            if line is None:
                raise StoppedEarlyError("the input has ended")
            line = clean(line).strip()
            if line.startswith("//"):
                return line[1:]
            if not line.startswith("/"):
                return line
            self._command(line)

    def _command(self, line: str) -> None:
        meant = next((c for c, all_ in _COMMANDS.items() if line.casefold() in all_), None)
        if meant == "pause":
            self._say(self.words["paused"])
            raise StoppedEarlyError("paused")
        if meant == "again":
            raise _StartOverError
        if meant == "look":
            self._look(("who", "situation"))
        elif meant == "help":
            self._say(self.words["help"].strip())
        else:
            self._wrong("unknown_command", command=line)

    def _wrong(self, key: str, **values: object) -> None:
        self._say(self.words[key].format(**values), style="red")

    def _say(self, text: str, *, style: str = "") -> None:
        self.terminal.show(Text(text, style=style))


def _chosen(line: str, options: Sequence[str]) -> list[str] | None:
    """The options that a line names, in their own order; None if it names something else."""
    by_name = {clean(option).casefold(): option for option in options}
    if line.casefold() in by_name:
        return [by_name[line.casefold()]]
    if line.strip() in ("0", "０"):
        return []
    found: set[str] = set()
    for part in filter(None, _BETWEEN.split(line)):
        if part.isdecimal() and len(part) <= 4 and 1 <= int(part) <= len(options):
            found.add(options[int(part) - 1])
        elif part.casefold() in by_name:
            found.add(by_name[part.casefold()])
        else:
            return None
    return [option for option in options if option in found]
