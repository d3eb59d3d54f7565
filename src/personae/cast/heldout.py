"""Held-out dialogues as the token rows that are scored: as a method runs, nameless, after a switch.

What is scored must be the same tokens under every method, so a dialogue is cut once, to what fits
under the cast's own prompt; a method whose prompt is longer gets the more room.

**Nameless.** Whose blocks fit a line best is asked under one prompt for all, which names nobody
(prompts/LANGUAGE/cast/nameless.md); in mode `speaker` every speaker is a letter. What is said may
still hold the name; such dialogues are marked (`Unit.named`).

Nothing here needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from personae.cast.encode import Encoded, encode
from personae.cast.forgetting import own_words, profile_text
from personae.cast.layout import Layout, system_text
from personae.cast.names import HAN
from personae.prompts import render
from personae.records import Character, Failure, Language
from personae.records.cast import CastCharacter, CastRow, CastTurn, Mode

if TYPE_CHECKING:
    from personae.cast.baselines import Retriever
    from personae.cast.evaluate import Voices, Weights

Row = tuple[Encoded, "Weights | Voices"]
"""What is scored, and what speaks there."""


class UnscoredError(Exception):
    """A line cannot be scored; says why."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(cause=cause, detail=detail)


@dataclass(frozen=True)
class Unit:
    """What one character says in one held-out dialogue.

    Attributes:
        number: of the row, from 1.
        row: cut to what fits.
        cut: turns that are cut off its front.
        named: one of its names stands in what is said.
        failure: why it cannot be scored under any method.
    """

    number: int
    row: CastRow
    character: str
    cut: int = 0
    named: bool = False
    failure: Failure | None = None


@dataclass(frozen=True)
class Switch:
    """The first line of a character after another one's.

    Attributes:
        turn: of the row as it was given, from 1.
        before: what was said before it, as far as it fits; the earlier character's turn among it.
        since: what was said since that turn; nobody of the cast speaks in it.
    """

    number: int
    row: CastRow
    character: str
    previous: str
    turn: int
    before: tuple[CastTurn, ...] = ()
    since: tuple[CastTurn, ...] = ()
    line: CastTurn | None = None
    failure: Failure | None = None


class Way(Protocol):
    """How a method speaks as a character: which prompt, which blocks."""

    @property
    def tells(self) -> bool:
        """Whether it has something of each character that can be exchanged for another's."""
        ...

    def knows(self, name: str) -> bool:
        """Whether it can speak as that character."""
        ...

    def own(self, unit: Unit) -> list[Row]:
        """The unit as the method runs; the sum over the rows is its likelihood."""
        ...

    def fit(self, unit: Unit, other: str) -> list[Row]:
        """The unit under the nameless prompt, through what is `other`'s."""
        ...

    def switch(self, switch: Switch, *, without: bool = False, previous: bool = False) -> list[Row]:
        """The line after a switch.

        Args:
            without: without all that came before `since`.
            previous: through what is the earlier character's.
        """
        ...


def units_of(
    rows: Sequence[CastRow],
    characters: Sequence[CastCharacter],
    layout: Layout,
    mode: Mode,
    max_tokens: int,
    *,
    cards: Mapping[str, Character] | None = None,
) -> tuple[list[Unit], list[Switch]]:
    """All that a cast is asked about held-out rows: dialogues by character, and switches."""
    known = {one.name: _names_of(one, (cards or {}).get(one.name)) for one in characters}
    units: list[Unit] = []
    switches: list[Switch] = []
    for number, row in enumerate(rows, 1):
        ours = tuple(name for name in row.characters if name in known)
        if not ours:
            continue
        row = row.model_copy(update={"characters": ours})  # noqa: PLW2901
        units += [_unit(number, row, n, known[n], layout, mode, max_tokens) for n in ours]
        switches += _switches(number, row, layout, mode, max_tokens)
    return units, switches


def _unit(
    number: int,
    row: CastRow,
    name: str,
    names: re.Pattern[str] | None,
    layout: Layout,
    mode: Mode,
    limit: int,
) -> Unit:
    whole = row if mode == "speaker" else row.model_copy(update={"characters": (name,)})
    last = max(n for n, turn in enumerate(whole.turns) if turn.speaker in whole.characters)
    try:
        made = encode(whole, layout, mode, limit)
        if not made or not own_words(made[0], name).learnt:
            raise _too_long(limit)
        cut = made[0].cut
        kept = whole.turns[cut : last + 1]
        if cut and not _fits(whole, kept, layout, mode, limit):  # the last line alone is too long
            raise _too_long(limit)
    except UnscoredError as error:
        return Unit(number, whole, name, failure=error.failure)
    speaks = {turn.speaker for turn in kept}
    short = whole.model_copy(
        update={"turns": kept, "characters": tuple(c for c in whole.characters if c in speaks)}
    )
    named = names is not None and any(names.search(turn.text) for turn in kept)
    return Unit(number, short, name, cut, named)


