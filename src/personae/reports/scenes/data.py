"""What a report of plays is made of: everything it shows, before any of it is formatted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from personae.judging.metrics import Kind
from personae.judging.trajectories import unit_id
from personae.judging.trajectory_pairs import SceneDifference
from personae.judging.trajectory_scores import AVERAGE, Ratings, TrajectoryScores, Unit
from personae.records import Audit, Language, Manifest, Play, RatingRow
from personae.reports.data import CallCounts, Cost, FailureCount, JudgeState, UsageLine
from personae.reports.ratings import RatedRun
from personae.session import RESULTS
from personae.world.observe import acts_missing

Trust = Literal["passed", "failed", "none", "mixed", "unrated"]


@dataclass(frozen=True)
class Judge:
    """A judge of one kind of rating under one rubric.

    Attributes:
        audit: of trajectories, under the rubric of these ratings; there is none for narrators.
        run: a play run that it rated.
    """

    model: str
    kind: Kind
    lang: Language
    audit: Audit | None
    run: Path

    @property
    def state(self) -> JudgeState:
        """`passed`, `failed`, or `none` for a judge that was never audited."""
        return "none" if self.audit is None else self.audit.verdict


@dataclass(frozen=True)
class FailureLine:
    """How often a model's reply to one step of a play could not be had; `example` is a `detail`."""

    kind: Kind
    model: str
    step: str
    cause: str
    count: int
    example: str


@dataclass(frozen=True)
class Missing:
    """What is missing of a model's part in all plays.

    Attributes:
        share: the mean over its characters of the share (0 to 1) of acts that could not be had;
            None where it had no act to do. Of a narrator it is not counted.
        lost: replies that could not be had.
        refused: those among them that were refused twice: patches that break their bounds, and
            words that would give a secret away.
    """

    kind: Kind
    model: str
    lang: Language
    share: float | None
    lost: int
    refused: int


