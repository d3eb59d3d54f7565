"""What makes an entry of a lorebook fire: keys as text or as patterns, tried under a time limit.

Text keys are found anywhere (Character Card V3, "keys": the chat log *contains* one), so that they
serve Chinese, which has no spaces, and the stems that authors of cards write ("wizard" for
"wizards"). Whole words are asked for per entry, as SillyTavern does.

Patterns are JavaScript's, since that is where cards come from. Python's `re` cannot be stopped,
and a linear-time engine (RE2) lacks the look-arounds and back-references that such keys use: hence
the library `regex`, whose matcher gives up after a time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from time import process_time  # what `regex` counts
from typing import Any, Literal

import regex

from personae.records.base import Record

Syntax = Literal["text", "pattern", "slashed"]

# A pattern of this length takes 20 ms to compile at the worst, so all of a book a second.
MAX_PATTERN_CHARS = 1_000
MAX_PATTERNS = 1_000
MAX_BOOK_PATTERN_CHARS = 50_000
KEY_SECONDS = 0.25
ALL_SECONDS = 1.0
# What text keys may read in an activation, and what a look at a text costs beside its length: a
# second or two at the worst. A count and not a time, so that it ends at the same key everywhere.
MAX_READ_CHARS = 500_000_000
LOOK_CHARS = 64
# As SillyTavern reads them: a slash inside must be escaped.
_SLASHED = re.compile(r"/((?:[^/\\]|\\.)+)/([gimsuy]*)", re.DOTALL)
_JAVASCRIPT = re.compile(
    r"\\k<(?P<group>\w+)>|\\u\{(?P<code>[0-9A-Fa-f]{1,6})\}|(?P<any>\[\^\])|\\.", re.DOTALL
)
_ASCII_CLASS = re.compile(r"\\[bBwWdD]")


class KeyTrouble(Record):
    """A key that cannot do its work.

    Attributes:
        what: an `invalid` pattern, one `too_long`, one `too_many` for a book, one that ran into
            the time limit, or the first text key for which there was `too_much` to read.
    """

    key: str
    what: Literal["invalid", "too_long", "too_many", "timeout", "too_much"]
    detail: str = ""


_UNREAD = KeyTrouble(
    key="",
    what="too_much",
    detail=f"no text key is looked for beyond {MAX_READ_CHARS:,} characters of texts",
)


@dataclass(frozen=True)
class Heard:
    """A text to be searched, in the spellings that keys are compared in."""

    raw: str
    exact: str
    folded: str

    @classmethod
    def of(cls, text: str) -> Heard:
        """The text with composed letters, and once more without case."""
        exact = unicodedata.normalize("NFC", text)
        return cls(raw=text, exact=exact, folded=exact.casefold())


@dataclass
class Allowance:
    """How much one activation may still take, and what went wrong.

    Attributes:
        left: for patterns, in seconds of processor time of this process, as the library counts.
        characters: for text keys, to be read.
        stopped: patterns that used up their time.
        ended_at: the text key at which the characters were used up.
    """

    left: float = ALL_SECONDS
    characters: int = MAX_READ_CHARS
    stopped: dict[str, KeyTrouble] = field(default_factory=dict)
    ended_at: Key | None = None

    def trouble(self, key: Key) -> KeyTrouble | None:
        """What kept this very key from being found."""
        if key.pattern is not None:
            return self.stopped.get(key.source)
        return _UNREAD.model_copy(update={"key": key.source}) if self.ended_at is key else None


@dataclass
class Room:
    """How many patterns a book may still have, and how long they may be together."""

    patterns: int = MAX_PATTERNS
    characters: int = MAX_BOOK_PATTERN_CHARS


@dataclass(frozen=True)
class Key:
    """One key, ready to be looked for. `trouble` says why it never will be found."""

    source: str
    needle: str = ""
    pattern: Any = None
    sticky: bool = False
    case_sensitive: bool = False
    whole_words: bool = False
    trouble: KeyTrouble | None = None

    def within(self, heard: Sequence[Heard], allowance: Allowance) -> int | None:
        """The index of the last text that holds the key, None if none does.

        A pattern that uses up its time counts as not found, for this activation, and is noted in
        the allowance.
        """
        if self.trouble is not None:
            return None
        if self.pattern is None:
            return self._text_within(heard, allowance)
        if self.source in allowance.stopped:
            return None
        left = min(KEY_SECONDS, allowance.left)
        before = left
        found = None
        try:
            for n in range(len(heard) - 1, -1, -1):
                if left <= 0:
                    raise TimeoutError
                started = process_time()
                look = self.pattern.match if self.sticky else self.pattern.search
                hit = look(heard[n].raw, timeout=left, concurrent=True)
                left -= process_time() - started
                if hit is not None:
                    found = n
                    break
        except (TimeoutError, MemoryError, RecursionError):
            left = 0.0
            allowance.stopped[self.source] = KeyTrouble(
                key=self.source,
                what="timeout",
                detail=f"no answer within {before:g} s"
                if allowance.left > 0
                else f"the {ALL_SECONDS:g} s for all patterns were used up",
            )
        allowance.left -= before - left
        return found

    def _text_within(self, heard: Sequence[Heard], allowance: Allowance) -> int | None:
        if not self.needle or allowance.characters < 0:
            return None
        for n in range(len(heard) - 1, -1, -1):
            text = heard[n].exact if self.case_sensitive else heard[n].folded
            allowance.characters -= len(text) + LOOK_CHARS
            if allowance.characters < 0:
                allowance.ended_at = self
                return None
            if (_has_word if self.whole_words else str.__contains__)(text, self.needle):
                return n
        return None


def key_of(
    text: str,
    *,
    syntax: Syntax,
    room: Room,
    case_sensitive: bool = False,
    whole_words: bool = False,
) -> Key:
    """A key made ready.

    Args:
        syntax: `text`; `pattern`, bare or as `/pattern/flags`; `slashed` is a pattern where it is
            written as `/pattern/flags`, and text otherwise (SillyTavern).
        room: of the book; a pattern takes one from it.
        case_sensitive: also of bare patterns; those in slashes have the flag `i` for it.
        whole_words: no letter or digit may follow or precede a single word. As in SillyTavern, a
            key of several words is found anywhere; Chinese characters need no border.
    """
    text = text.strip()
    slashed = _SLASHED.fullmatch(text)
    if syntax == "pattern" or (syntax == "slashed" and slashed):
        body, flags = (slashed[1], slashed[2]) if slashed else (text, "" if case_sensitive else "i")
        if not body:
            return Key(source=text)
        if room.patterns <= 0 or room.characters < len(body) <= MAX_PATTERN_CHARS:
            return Key(source=text, trouble=KeyTrouble(key=text, what="too_many"))
        room.patterns -= 1
        room.characters -= len(body) if len(body) <= MAX_PATTERN_CHARS else 0
        compiled = _compiled(body, "".join(sorted(set(flags) & set("ims"))))
        if not isinstance(compiled, str):
            return Key(source=text, pattern=compiled, sticky="y" in flags)
        if syntax == "pattern" or compiled == "too_long":
            what: Literal["invalid", "too_long"] = (
                "too_long" if compiled == "too_long" else "invalid"
            )
            return Key(source=text, trouble=KeyTrouble(key=text, what=what, detail=compiled))
    needle = unicodedata.normalize("NFC", text)
    return Key(
        source=text,
        needle=needle if case_sensitive else needle.casefold(),
        case_sensitive=case_sensitive,
        whole_words=whole_words and len(needle.split()) == 1,
    )


@lru_cache(maxsize=4096)
def _compiled(body: str, flags: str) -> Any:
    r"""A compiled pattern, or what is wrong with it.

    JavaScript's `\b`, `\w` and `\d` know ASCII only, so that `/\bdragon\b/` finds the word
    between Chinese characters; but its flag `i` knows all letters.
    """
    if len(body) > MAX_PATTERN_CHARS:
        return "too_long"
    wanted = regex.VERSION0
    for flag, value in (("i", regex.IGNORECASE), ("m", regex.MULTILINE), ("s", regex.DOTALL)):
        wanted |= value if flag in flags else 0
    other_letters = any(ord(c) > 127 and c.upper() != c.lower() for c in body)
    if _ASCII_CLASS.search(body) and not ("i" in flags and other_letters):
        wanted |= regex.ASCII
    try:
        return regex.compile(_JAVASCRIPT.sub(_in_python, body), wanted)
    except (regex.error, RecursionError, OverflowError, ValueError, MemoryError) as error:
        return str(error) or type(error).__name__


def _in_python(match: re.Match[str]) -> str:
    if match["group"]:
        return f"(?P={match['group']})"
    if match["code"]:
        code = int(match["code"], 16)
        return regex.escape(chr(code)) if code < 0x110000 else match[0]
    return r"[\s\S]" if match["any"] else match[0]


def _has_word(text: str, word: str) -> bool:
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        before, after = text[start - 1 : start], text[end : end + 1]
        if not (_joins(before, word[0]) or _joins(after, word[-1])):
            return True
        start = text.find(word, start + 1)
    return False


def _joins(neighbour: str, edge: str) -> bool:
    """Whether a character beside a word makes it a part of a longer one."""
    return _in_word(neighbour) and not _is_wide(edge)


def _in_word(char: str) -> bool:
    return bool(char) and (char == "_" or char.isalnum()) and not _is_wide(char)


def _is_wide(char: str) -> bool:
    """Of a script that is written without spaces (Chinese, Japanese; as tokens are estimated)."""
    return ord(char) > 0x2E80
