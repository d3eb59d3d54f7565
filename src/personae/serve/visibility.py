"""Who perceived which message of a group chat, told before a prompt is made.

The rule of plays (`world.observe`) for chats: what a character did not perceive never reaches its
prompt. It is code, not a request to a model, and where it cannot be told who was meant, the request
is refused, since a guess might let a whisper out.

A message's perceivers are told by its field `perceived_by`, or, where a chat program cannot add
fields, by how the text begins: `[to NAME, NAME]`. Who says it is told by `name`, or by `NAME: `
before the text, as SillyTavern writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from personae.cast.bearers import Bearers, bare_name, parts
from personae.characters.prompt import plain_name
from personae.errors import BadRequestError
from personae.prompts import render
from personae.records import Secret
from personae.records.cast import MAX_NAME, CastTurn
from personae.records.language import written_in
from personae.serve.engine import ChatMessage

PERSON = "user"
"""Whom `[to user]` means: the person, whose name a chat need not give."""
MOST_NAMED = 64
"""Names between the brackets of one whisper."""
MOST_PEOPLE = 2000
"""Who is not of the cast and is named in one chat."""
MOST_MARKS = 1000
"""What looks like the mark of a whisper in one message, and is none."""
_SHOWN = 20  # of those whom an error names

_SPACE = " \t\u00a0\u3000\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_MARKUP = "*_~\"'“”‘’「『(（"
_LEAD = re.compile(rf"[\s{_SPACE}{_MARKUP}]*+")
_LEAD_IN_LINE = re.compile(rf"[{_SPACE}{_MARKUP}]*+")
_SPEAKER = re.compile(rf"([^\n:：\[\]［］【】]{{1,{MAX_NAME + 8}}})[:：]")
_TO = re.compile(
    rf"[\[［【][{_SPACE}]*+(?:(?:to|ｔｏ)(?P<glued>[a-z0-9-])?+|私语|密语)"
    r"(?P<names>[^\[\]［］【】\n]*+)(?P<end>[\]］】])?+",
    re.IGNORECASE,
)
# What is not seen and may stand inside a word: soft hyphens, joiners, marks of direction, variation
# selectors, tags.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e01ef]"
)
_AFTER_TO = re.compile(rf"[:：,，]?[\s{_SPACE}]*+")
_COMMA = re.compile(r"[,，、;；&]")


@dataclass(frozen=True)
class Line:
    """A message, or one speaker's part of it, and who perceived it.

    Attributes:
        number: of the message, from 0.
        speaker: whose words they are: a character by its name in the cast, somebody else by the
            name that the chat gives. None: the person, or of an assistant's message whoever
            answers.
        of_cast: whether `speaker` is of the cast.
        text: without speaker and addressees.
        to: to whom it was whispered, as they are called; () is said openly.
        perceived_by: the characters of the cast who did, the speaker included; None: everybody.
    """

    number: int
    role: Literal["system", "user", "assistant"]
    speaker: str | None
    of_cast: bool
    text: str
    to: tuple[str, ...] = ()
    perceived_by: frozenset[str] | None = None

    @property
    def of_whoever_answers(self) -> bool:
        """Whether nobody says whose it is, so that it is the answering character's own."""
        return self.role == "assistant" and self.speaker is None


def read_lines(messages: Sequence[ChatMessage], bearers: Bearers) -> tuple[Line, ...]:
    """The messages of a chat with their speakers, in order.

    Raises:
        BadRequestError: a whisper names nobody, or somebody who is not there; a name is borne by
            several; a whisper begins in the middle of a message; there are too many people.
    """
    company = _Company(bearers, _others(messages))
    return tuple(line for n, one in enumerate(messages) for line in _read(n, one, company))


