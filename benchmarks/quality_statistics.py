"""Means over roles and what they differ by, with intervals from one shared set of resamples.

A method's figure is the mean over roles of the role's nats a token (its answers' nats over their
tokens), averaged over seeds. Everything is paired: all methods are looked at under the very same
resample, so that a difference or a ratio of methods is a difference or a ratio within each of them.

`ALL` draws roles, within each drawn role its answers, and seeds, each with replacement; answers and
seeds are crossed, for every seed has scored every answer (Owen, The pigeonhole bootstrap, Annals of
Applied Statistics 1, 2007). It speaks of other roles, other questions and other seeds. `ANSWERS`
draws answers alone, within each role: it speaks of these roles and these seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
What = Literal["all", "answers"]

RESAMPLES = 10_000
LEVEL = 0.95


class Interval(NamedTuple):
    """A statistic and its 95 % percentile interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.4f} ({self.low:+.4f} to {self.high:+.4f})"

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Held:
    """The held-out answers under one method.

    Attributes:
        nats: by role `[seeds, answers]`; one seed where a method has none (the base alone).
        tokens: by role `[answers]`.
    """

    nats: Mapping[str, Floats]
    tokens: Mapping[str, Floats]

    def __post_init__(self) -> None:
        if not self.nats or self.nats.keys() != self.tokens.keys():
            raise ValueError("nats and tokens are not of the same roles")
        for role, nats in self.nats.items():
            if nats.ndim != 2 or nats.shape[1] != len(self.tokens[role]) or not nats.size:
                raise ValueError(f"{role}: {nats.shape} nats for {len(self.tokens[role])} answers")
        if len({len(nats) for nats in self.nats.values()}) > 1:
            raise ValueError("not all roles have the same seeds")

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(next(iter(self.nats.values())))

    def of(self, role: str) -> float:
        """Nats a token of one role, mean over seeds."""
        return float(self.nats[role].sum(1).mean() / self.tokens[role].sum())

    def mean(self) -> float:
        """Mean over roles."""
        return float(np.mean([self.of(role) for role in self.nats]))


class Resampled:
    """The resamples of a set of roles, answers and seeds, the same for every method.

    Args:
        tokens: by role `[answers]`.
        seeds: how many.
        what: see the module.
        seed: of the resampling.
    """

    def __init__(
        self,
        tokens: Mapping[str, Floats],
        seeds: int,
        what: What,
        *,
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> None:
        random = np.random.default_rng(seed)
        self.tokens, self.seeds, self.what, self.resamples = dict(tokens), seeds, what, resamples
        roles = len(self.tokens)
        everything = what == "all"
        draw = random.integers(roles, size=(resamples, roles))
        self._roles = draw if everything else np.tile(np.arange(roles), (resamples, 1))
        self._seed_shares = (
            random.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
            if everything
            else np.full((resamples, seeds), 1 / seeds)
        )
        # A role that is drawn twice has its answers drawn twice: one set of draws a place. Only
        # the draws of who stands there are ever used; they are made from streams of their own.
        self._streams = random.spawn(roles * roles)

    def means(self, held: Held) -> Floats:
        """`[resamples]` of a method's mean over roles.

        Raises:
            ValueError: the method's answers or seeds are not those that are resampled.
        """
        if {r: len(t) for r, t in held.tokens.items()} != {
            r: len(t) for r, t in self.tokens.items()
        } or any(not np.array_equal(held.tokens[r], t) for r, t in self.tokens.items()):
            raise ValueError("the methods were not scored on the same answers")
        if held.seeds not in {1, self.seeds}:
            raise ValueError(f"{held.seeds} seeds, not {self.seeds}")
        names = list(self.tokens)
        total = np.zeros(self.resamples)
        for place in range(len(names)):
            for number, role in enumerate(names):
                here = np.flatnonzero(self._roles[:, place] == number)
                counts = self._counts(place, number, len(here))
                nats = counts @ held.nats[role].T  # [here, seeds]
                shares = self._seed_shares[here] if held.seeds > 1 else 1.0
                total[here] += (nats * shares).sum(1) / (counts @ self.tokens[role])
        return total / len(names)

    def _counts(self, place: int, number: int, size: int) -> Floats:
        """How often each answer of a role was drawn, `[size, answers]`; the same at every call."""
        answers = len(self.tokens[list(self.tokens)[number]])
        if not size:
            return np.zeros((0, answers))
        stream = self._streams[place * len(self.tokens) + number]
        state = stream.bit_generator.state
        drawn = stream.multinomial(answers, np.full(answers, 1 / answers), size=size)
        stream.bit_generator.state = state
        return drawn.astype(np.float64)


def interval(value: float, drawn: Floats) -> Interval:
    """The percentile interval of a statistic's resamples."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def compare(
    methods: Sequence[Held],
    statistic: Callable[..., float | Floats],
    what: What = "all",
    *,
    resamples: int = RESAMPLES,
) -> Interval:
    """A function of several methods' means over roles, with its interval.

    Args:
        methods: scored on the same answers, with the same seeds (or one).
        statistic: of as many means as there are methods; works on numbers and on arrays.
        what: is resampled.

    Raises:
        ValueError: see `Resampled.means`.
    """
    seeds = max(one.seeds for one in methods)
    drawn = Resampled(methods[0].tokens, seeds, what, resamples=resamples)
    return interval(
        float(statistic(*(one.mean() for one in methods))),
        np.asarray(statistic(*(drawn.means(one) for one in methods))),
    )


def difference(ours: Held, other: Held, what: What = "all") -> Interval:
    """Other minus ours, in nats a token: above 0 where ours is better."""
    return compare((ours, other), lambda a, b: b - a, what)


def closed(base: Held, ours: Held, goal: Held, what: What = "all") -> Interval:
    """(base - ours) / (base - goal): how much of the way from base to goal ours has gone."""
    return compare((base, ours, goal), lambda b, o, g: (b - o) / (b - g), what)


def one_role(held: Held, role: str) -> Held:
    """The same of one role alone."""
    return Held({role: held.nats[role]}, {role: held.tokens[role]})