def _fits(row: CastRow, turns: Sequence[CastTurn], layout: Layout, mode: Mode, limit: int) -> bool:
    speaks = {turn.speaker for turn in turns}
    names = tuple(c for c in row.characters if c in speaks)
    if not names:
        return False
    made = encode(
        row.model_copy(update={"turns": tuple(turns), "characters": names}), layout, mode, limit
    )
    return bool(made) and not made[0].cut


def _too_long(limit: int) -> UnscoredError:
    return UnscoredError("context_length", f"it has more than {limit:,} tokens")


def _switches(
    number: int, row: CastRow, layout: Layout, mode: Mode, limit: int
) -> Iterator[Switch]:
    """The lines of characters of the cast whose predecessor on the stage is another of the cast."""
    last: int | None = None
    for n, turn in enumerate(row.turns):
        if turn.speaker is None:
            continue
        if last is not None and turn.speaker in row.characters:
            previous = row.turns[last].speaker
            if previous != turn.speaker and previous in row.characters:
                yield _switch(number, row, n, last, layout, mode, limit)
        last = n


def _switch(
    number: int, row: CastRow, at: int, last: int, layout: Layout, mode: Mode, limit: int
) -> Switch:
    line, earlier = row.turns[at], row.turns[last]
    assert line.speaker is not None
    assert earlier.speaker is not None
    own = row if mode == "speaker" else row.model_copy(update={"characters": (line.speaker,)})
    start = 0
    while start <= last and not _fits(own, row.turns[start : at + 1], layout, mode, limit):
        start += 1
    return Switch(
        number,
        row,
        line.speaker,
        earlier.speaker,
        at + 1,
        row.turns[start:at],
        row.turns[last + 1 : at],
        line,
        _too_long(limit).failure if start > last else None,
    )


@dataclass(frozen=True)
class Blocks:
    """A method of blocks: trained rows' own prompt, each character through its weights.

    Attributes:
        weights: by character; who is not in it was not trained.
        profiles: of characters who are told theirs (`CastCharacter.how` is `profile`).
        room: most tokens that the model takes.
    """

    layout: Layout
    mode: Mode
    room: int
    weights: Mapping[str, Weights]
    profiles: Mapping[str, str]
    tells: bool = True

    def knows(self, name: str) -> bool:
        """See `Way`."""
        return name in self.weights

    def own(self, unit: Unit) -> list[Row]:
        """See `Way`."""
        return self._rows(unit.row, unit.character, unit.character)

    def fit(self, unit: Unit, other: str) -> list[Row]:
        """See `Way`."""
        return self._rows(unit.row, unit.character, other, nameless=True)

    def switch(self, switch: Switch, *, without: bool = False, previous: bool = False) -> list[Row]:
        """See `Way`."""
        row = _row_of(switch, without)
        through = switch.previous if previous else switch.character
        return [(_last(e), w) for e, w in self._rows(row, switch.character, through)]

    def _rows(self, row: CastRow, name: str, through: str, *, nameless: bool = False) -> list[Row]:
        if through not in self.weights:
            raise UnscoredError("not_trained", f"{through} has no training rows")
        if self.mode == "full":
            system = row.system
            if nameless:
                system = nameless_text(row.language, self.profiles.get(through, ""))
            elif profile := self.profiles.get(name):
                system = system_text(name, row.language, profile)
            update = {"characters": (name,), "system": system}
            made = encode(row.model_copy(update=update), self.layout, "full", self.room)
            return [(self._whole(made), self.weights[through])]
        speaks = {turn.speaker for turn in row.turns}
        names = tuple(c for c in row.characters if c in speaks)
        label = dict(zip(names, _letters(len(names)), strict=True)) if nameless else {}
        turns = tuple(
            t.model_copy(update={"speaker": label.get(t.speaker or "", t.speaker)})
            for t in row.turns
        )
        called = tuple(label.get(c, c) for c in names)
        scene = row.model_copy(update={"turns": turns, "characters": called})
        voices = {label.get(c, c): self.weights[c] for c in names if c in self.weights}
        mine = label.get(name, name)
        made = encode(scene, self.layout, "speaker", self.room)
        return [(own_words(self._whole(made), mine), {**voices, mine: self.weights[through]})]

    def _whole(self, made: Sequence[Encoded]) -> Encoded:
        if not made or made[0].cut:
            raise _too_long(self.room)
        return made[0]


