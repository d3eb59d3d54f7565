"""Decorators: the lines `@@name value` with which an entry's content begins.

Source: Character Card V3, "Decorators". What this program cannot honour is ignored, as the
specification asks, and its fallback (`@@@name value` on the next line) takes its place; nothing is
ignored in silence: `Decorated.ignored` lists it for `character lint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, cast, get_args

from personae.records.base import Record

Role = Literal["system", "user", "assistant"]
Section = Literal["before_desc", "after_desc", "personality", "scenario"]
Reason = Literal["unknown", "unsupported", "value", "repeated", "overruled", "orphan"]

# Ours is a conversation, not one running text: what counts tokens of that text is ignored, as the
# specification asks, and so is what counts messages from the oldest. There are no icons to choose.
UNSUPPORTED = frozenset(
    {
        "reverse_depth", "instruct_depth", "reverse_instruct_depth", "instruct_scan_depth",
        "is_user_icon", "disable_ui_prompt",
    }
)  # fmt: skip
MAX_NUMBER = 1_000_000
_LINE = re.compile(r"(@@@?)([A-Za-z]\w*)(?:[ \t]+(.*))?[ \t\r]*", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,9}")


class Ignored(Record):
    """A decorator that has no effect.

    Attributes:
        why: `unknown` name; a name that this program does not support; a `value` that does not fit;
            `repeated` (the first of a name counts); `overruled` by another decorator; `orphan`, a
            fallback of nothing.
    """

    name: str
    value: str
    why: Reason


class Decorated(Record):
    """An entry's content: what is told, and what its decorators ask for.

    Attributes:
        text: the content without its decorators.
        activate, dont_activate: fires always, or never; the first wins.
        activate_only_after, activate_only_every: in the character's own messages so far.
        keep_activate_after_match, dont_activate_after_match: after it has fired once.
        depth: messages from the newest, in front of which the text goes; 0 is behind the newest.
        position: the section of the prompt that the text belongs to; overrules `depth`.
        scan_depth: how many of the newest messages are searched for the keys.
        is_greeting: index of the greeting that the conversation must have begun with.
        additional_keys, exclude_keys: one of the former must occur too, none of the latter may.
        ignore_on_max_context: the first to go where the context is full.
    """

    text: str
    activate: bool = False
    dont_activate: bool = False
    activate_only_after: int | None = None
    activate_only_every: int | None = None
    keep_activate_after_match: bool = False
    dont_activate_after_match: bool = False
    depth: int | None = None
    role: Role | None = None
    position: Section | None = None
    scan_depth: int | None = None
    is_greeting: int | None = None
    additional_keys: tuple[str, ...] = ()
    exclude_keys: tuple[str, ...] = ()
    ignore_on_max_context: bool = False
    ignored: tuple[Ignored, ...] = ()


def parse_decorators(content: str, *, cannot: Collection[str] = ()) -> Decorated:
    """The decorators that a content begins with, and the text behind them.

    A chain of fallbacks is gone through from top to bottom until one can be honoured. A line that
    is no decorator ends the list; lines like one further down belong to the text.

    Args:
        cannot: names that the caller cannot honour now (`is_greeting` where no greeting is known).
    """
    chains, text = _chains(content)
    found: dict[str, Any] = {}
    ignored: list[Ignored] = []
    for chain in chains:
        if chain[0][0] == "@@@":
            ignored += [Ignored(name=n, value=v, why="orphan") for _, n, v in chain]
            continue
        if chain[0][1] in found:  # the chain stands for a decorator that has its effect already
            ignored += [Ignored(name=n, value=v, why="repeated") for _, n, v in chain[:1]]
            continue
        for _, name, value in chain:
            if name in UNSUPPORTED or name in cannot:
                ignored.append(Ignored(name=name, value=value, why="unsupported"))
            elif name not in _READ:
                ignored.append(Ignored(name=name, value=value, why="unknown"))
            elif (read := _READ[name](value)) is None:
                ignored.append(Ignored(name=name, value=value, why="value"))
            elif name in found:
                ignored.append(Ignored(name=name, value=value, why="repeated"))
                break
            else:
                found[name] = read
                break
    for overruled, by in (("depth", "position"), ("dont_activate", "activate")):
        if by in found and overruled in found:
            ignored.append(
                Ignored(name=overruled, value=str(found.pop(overruled)), why="overruled")
            )
    return Decorated(text=text, **found, ignored=tuple(ignored))


def _chains(content: str) -> tuple[list[list[tuple[str, str, str]]], str]:
    """Decorators with their fallbacks, as (mark, name, value); and the text behind them."""
    chains: list[list[tuple[str, str, str]]] = []
    rest = 0
    for start, line in _lines(content):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            break
        mark, name, value = match[1], match[2].lower(), (match[3] or "").rstrip(" \t\r")
        if mark == "@@@" and chains:
            chains[-1].append((mark, name, value))
        else:
            chains.append([(mark, name, value)])
        rest = start + len(line)
    return chains, content[rest:].lstrip("\r\n") if chains else content


def _lines(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, text[start:end]
        start = end + 1


def _flag(value: str) -> bool | None:
    return True if value.lower() in ("", "true") else None


def _number(least: int) -> Callable[[str], int | None]:
    def read(value: str) -> int | None:
        if not _INTEGER.fullmatch(value):
            return None
        return int(value) if least <= int(value) <= MAX_NUMBER else None

    return read


def _strings(value: str) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in value.split(",") if part.strip()) or None


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str | None]:
    return lambda value: value.lower() if value.lower() in allowed else None


_READ: dict[str, Callable[[str], Any]] = {
    "activate": _flag,
    "dont_activate": _flag,
    "keep_activate_after_match": _flag,
    "dont_activate_after_match": _flag,
    "ignore_on_max_context": _flag,
    "activate_only_after": _number(0),
    "activate_only_every": _number(1),
    "depth": _number(-MAX_NUMBER),  # below 1 it is behind the newest message
    "scan_depth": _number(0),
    "is_greeting": _number(0),
    "role": _one_of(cast("tuple[str, ...]", get_args(Role))),
    "position": _one_of(cast("tuple[str, ...]", get_args(Section))),
    "additional_keys": _strings,
    "exclude_keys": _strings,
}
