"""Training dialogues as token ids: what is to be predicted, and whose tokens they are.

The ids are those that generation sees for the same dialogue (`cast.layout`). Only a character's own
words and the end of its turn are supervised; the loss is on nothing else.

A dialogue that is too long loses turns from its front, whole ones, and keeps the system message;
how many is told (`Encoded.cut`, `Report`). With `windows` what is cut off becomes a row of its own,
and that one's front another, so that of a long play no line is lost; what a line leans on may then
stand in the row before it. Nothing is cut inside an utterance: a line whose other half is missing
would teach a character to break off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from personae.cast.layout import (
    Layout,
    Tokens,
    layout_of,
    messages_for,
    scene_system_text,
    system_text,
)
from personae.errors import UsageError
from personae.records.cast import CastRow, CastTurn, Mode


@dataclass(frozen=True)
class Encoded:
    """One training row.

    Attributes:
        ids: `[T]` token ids.
        supervised: `[T]`; token t is to be predicted from those before it. Never token 0.
        speaker: `[T]`; whose token it is (mode `speaker`), of those too of whom nothing is learnt
            here: if they are of the cast, they speak through their blocks, as in generation, else
            the base alone reads them. None: the person's, or nobody's. In mode `full` the
            character at its own words, None elsewhere.
        character: whose row it is (mode `full`); None in mode `speaker`.
        row: where it comes from (`CastRow.source`).
        cut: how many turns of the dialogue are left out, because they did not fit.
    """

    ids: tuple[int, ...]
    supervised: tuple[bool, ...]
    speaker: tuple[str | None, ...]
    character: str | None
    row: str
    cut: int = 0

    @property
    def learnt(self) -> int:
        """How many tokens are to be predicted."""
        return sum(self.supervised)


@dataclass(frozen=True)
class Report:
    """What encoding left out.

    Attributes:
        shortened: rows that lost turns.
        turns: how many turns were left out of those.
        too_long: `source` of rows that do not fit even with one turn.
    """

    shortened: int = 0
    turns: int = 0
    too_long: tuple[str, ...] = field(default=())


def encode(
    row: CastRow,
    tokenizer: Any,
    mode: Mode,
    max_tokens: int,
    *,
    profiles: Mapping[str, str] | None = None,
    windows: bool = False,
) -> list[Encoded]:
    """The training rows of one dialogue.

    Args:
        row: the dialogue.
        tokenizer: of transformers, or a `Layout` already measured (`layout_of`).
        mode: `full`: one for each of the row's characters. `speaker`: one, in which every
            character's words are supervised; the row's own system message is not used, since it
            speaks to one character and the cache is everybody's.
        max_tokens: at most so many tokens a row.
        profiles: text about characters for the system message (mode `full`; rows that bring a
            system message keep theirs).
        windows: what does not fit becomes rows of its own, in order; `cut` then counts (at the
            last of them) what fits into none.

    Returns:
        Nothing for a character of whom not one utterance fits.

    Raises:
        UsageError: the tokenizer has no chat template, or `max_tokens` is no size.
    """
    if max_tokens < 2:
        raise UsageError("a training row holds at least 2 tokens")
    layout = tokenizer if isinstance(tokenizer, Layout) else layout_of(tokenizer)
    seats: list[tuple[str | None, frozenset[str], _Lay]] = []
    if mode == "speaker":
        learnt = frozenset(row.characters)
        seats.append((None, learnt, _scene(layout, scene_system_text(row.language), learnt)))
    else:
        for name in row.characters:
            system = row.system or system_text(name, row.language, (profiles or {}).get(name, ""))
            seats.append((name, frozenset({name}), _chat(layout, name, system)))
    found = []
    for who, learnt, lay in seats:
        stretches = list(_stretches(row.turns, learnt, max_tokens, lay))[: None if windows else 1]
        last = max(n + 1 for n, turn in enumerate(row.turns) if turn.speaker in learnt)
        cut = last - sum(end - start for _, start, end in stretches)
        for number, (made, _, _) in enumerate(reversed(stretches), 1):
            mine = cut if number == len(stretches) else 0
            found.append(Encoded(*made, who, row.source, mine))
    return found


def encode_all(
    rows: Sequence[CastRow],
    tokenizer: Any,
    mode: Mode,
    max_tokens: int,
    *,
    profiles: Mapping[str, str] | None = None,
    windows: bool = False,
) -> tuple[dict[str, list[Encoded]], Report]:
    """All rows by character, and what was left out.

    In mode `speaker` a dialogue of several characters stands under each of them: the very same
    object, so that a trainer can run it once.

    Raises:
        UsageError: see `encode`.
    """
    layout = tokenizer if isinstance(tokenizer, Layout) else layout_of(tokenizer)
    by_name: dict[str, list[Encoded]] = {}
    shortened = turns = 0
    too_long = []
    for row in rows:
        made = encode(row, layout, mode, max_tokens, profiles=profiles, windows=windows)
        for one in made:
            names = [one.character] if one.character else row.characters
            heard = set(one.speaker)
            for name in names:
                if name in heard:
                    by_name.setdefault(name, []).append(one)
            shortened += bool(one.cut)
            turns += one.cut
        if len({one.character for one in made}) < (1 if mode == "speaker" else len(row.characters)):
            too_long.append(row.source)
    return by_name, Report(shortened, turns, tuple(too_long))


_Lay = Callable[[Sequence[CastTurn]], Tokens]


def _chat(layout: Layout, name: str, system: str) -> _Lay:
    def tokens(turns: Sequence[CastTurn]) -> Tokens:
        pieces = layout.prompt_segments(messages_for(turns, name, system, "full"))[:-1]
        return layout.tokens(p._replace(speaker=name) if p.supervised else p for p in pieces)

    return tokens


def _scene(layout: Layout, system: str, learnt: frozenset[str]) -> _Lay:
    """Others speak as characters do, but nothing of them is learnt."""

    def tokens(turns: Sequence[CastTurn]) -> Tokens:
        made = layout.scene(system, turns)
        wanted = zip(made.supervised, made.speaker, strict=True)
        return made._replace(supervised=tuple(one and who in learnt for one, who in wanted))

    return tokens


def _stretches(
    turns: Sequence[CastTurn], learnt: frozenset[str], limit: int, lay: _Lay
) -> Iterator[tuple[Tokens, int, int]]:
    """Stretches of turns that fit, from the last backwards, each as long as can be.

    Each ends with a turn that is learnt: what comes after it teaches nothing.
    """
    ends = [n + 1 for n, turn in enumerate(turns) if turn.speaker in learnt]
    while ends:
        end = ends.pop()
        # A stretch only gets shorter when turns are taken from its front: halve the way, after
        # having looked at the whole, which mostly fits.
        low, high, best = 0, end - 1, None
        start = 0
        while low <= high:
            made = lay(turns[start:end])
            if len(made.ids) <= limit:
                best, high = (made, start, end), start - 1
            else:
                low = start + 1
            start = (low + high) // 2
        if best is not None:
            yield best
            ends = [one for one in ends if one <= best[1]]