@dataclass(frozen=True)
class Prompted:
    """A method of prompts: the character's profile, or pieces of it, and no blocks.

    Attributes:
        cards: by character.
        retrieves: the prompt holds what fits the question, and is made anew for every line; else
            the whole profile, once.
    """

    layout: Layout
    room: int
    cards: Mapping[str, Character]
    retrieves: bool = False
    tells: bool = True

    def knows(self, name: str) -> bool:
        """See `Way`."""
        return name in self.cards

    def own(self, unit: Unit) -> list[Row]:
        """See `Way`."""
        return self._rows(unit.row, unit.character, unit.character, nameless=False)

    def fit(self, unit: Unit, other: str) -> list[Row]:
        """See `Way`."""
        return self._rows(unit.row, unit.character, other, nameless=True)

    def switch(self, switch: Switch, *, without: bool = False, previous: bool = False) -> list[Row]:
        """See `Way`."""
        row = _row_of(switch, without)
        through = switch.previous if previous else switch.character
        made = self._rows(row, switch.character, through, nameless=False, only_last=True)
        return [(_last(encoded), weights) for encoded, weights in made]

    def _rows(
        self, row: CastRow, name: str, through: str, *, nameless: bool, only_last: bool = False
    ) -> list[Row]:
        if through not in self.cards:
            raise UnscoredError("no_card", f"{through} has no card, so there is no profile")
        if not self.retrieves:
            made = self._encoded(row, name, through, self._profiles[through], nameless)
            return [(_last(made) if only_last else made, {})]
        rows: list[Row] = []
        own = [n for n, turn in enumerate(row.turns) if turn.speaker == name]
        for n in own[-1:] if only_last else own:
            pieces = self._retrievers[through].top(_asked(row, n), answer=row.turns[n].text)
            until = row.model_copy(update={"turns": row.turns[: n + 1]})
            made = self._encoded(until, name, through, "\n".join(pieces), nameless)
            rows.append((_last(made), {}))
        return rows

    def _encoded(
        self, row: CastRow, name: str, through: str, profile: str, nameless: bool
    ) -> Encoded:
        system = (
            nameless_text(row.language, profile)
            if nameless
            else system_text(through, row.language, profile)
        )
        update = {"characters": (name,), "system": system}
        made = encode(row.model_copy(update=update), self.layout, "full", self.room)
        if not made or made[0].cut:
            raise _too_long(self.room)
        return made[0]

    @cached_property
    def _profiles(self) -> dict[str, str]:
        return {name: profile_text(card) for name, card in self.cards.items()}

    @cached_property
    def _retrievers(self) -> dict[str, Retriever]:
        from personae.cast.baselines import Retriever

        return {name: Retriever(card) for name, card in self.cards.items()}


def nameless_text(language: Language, profile: str = "") -> str:
    """The system message that names nobody."""
    (message,) = render("cast/nameless", language, profile=profile.strip())
    return message.content


def _asked(row: CastRow, at: int) -> str:
    """What was said since the speaker of a turn spoke last."""
    said: list[str] = []
    for turn in reversed(row.turns[:at]):
        if turn.speaker == row.turns[at].speaker:
            break
        said.append(turn.text)
    return "\n".join(reversed(said))


def asked_before(row: CastRow, name: str) -> str:
    """What was said before a character's first line; "" where it speaks first."""
    first = next(n for n, turn in enumerate(row.turns) if turn.speaker == name)
    return _asked(row, first)


def _row_of(switch: Switch, without: bool) -> CastRow:
    """The line after a switch, with all that was said before it, or without the other's part."""
    assert switch.line is not None
    turns = (*(switch.since if without else switch.before), switch.line)
    return switch.row.model_copy(update={"turns": turns})


def _last(encoded: Encoded) -> Encoded:
    """The row with its last answer alone to be predicted."""
    end = max(n for n, wanted in enumerate(encoded.supervised) if wanted)
    start = end
    while encoded.supervised[start - 1]:
        start -= 1
    return replace(
        encoded, supervised=tuple(start <= n <= end for n in range(len(encoded.supervised)))
    )


def _letters(count: int) -> list[str]:
    """A, B, ..., Z, AA, AB, ...: names that are nobody's."""
    made = []
    for n in range(count):
        text, rest = "", n
        while rest >= 0:
            text, rest = chr(ord("A") + rest % 26) + text, rest // 26 - 1
        made.append(text)
    return made


def _names_of(character: CastCharacter, card: Character | None) -> re.Pattern[str] | None:
    """A pattern of all that a character is called: whole names, and their words of 3 letters up."""
    names = {character.name, *character.aliases}
    if card is not None:
        names |= {card.name, card.called}
    parts = set()
    for name in names:
        found = [word for word in re.findall(r"\w+", name) if len(word) >= 3]
        parts |= {name, *found} if not re.search(f"[{HAN}]", name) else {name}
    known = sorted((re.escape(p) for p in parts if p.strip()), key=len, reverse=True)
    if not known:
        return None
    # Han stands without spaces, so only Latin words have borders.
    return re.compile(
        "|".join(p if re.search(f"[{HAN}]", p) else rf"(?<!\w){p}(?!\w)" for p in known),
        re.IGNORECASE,
    )