@dataclass(frozen=True)
class PlaysReport:
    """All that a report of plays shows.

    Attributes:
        title: the heading; the runs' names.
        runs: the play runs, told apart (`personae.reports.ratings.told_apart`).
        manifests: of the runs, in the same order.
        ratings: of characters.
        narrated: of narrators.
        scenes: what `report --json` gives under `scenes`.
        judges: of all ratings.
        differences: between models on the same characters of the same scenes.
        differences_reason: why there are none: a key under `[scenes.no_differences]`.
        calls, cost, usage, failures: sums over the journals of plays and ratings.
        wall_seconds: from first call to last reply, summed over the runs; None is unknown.
        notes: sentences for the reader, shown as they are.
        caveats: keys under `[scenes.caveat]`: what else limits the reading.
    """

    title: str
    runs: tuple[RatedRun, ...]
    manifests: tuple[Manifest, ...]
    ratings: Ratings
    narrated: Ratings
    scenes: dict[str, Any]
    judges: tuple[Judge, ...] = ()
    differences: tuple[SceneDifference, ...] = ()
    differences_reason: str = ""
    calls: CallCounts = field(default_factory=CallCounts)
    cost: Cost = field(default_factory=Cost)
    usage: tuple[UsageLine, ...] = ()
    failures: tuple[FailureCount, ...] = ()
    wall_seconds: float | None = None
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    wanted: frozenset[str] = field(default_factory=frozenset)

    @property
    def results(self) -> str:
        """Where the rows of all ratings stand, as the reader should type it."""
        return ", ".join(str(one.run / RESULTS) for one in self.runs)

    @property
    def models(self) -> tuple[TrajectoryScores, ...]:
        """The scores of every model in each language."""
        return tuple(TrajectoryScores.from_dict(one) for one in self.scenes["models"])

    @property
    def alone(self) -> tuple[TrajectoryScores, ...]:
        """The scores in scenes with a single character."""
        return tuple(TrajectoryScores.from_dict(one) for one in self.scenes["alone"])

    @property
    def narrators(self) -> tuple[TrajectoryScores, ...]:
        """The scores of narrators on the four maxims."""
        return tuple(TrajectoryScores.from_dict(one) for one in self.scenes["narrator"]["models"])

    @property
    def trust(self) -> Trust:
        """What the audits of the characters' judges say together."""
        states = {judge.state for judge in self.judges if judge.kind == "characters"}
        if not states:
            return "unrated"
        return states.pop() if len(states) == 1 else "mixed"

    @property
    def warning(self) -> str:
        """The key under `[scenes.trust]` of what stands before all scores."""
        return "narrated" if self.trust == "unrated" and self.narrators else self.trust

    @cached_property
    def rows(self) -> tuple[RatingRow, ...]:
        """The rows of all ratings."""
        return tuple(row for one in self.runs for row in one.rows)

    @cached_property
    def rows_of(self) -> dict[str, tuple[RatingRow, ...]]:
        """The rows by unit id, the judges in order, then the metrics."""
        found: dict[str, list[RatingRow]] = defaultdict(list)
        for row in self.rows:
            found[row.unit_id].append(row)
        return {
            unit: tuple(sorted(rows, key=lambda r: (r.judge, r.repeat)))
            for unit, rows in found.items()
        }

    @cached_property
    def plays(self) -> tuple[tuple[RatedRun, Play], ...]:
        """Every play with its run, by scene, then in the order of runs."""
        of_scene: dict[str, list[tuple[RatedRun, Play]]] = defaultdict(list)
        for one in self.runs:
            for play in one.plays:
                of_scene[play.scene.id].append((one, play))
        return tuple(pair for pairs in of_scene.values() for pair in pairs)

    @cached_property
    def averages(self) -> dict[str, float]:
        """The panel's average by unit id, of characters that have one."""
        return {unit.unit_id: v for unit, v in self.ratings.of_panel(AVERAGE).items()}

    def worst(self, *, alone: bool = False) -> list[tuple[Unit, float]]:
        """The trajectories with an average, the lowest first; by unit id among equals."""
        found = self.ratings.of_panel(AVERAGE)
        kept = [(unit, value) for unit, value in found.items() if unit.alone == alone]
        return sorted(kept, key=lambda pair: (pair[1], pair[0].unit_id))

    def trajectories(self) -> Iterator[tuple[RatedRun, Play, str, str]]:
        """Run, play, character and unit id of everything that can be rated."""
        for one, play in self.plays:
            for character in play.scene.characters:
                if character.name in play.models:
                    yield one, play, character.name, unit_id(play, character.name)

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """What is missing of each model's part, characters first."""
        shares: dict[tuple[Kind, str, Language], list[float]] = defaultdict(list)
        lost: dict[tuple[Kind, str, Language], Counter[str]] = defaultdict(Counter)
        for one, play in self.plays:
            shares.setdefault(("narrator", play.narrator, play.language), [])
            for name, model in play.models.items():
                share = acts_missing(play, name)
                kept = shares["characters", model, play.language]
                if share is not None:
                    kept.append(share)
            for kind, model, _, cause, _ in _failures(one, play):
                lost[kind, model, play.language][cause] += 1
        return tuple(
            Missing(
                *key,
                share=sum(shares[key]) / len(shares[key]) if shares[key] else None,
                lost=lost[key].total(),
                refused=lost[key]["refused"],
            )
            for key in sorted({*shares, *lost})
        )

    @cached_property
    def lost(self) -> tuple[FailureLine, ...]:
        """The replies that could not be had in the plays, by model, step and cause."""
        counts: Counter[tuple[Kind, str, str, str]] = Counter()
        examples: dict[tuple[Kind, str, str, str], str] = {}
        for one, play in self.plays:
            for kind, model, step, cause, detail in _failures(one, play):
                counts[kind, model, step, cause] += 1
                examples.setdefault((kind, model, step, cause), detail)
        return tuple(FailureLine(*key, n, examples[key]) for key, n in sorted(counts.items()))


def _failures(one: RatedRun, play: Play) -> Iterator[tuple[Kind, str, str, str, str]]:
    """Kind, model, step, cause and detail of every failure of a play."""
    for event in play.events:
        if event.kind != "failure" or event.failure is None:
            continue
        kind: Kind = "narrator" if event.actor is None else "characters"
        if event.model is not None:
            model = one.name(kind, event.model)
        elif event.actor is None:
            model = play.narrator
        else:
            model = play.models.get(event.actor, "")
        yield kind, model, event.text, event.failure.cause, event.failure.detail
