"""Books: read in whichever of the usual encodings, cut into passages that a model can hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from personae.errors import InputError
from personae.records.files import read_bytes
from personae.records.language import written_in
from personae.records.tokens import estimate_tokens

Item = TypeVar("Item")

# The passages of CharacterBox's own data are of this size.
PASSAGE_TOKENS = 3000
FEWEST_TOKENS = 100

# In novels old and new these are a tenth of all characters and more; in noise, one in a thousand.
_COMMON = frozenset("的一是不了在人有我他这之大来以个中上们到说国和地也子时道出而這來個們說國時")
_COMMON_SHARE = 0.03
_SAMPLE = 50_000

_GUTENBERG = re.compile(r"^\*\*\* ?(START|END) OF (?:THE|THIS) PROJECT GUTENBERG.*$", re.MULTILINE)
_NUMERAL = r"(?:[ivxlcdm]+|\d+|one|two|three|four|five|six|seven|eight|nine|ten|the \w+)"
_HEADING = re.compile(
    rf"[ \t#*]*(?:(?:chapter|book|part|volume|act|scene|canto)\s+{_NUMERAL}\b"
    r"|第\s*[\d〇零一二三四五六七八九十百千两]+\s*[章回节節卷部集幕折])[^\n]{0,80}",
    re.IGNORECASE,
)
# From the coarsest break to the finest: blank lines, lines, sentences.
_BREAKS = (
    re.compile(r"\n[ \t\u3000]*\n\s*"),
    re.compile(r"\n\s*"),
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？…][”」』’])|(?<=[。！？])(?![”」』’])"),
)


@dataclass(frozen=True)
class Passage:
    """A part of a book.

    Attributes:
        number: from 0, in the order of the book.
        start, end: where it stands, in characters of the whole text.
        heading: of the chapter that it lies in, if one was found.
    """

    number: int
    start: int
    end: int
    heading: str
    text: str


def read_book(path: Path) -> str:
    """The text of a book in UTF-8, UTF-16 with its mark, or GB 18030 (GBK, GB 2312).

    GB 18030 gives almost any bytes some meaning, Shift JIS and Big5 too, so it is only believed
    where it yields Chinese in which the commonest characters are common.

    Raises:
        InputError: absent, binary, blank, or in an encoding that cannot be told.
    """
    raw = read_bytes(path)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = _decoded(raw, "utf-16")
    else:
        text = _decoded(raw, "utf-8-sig")
        if text is None:
            text = _decoded(raw, "gb18030")
            if text is not None and not _reads_as_chinese(text):
                text = None
    if text is None:
        raise InputError(
            "its encoding is neither UTF-8 nor GB 18030",
            path=path,
            mend="Save it as UTF-8 text",
        )
    if "\0" in text:
        raise InputError("binary data, not text", path=path, mend="Is this the right file?")
    if not text.strip():
        raise InputError("the file is empty", path=path)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _reads_as_chinese(text: str) -> bool:
    sample = text[:_SAMPLE]
    common = sum(c in _COMMON for c in sample)
    return written_in([sample]) == "zh" and common >= _COMMON_SHARE * len("".join(sample.split()))


def _decoded(raw: bytes, encoding: str) -> str | None:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        return None


def passages(
    text: str, *, tokens: int = PASSAGE_TOKENS, overlap: int | None = None
) -> list[Passage]:
    """The passages of a text: whole paragraphs, at most `tokens` each, chapters kept apart.

    A paragraph that is too long is cut at its lines, then at its sentences, then anywhere. A
    chapter begins a passage of its own, unless the one before would be less than half full.
    Between two passages of a chapter the last paragraphs of the one, up to `overlap` tokens (by
    default a tenth), begin the other, so that no scene is lost at the cut.

    Args:
        text: the book.
        tokens: estimated (`estimate_tokens`), the overlap included.
        overlap: 0 for none.

    Raises:
        ValueError: fewer tokens than a scene needs, or an overlap of half a passage or more.
    """
    overlap = tokens // 10 if overlap is None else overlap
    if tokens < FEWEST_TOKENS:
        raise ValueError(f"a passage has at least {FEWEST_TOKENS} tokens")
    if not 0 <= overlap < tokens / 2:
        raise ValueError("the overlap is less than half a passage")
    found: list[Passage] = []
    spans: list[tuple[int, int, int]] = []  # start, end, tokens
    carried = size = 0
    heading = began_under = ""

    def close() -> None:
        start, end = spans[0][0], spans[-1][1]
        found.append(Passage(len(found), start, end, began_under, text[start:end].strip()))

    for start, end in _pieces(text, *_body(text), max(tokens // 8, 20)):
        # With the blank lines before it, and one more for what rounding may hide.
        cost = estimate_tokens(text[spans[-1][1] if spans else start : end]) + 1
        chapter = _HEADING.match(text, start, end)
        full = size + cost > tokens
        if len(spans) > carried and (full or (chapter and size >= tokens / 2)):
            close()
            tail = [] if chapter else _tail(spans, overlap)
            spans, carried = tail, len(tail)
            size = sum(n for _, _, n in spans)
        if chapter:
            heading = " ".join(chapter.group().strip(" \t#*").split())
        if len(spans) == carried:
            began_under = heading
        spans.append((start, end, cost))
        size += cost
    if len(spans) > carried:
        close()
    return found


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """As many of the items as wanted, or all, evenly spread over their order."""
    count = min(count, len(items))
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def _body(text: str) -> tuple[int, int]:
    """Where the book itself begins and ends, without Project Gutenberg's notices."""
    start, end = 0, len(text)
    for mark in _GUTENBERG.finditer(text):
        if mark[1] == "START":
            start = mark.end()
        elif mark.start() > start:
            end = mark.start()
            break
    return start, end


def _tail(spans: list[tuple[int, int, int]], overlap: int) -> list[tuple[int, int, int]]:
    kept: list[tuple[int, int, int]] = []
    left = overlap
    for span in reversed(spans):
        left -= span[2]
        if left < 0:
            break
        kept.insert(0, span)
    return kept


def _pieces(
    text: str, start: int, end: int, limit: int, level: int = 0
) -> Iterator[tuple[int, int]]:
    """The spans of the paragraphs; one above the limit is cut at the next finer break."""
    for begin, stop in _between(text, start, end, level):
        if not text[begin:stop].strip():
            continue
        # A character is estimated at less than a token, so most need no estimate.
        if stop - begin <= limit or estimate_tokens(text[begin:stop]) <= limit:
            yield begin, stop
        elif level + 1 < len(_BREAKS):
            yield from _pieces(text, begin, stop, limit, level + 1)
        else:
            for at in range(begin, stop, limit):
                yield at, min(at + limit, stop)


def _between(text: str, start: int, end: int, level: int) -> Iterator[tuple[int, int]]:
    begin = start
    for mark in _BREAKS[level].finditer(text, start, end):
        yield begin, mark.start()
        begin = mark.end()
    yield begin, end