def perceived(lines: Iterable[Line], character: str) -> tuple[Line, ...]:
    """Those that a character perceived.

    Raises:
        BadRequestError: nobody says whose words a whisper of the assistant are, so that it cannot
            be told whether they are the character's own or another's.
    """
    found = []
    for line in lines:
        here = line.perceived_by is None or character in line.perceived_by
        if here:
            found.append(line)
        if line.of_whoever_answers and (not here or character in line.to):
            raise BadRequestError(
                f"messages[{line.number}]: a message of an assistant that not everybody perceived, "
                "and nothing says whose words it is: give it the speaker's `name`"
            )
    return tuple(found)


def known(secrets: Iterable[Secret], character: str, bearers: Bearers) -> tuple[Secret, ...]:
    """The secrets of a chat that a character knows.

    Raises:
        BadRequestError: a name is borne by several.
    """
    company = _Company(bearers, ())
    return tuple(
        secret
        for secret in secrets
        if any(company.character(name, "a secret") == character for name in secret.known_by)
    )


def as_turns(lines: Iterable[Line], character: str) -> tuple[str | None, tuple[CastTurn, ...]]:
    """What a character perceived, as the system message and the turns of a dialogue.

    System messages before the first utterance are one; a later one is told as the person's words.
    Messages without words are left out.

    Returns:
        the system message, None where there is none, and the turns.
    """
    told: list[str] = []
    turns: list[CastTurn] = []
    for line in lines:
        text = line.text.strip()
        if not text:
            continue
        if line.role == "system":
            text = text if line.speaker is None else f"{line.speaker}: {text}"
            if turns:
                turns.append(CastTurn(text=text))
            else:
                told.append(text)
            continue
        if line.to:
            language = written_in([text])
            (message,) = render("serve/whisper", language, names=line.to, text=text)
            text = message.content
        if line.of_whoever_answers:
            turns.append(CastTurn(speaker=character, text=text))
        elif line.of_cast or line.role == "assistant":
            turns.append(CastTurn(speaker=line.speaker, text=text))
        else:
            said = text if line.speaker is None else f"{line.speaker}: {text}"
            turns.append(CastTurn(text=said))
    return ("\n\n".join(told) if told else None), tuple(turns)


# Names -----------------------------------------------------------------------------------------


class _Company:
    """Who there is in a chat: the characters of the cast, and whom its messages name."""

    def __init__(self, bearers: Bearers, others: Iterable[str]) -> None:
        self._bearers = bearers
        self._others = {plain_name(n): n for n in (PERSON, *others) if not bearers.spelt(n)}
        if len(self._others) > MOST_PEOPLE:
            raise BadRequestError(f"the messages name more than {MOST_PEOPLE} people")
        self._bare = {bare_name(name): name for name in self._others.values()}

    @cached_property
    def _runs(self) -> dict[str, set[str]]:
        """Of the others, by parts of their names."""
        found: dict[str, set[str]] = {}
        for name in self._others.values():
            for run in parts(name):
                found.setdefault(run, set()).add(name)
        return found

    def character(self, name: str, place: str) -> str | None:
        """The character of the cast that goes by a name; None: nobody of it."""
        found = self._bearers.spelt(name)
        if len(found) > 1:
            raise _several(place, name, found)
        return found[0] if found else None

    def meant(self, name: str, place: str) -> tuple[str, bool] | None:
        """Whom a person means who writes this: the name, and whether it is of the cast."""
        exact = self.character(name, place)
        if exact is not None:
            return exact, True
        other = self._others.get(plain_name(name)) or self._bare.get(bare_name(name))
        if other is not None:
            return other, False
        cast, others = self._bearers.by_part(name), self._runs.get(plain_name(name), set())
        if len(cast) + len(others) > 1:
            raise _several(place, name, (*cast, *sorted(others)))
        if cast:
            return cast[0], True
        return (min(others), False) if others else None

    def __str__(self) -> str:
        return ", ".join((*self._bearers.names, *list(self._others.values())[:_SHOWN]))


def _several(place: str, name: str, found: Iterable[str]) -> BadRequestError:
    return BadRequestError(
        f"{place}: {name[:MAX_NAME]!r} may be {' or '.join(found)}: give the whole name"
    )


