"""The order of a training: which rows each step takes, all of it ahead, from seed and plan alone.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from personae.cast.batches import Row
from personae.cast.plan import Stage, TrainPlan
from personae.errors import UsageError


@dataclass(frozen=True)
class Draw:
    """One step of a stage: which rows, for whom, and how far each is through its own."""

    rows: tuple[int, ...]
    epochs: Mapping[str, float]


def apart(rows: Sequence[Row], plan: TrainPlan) -> tuple[list[Row], list[Row]]:
    """Rows to learn from, and rows to watch: a share of each character's, at least one."""
    if not plan.development:
        return list(rows), []
    watched: set[int] = set()
    for name in dict.fromkeys(c for row in rows for c in row.tokens):
        own = [n for n, row in enumerate(rows) if name in row.tokens]
        if len(own) < 2:
            raise UsageError(
                f"{name!r} has one row: none can be kept apart to watch its loss; give more rows, "
                "or train without a development share"
            )
        random.Random(f"{plan.seed}/development/{name}").shuffle(own)  # noqa: S311
        watched.update(own[: max(1, min(len(own) - 1, round(plan.development * len(own))))])
    learning = [row for n, row in enumerate(rows) if n not in watched]
    left = {c for row in learning for c in row.tokens}
    for row in rows:
        if lost := [c for c in row.tokens if c not in left]:
            raise UsageError(
                f"all rows of {lost[0]!r} fell into the development share: lower it, or add rows"
            )
    return learning, [row for n, row in enumerate(rows) if n in watched]


@dataclass
class _Reader:
    """A character on its way through its rows."""

    own: list[int]
    budget: float
    left: list[int] = field(default_factory=list)
    epoch: int = 0
    rows: int = 0
    tokens: int = 0


def draws_of(rows: Sequence[Row], stage: Stage, plan: TrainPlan) -> list[Draw]:
    """The steps of a stage, all of them, ahead: they depend on seed, rows and plan alone.

    The order of a character's rows depends on its name and not on who else is there. A step's share
    of an epoch is even (5 rows by 4 are 3 and 2).
    """
    readers = {}
    for name in stage.weights:
        if not stage.learners(name):
            continue
        own = [n for n, row in enumerate(rows) if name in row.tokens]
        if plan.tokens_per_role is None:
            budget = plan.epochs * stage.share * len(own)
        else:
            budget = plan.tokens_per_role * stage.share
        readers[name] = _Reader(own, budget)
    by_rows = plan.tokens_per_role is None
    draws: list[Draw] = []
    while True:
        live = {
            n: r for n, r in readers.items() if (r.rows if by_rows else r.tokens) < r.budget - 1e-9
        }
        if not live:
            return draws
        taken: dict[int, None] = {}
        for name, reader in live.items():
            if not reader.left:
                reader.left = list(reader.own)
                key = f"{plan.seed}/{stage.name}/{name}/{reader.epoch}"
                random.Random(key).shuffle(reader.left)  # noqa: S311
                reader.epoch += 1
            steps = math.ceil(len(reader.left) / plan.batch_rows)
            want = math.ceil(len(reader.left) / steps)
            if by_rows:
                want = min(want, max(1, math.ceil(reader.budget - reader.rows - 1e-9)))
            have = sum(name in rows[n].tokens for n in taken)
            for n in reader.left:
                if have >= want:
                    break
                if n not in taken:
                    taken[n] = None
                    have += 1
        for reader_name, reader in live.items():
            seen = [n for n in taken if reader_name in rows[n].tokens]
            reader.left = [n for n in reader.left if n not in taken]
            reader.rows += len(seen)
            reader.tokens += sum(rows[n].tokens[reader_name] for n in seen)
        draws.append(Draw(tuple(taken), {name: r.rows / len(r.own) for name, r in live.items()}))


def rate(highest: float, done: int, steps: int, plan: TrainPlan) -> float:
    """The rate of a block's next step: `done` of its `steps` are behind it."""
    warm = math.ceil(plan.warmup * steps)
    if done < warm:
        return highest * (done + 1) / warm
    if plan.schedule == "constant":
        return highest
    return highest * 0.5 * (1 + math.cos(math.pi * (done - warm) / max(1, steps - warm)))


def steps_a_pass(rows: Sequence[Row], stage: Stage, plan: TrainPlan) -> int:
    """Steps in which the median character sees its rows once."""
    counts = [
        sum(name in row.tokens for row in rows) for name in stage.weights if stage.learners(name)
    ]
    return max(1, math.ceil(statistics.median(counts) / plan.batch_rows))


def seed_of(text: str) -> int:
    """A seed from words, the same everywhere."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
