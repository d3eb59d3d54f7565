"""What scenes are written from: passages of a book, groups of a cast, handed out wave by wave."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from personae.world.book import Passage, spread

_SMALL_CAST = 30  # of which all groups are listed: 4,495
_SAMPLED_GROUPS = 2500


@dataclass(frozen=True)
class Member:
    """One of a cast: the name, what the writer is told, and the card that the scene refers to."""

    name: str
    told: str
    card: str | None = None


@dataclass(frozen=True)
class Source:
    """What one scene is made from: a passage of a book, or a group of a cast."""

    key: str
    title: str
    passage: Passage | None = None
    group: tuple[Member, ...] = ()
    said: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Those who must appear; of a passage, whom the writer chooses."""
        return tuple(m.name for m in self.group)


class Supply(Protocol):
    """Hands out sources, wave by wave; no source twice in a wave."""

    def next(self, wanted: int) -> list[Source]:
        """At most so many sources for the next wave; none when there are no more."""
        ...

    def barren(self, source: Source) -> None:
        """The source holds no scene: it is not handed out again."""
        ...

    def near(self, one: Source, other: Source) -> bool:
        """Whether a scene from the one might be a scene from the other."""
        ...


class BookSupply:
    """The passages of a book, evenly spread over it; each once before any comes again."""

    def __init__(self, title: str, found: Sequence[Passage], said: str = "") -> None:
        self._all = [Source(f"passage-{p.number}", title, p, said=said) for p in found]
        self._left = list(self._all)

    def next(self, wanted: int) -> list[Source]:
        """Evenly spread over those that have been used least."""
        if not self._left:
            self._left = list(self._all)
        chosen = spread(self._left, wanted)
        self._left = [s for s in self._left if s not in chosen]
        return chosen

    def barren(self, source: Source) -> None:
        """Leave it out from now on."""
        self._all = [s for s in self._all if s.key != source.key]
        self._left = [s for s in self._left if s.key != source.key]

    def near(self, one: Source, other: Source) -> bool:
        """Neighbours overlap."""
        assert one.passage is not None
        assert other.passage is not None
        return abs(one.passage.number - other.passage.number) <= 1


class CastSupply:
    """Groups of two and three out of a cast; each character and each size about equally often."""

    def __init__(self, title: str, cast: Sequence[Member], seed: int = 0) -> None:
        if len({m.name for m in cast}) != len(cast) or len(cast) < 2:
            raise ValueError("a cast is two or more characters of different names")
        self._title = title
        self._cast = tuple(cast)
        self._all = _groups(len(cast), random.Random(seed))  # noqa: S311  (no secret)
        self._left = list(self._all)
        self._used: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()

    def next(self, wanted: int) -> list[Source]:
        """Groups that have not met yet, as long as there are any."""
        self._left = self._left or list(self._all)
        wave: list[Source] = []
        while self._left and len(wave) < wanted:
            group = min(
                self._left,
                key=lambda g: (self._sizes[len(g)], sum(self._used[i] for i in g) / len(g)),
            )
            self._left.remove(group)
            self._used.update(group)
            self._sizes[len(group)] += 1
            members = tuple(self._cast[i] for i in group)
            key = "+".join(m.name for m in members)
            wave.append(Source(key, self._title, group=members, said=f"a cast: {key}"))
        return wave

    def barren(self, source: Source) -> None:
        """No group is: something can always be invented."""

    def near(self, one: Source, other: Source) -> bool:
        """Any two groups may meet in the same situation."""
        del one, other
        return True


def _groups(size: int, chance: random.Random) -> list[tuple[int, ...]]:
    """All pairs and threes of so many, shuffled; a sample of them where they are very many."""
    if size <= _SMALL_CAST:
        found = {g for n in (2, 3) for g in combinations(range(size), n)}
    else:
        found = {
            tuple(sorted(chance.sample(range(size), n)))
            for _ in range(_SAMPLED_GROUPS)
            for n in (2, 3)
        }
    ordered = sorted(found)
    chance.shuffle(ordered)
    return ordered