def _others(messages: Sequence[ChatMessage]) -> Iterator[str]:
    """Whom the messages name as having spoken or perceived something."""
    for one in messages:
        if one.role == "system":
            continue
        yield from sorted(one.perceived_by or ())
        if one.name is not None:
            yield _one_line(one.name)
        opening = _opening(one.content)
        if opening.speaker and (one.role == "user" or opening.to is not None):
            yield opening.speaker


def _one_line(name: str) -> str:
    return " ".join(name.split())[:MAX_NAME]


# Texts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opening:
    """How a text begins: `SPEAKER: [to NAMES]`, each part where it is there, in either order.

    Attributes:
        speaker: what stands before a colon.
        first: it stands before the brackets, or there are none.
        to: the brackets.
        rest: what comes after both.
        words: what comes after the brackets, the speaker left where it was.
    """

    speaker: str | None
    first: bool
    to: re.Match[str] | None
    rest: str
    words: str


def _opening(text: str, *, whispers: bool = True) -> _Opening:
    """Args: whispers: whether brackets are looked for."""
    start = _end(_LEAD, text)
    lead = "".join(c for c in text[:start] if c in _MARKUP)
    to = _TO.match(text, start) if whispers else None
    if to is not None:
        words = lead + _after(text[to.end() :])
        later = _opening(words, whispers=False)
        return _Opening(later.speaker, False, to, later.rest, words)
    named = _SPEAKER.match(text, start)
    speaker = _one_line(named[1].strip(_MARKUP + _SPACE)) if named is not None else ""
    if named is None or not speaker:
        return _Opening(None, False, None, text, text)
    behind = _end(_LEAD_IN_LINE, text, named.end())
    to = _TO.match(text, behind) if whispers else None
    if to is not None:
        marks = "".join(c for c in text[named.end() : behind] if c in _MARKUP)
        rest = marks + _after(text[to.end() :])
        return _Opening(speaker, True, to, rest, f"{speaker}: {rest}")
    # "**Ada:** Good evening."
    rest = text[named.end() :].removeprefix(lead).strip()
    return _Opening(speaker, True, None, rest, text)


def _read(number: int, message: ChatMessage, company: _Company) -> Iterator[Line]:
    place = f"messages[{number}]"
    opening = _opening(message.content)
    names: tuple[tuple[str, bool], ...] = ()
    if opening.to is not None:
        names = _named(opening.to, company, place)
        if not names:
            opening = _opening(message.content, whispers=False)
    name = None if message.name is None else _one_line(message.name) or None
    perceiving = _perceiving(message, names, company, place)
    if message.role == "system":
        _no_other_whisper(opening.words, company, place)
        yield Line(number, "system", name, False, opening.words, (), perceiving)
        return
    speaker, of_cast, text = _speaker(name, opening, company, place)
    _no_other_whisper(text, company, place)
    role: Literal["user", "assistant"] = "assistant" if message.role == "assistant" else "user"
    to = tuple(called for called, _ in names)
    said = [(speaker, text)]
    if role == "assistant" and of_cast and speaker is not None and name is None and not to:
        said = _merged(speaker, text, company, place)
    for who, words in said:
        own = frozenset({who}) if of_cast and who is not None else frozenset()
        yield Line(
            number, role, who, of_cast, words, to, None if perceiving is None else perceiving | own
        )


def _speaker(
    name: str | None, opening: _Opening, company: _Company, place: str
) -> tuple[str | None, bool, str]:
    """Who says it, whether that is one of the cast, and what is said."""
    before = opening.speaker
    found = None if before is None else company.character(before, place)
    if name is not None:
        who = company.character(name, place)
        if before is None:
            same = False
        elif found is not None:
            same = found == who
        else:
            same = bare_name(before) == bare_name(name)
        return who or name, who is not None, opening.rest if same else opening.words
    # "[to Ada] Wu Song: never trust him." is not said by Wu Song, who would overhear it.
    if not opening.first or before is None:
        return None, False, opening.words
    if found is not None:
        return found, True, opening.rest
    if opening.to is not None:
        return before, False, opening.rest  # who whispers is somebody, known or not
    return None, False, opening.words


def _merged(speaker: str, text: str, company: _Company, place: str) -> list[tuple[str | None, str]]:
    """The lines of several characters that a chat program has sent as one message."""
    first, *others = text.split("\n\n")
    said = [(speaker, [first])]
    for paragraph in others:
        named = _SPEAKER.match(paragraph)
        who = None if named is None else company.character(named[1], place)
        if named is not None and who is not None:
            said.append((who, [paragraph[named.end() :].strip()]))
        else:
            said[-1][1].append(paragraph)
    return [(who, "\n\n".join(paragraphs)) for who, paragraphs in said]


def _perceiving(
    message: ChatMessage, names: tuple[tuple[str, bool], ...], company: _Company, place: str
) -> frozenset[str] | None:
    """Of the cast; None: everybody. Field and text together: who is in both."""
    made: frozenset[str] | None = None
    if message.perceived_by is not None:
        found = {company.character(name, place) for name in message.perceived_by}
        made = frozenset(name for name in found if name is not None)
    if names:
        meant = frozenset(name for name, of_cast in names if of_cast)
        made = meant if made is None else made & meant
    return made


def _named(to: re.Match[str], company: _Company, place: str) -> tuple[tuple[str, bool], ...]:
    """Whom a whisper is for; () where the text only looks like one ("[today]")."""
    names, shown = _names(to), to[0][:80]
    if to["glued"] and not any(company.meant(name, place) for name in _split(names)):
        return ()
    if to["end"] is None:
        raise BadRequestError(f"{place}: {shown!r} has no end: write [to NAME] or [to NAME, NAME]")
    whole = company.meant(names, place) if names else None
    if whole is not None:  # "Holmes, Sherlock"
        return (whole,)
    given = _split(names)
    if not given:
        raise BadRequestError(f"{place}: {shown!r} names nobody: write [to NAME] before a whisper")
    if len(given) > MOST_NAMED:
        raise BadRequestError(f"{place}: a whisper to more than {MOST_NAMED}")
    found = []
    for name in given:
        one = company.meant(name, place)
        if one is None:
            raise BadRequestError(
                f"{place}: {shown!r} is a whisper to {name[:MAX_NAME]!r}, and nobody here goes by "
                f"that name; there are {company}"
            )
        found.append(one)
    return tuple(dict.fromkeys(found))


def _names(to: re.Match[str]) -> str:
    return ((to["glued"] or "") + to["names"]).strip(_SPACE + ":：_-–—")


def _split(names: str) -> list[str]:
    return [name.strip() for name in _COMMA.split(names, MOST_NAMED + 1) if name.strip()]


def _no_other_whisper(text: str, company: _Company, place: str) -> None:
    """Refuse a whisper in the middle: some programs send several messages as one.

    Or behind something that is no speaker's name (`> `, `12:30 `), or with what nobody sees in it:
    read as text it would be heard by everybody.
    """
    looked_at: set[str] = set()
    for to in _TO.finditer(_UNSEEN.sub("", text)):
        names = _names(to)
        if names in looked_at:
            continue
        looked_at.add(names)
        if len(looked_at) > MOST_MARKS:
            raise BadRequestError(f"{place}: more than {MOST_MARKS} marks that look like whispers")
        if any(company.meant(name, place) for name in _split(names)):
            raise BadRequestError(
                f"{place}: {to[0][:80]!r} stands in the middle of a message; a whisper is a "
                "message of its own and begins with it (where a chat program sends several "
                "messages as one, switch that off)"
            )


def _after(text: str) -> str:
    return text[_end(_AFTER_TO, text) :]


def _end(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Where something ends that may be nothing."""
    found = pattern.match(text, start)
    return start if found is None else found.end()
