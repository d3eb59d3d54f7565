"""From play runs and their ratings to what a report shows; everything is read, nothing kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from personae.errors import InputError, UsageError
from personae.journal.store import Journal
from personae.judging.trajectories import unit_id
from personae.judging.trajectory_pairs import SceneDifference, scene_differences
from personae.judging.trajectory_scores import Ratings, kind_of
from personae.play_stage import PLAYS, read_plays
from personae.records import Audit, Manifest, Prices
from personae.reports.data import CallCounts, Cost, FailureCount, UsageLine
from personae.reports.gather import (
    audits_beside,
    find_audit,
    name_once,
    read_audits,
    total_cost,
    usage_line,
)
from personae.reports.ratings import RATE, RatedRun, document_of, read_rated, told_apart
from personae.reports.scenes.data import Judge, PlaysReport
from personae.session import JOURNAL, read_manifest

PLAY = "play"


def are_play_runs(runs: Sequence[Path]) -> bool:
    """Whether runs are reported as plays; False for interviews.

    Raises:
        InputError: a folder is no run, or one rating of a play run.
        UsageError: some are plays and some are not.
    """
    kinds = {run: read_manifest(run).kind for run in runs}
    for run, kind in kinds.items():
        if kind == RATE:
            raise InputError(
                "this is one rating of a play run, and a report is about the plays",
                path=run,
                mend=f"personae report {run.resolve().parent.parent}",
            )
    plays = [run for run, kind in kinds.items() if kind == PLAY]
    others = [run for run, kind in kinds.items() if kind != PLAY]
    if plays and others:
        raise UsageError(
            f"{plays[0]} holds plays and {others[0]} does not, and their scores measure different "
            f"things. Report them apart: personae report {others[0]}; personae report {plays[0]}"
        )
    return bool(plays)


def gather_plays(
    runs: Sequence[Path],
    *,
    audits: Sequence[Path] = (),
    prices: Prices,
    title: str = "",
    wanted: Sequence[str] = (),
) -> PlaysReport:
    """Read play runs, their ratings, and the audits given or beside them; compute all scores.

    Args:
        wanted: the ids of scenes whose scripts are to be shown; none means as many as have room.

    Raises:
        InputError: a folder is no play run or has no plays yet; a rating is of other plays; a file
            is damaged.
        UsageError: a run is named twice, or there is no scene of a wanted id.
    """
    name_once(runs)
    manifests = tuple(read_manifest(run) for run in runs)
    read = told_apart([_read(run) for run in runs])
    known = {play.scene.id for one in read for play in one.plays}
    for scene in wanted:
        if scene not in known:
            raise UsageError(
                f"there is no play of a scene {scene!r}; there are: {', '.join(sorted(known)[:20])}"
            )
    notes: list[str] = []
    found = audits_beside(runs, notes)
    for folder in audits:
        more = read_audits(folder)
        if not more:
            raise InputError("holds no audit", path=folder, mend="Make one with `personae audit`")
        found += more
    rows = [row for one in read for row in one.rows]
    ratings = Ratings(rows)
    differences, reason = _differences(read, ratings)
    spent = [_spent(folder, prices) for folder in _folders(read)]
    usage = tuple(line for one in spent for line in one.usage)
    seconds = sum(one.seconds for one in spent)
    return PlaysReport(
        title=title or " + ".join(run.resolve().name for run in runs),
        runs=read,
        manifests=manifests,
        ratings=ratings,
        narrated=Ratings(rows, "narrator"),
        scenes={
            **document_of(read, audits=found, prices=prices),
            "differences": [one.to_dict() for one in differences],
        },
        judges=tuple(_judges(read, found)),
        differences=differences,
        differences_reason=reason,
        calls=CallCounts(
            made=sum(one.calls.made for one in spent),
            reused=sum(one.calls.reused for one in spent),
            failed=sum(one.calls.failed for one in spent),
        ),
        cost=total_cost(usage) if all(one.known for one in spent) else Cost(),
        usage=usage,
        failures=tuple(failure for one in spent for failure in one.failures),
        wall_seconds=seconds or None,
        notes=(*(n for m in manifests for n in m.notes), *notes),
        caveats=tuple(_caveats(read, manifests)),
        wanted=frozenset(wanted),
    )


def _read(run: Path) -> RatedRun:
    """A run with its ratings, or, stopped before its end, with the plays there are."""
    if not (run / PLAYS).is_file():
        manifest = read_manifest(run)
        raise InputError(
            f"this run ({manifest.kind}, {manifest.status}) has no {PLAYS}",
            path=run,
            mend=f"Finish it first: personae resume {run}",
        )
    plays = read_plays(run)
    if plays and not all(play.complete for play in plays):
        return RatedRun(run, plays, {}, ())  # what is not complete cannot have been rated
    return read_rated(run)


def _folders(runs: Sequence[RatedRun]) -> Iterator[Path]:
    """The run directories of plays and of their ratings."""
    for one in runs:
        yield one.run
        yield from one.ratings


class _Spent:
    """What one run directory used; `known` is False where its journal is gone."""

    def __init__(self, *, known: bool) -> None:
        self.known = known
        self.usage: list[UsageLine] = []
        self.failures: list[FailureCount] = []
        self.calls = CallCounts()
        self.seconds = 0.0


def _spent(folder: Path, prices: Prices) -> _Spent:
    found = _Spent(known=(folder / JOURNAL).is_file())
    if not found.known:
        return found
    with Journal(folder / JOURNAL, read_only=True) as journal:
        total, failed = journal.totals(), journal.failures()
        found.calls = CallCounts(
            made=total.made, reused=total.reused, failed=sum(line.count for line in failed)
        )
        found.seconds = journal.seconds()
        found.usage = [usage_line(line, prices) for line in journal.usage()]
        found.failures = [
            FailureCount(role=f.role, model=f.model, cause=f.cause, count=f.count) for f in failed
        ]
    return found


def _judges(runs: Sequence[RatedRun], audits: Sequence[Audit]) -> Iterator[Judge]:
    """The judges as the ratings' manifests name them, each once a kind, language and rubric."""
    seen: set[tuple[str, str, str, str | None]] = set()
    for one in runs:
        for manifest in one.ratings.values():
            narrated = bool(manifest.arguments.get("narrator"))
            for model in manifest.models.get("judge", ()):
                key = (model, str(narrated), manifest.language, manifest.rubric_hash)
                if key in seen:
                    continue
                seen.add(key)
                yield Judge(
                    model,
                    "narrator" if narrated else "characters",
                    manifest.language,
                    find_audit(audits, model, manifest.rubric_hash, manifest.language),
                    one.run,
                )


def _differences(
    runs: Sequence[RatedRun], ratings: Ratings
) -> tuple[tuple[SceneDifference, ...], str]:
    """Every two models on what both played, or the reason why they are not compared."""
    models = {(unit.model, unit.lang) for unit in ratings.units}
    if not models:
        return (), "unrated"
    if len(models) < 2:
        return (), "one_model"
    if len({lang for _, lang in models}) == len(models):
        return (), "one_model_a_language"
    if _rules_differ(runs):
        return (), "different_rules"
    seats = {
        unit_id(play, name): (play.scene_hash, name)
        for one in runs
        for play in one.plays
        for name in play.models
    }
    found = tuple(scene_differences(ratings, seats))
    if not found:
        return (), "nothing_common"
    if all(one.estimate.n == 0 and one.judged_apart for one in found):
        return (), "different_judges"
    return found, ""


def _rules_differ(runs: Sequence[RatedRun]) -> bool:
    """Whether judges of characters in one language were given different rubrics."""
    rubrics = {
        (manifest.language, manifest.rubric_hash)
        for one in runs
        for manifest in one.ratings.values()
        if not manifest.arguments.get("narrator")
    }
    return len({language for language, _ in rubrics}) < len(rubrics)


def _caveats(runs: Sequence[RatedRun], manifests: Sequence[Manifest]) -> Iterator[str]:
    """What makes runs differ in more than their characters' models."""
    if _rules_differ(runs):
        yield "rules"
    narrators = {
        (manifest.language, *manifest.models.get("narrator", ())) for manifest in manifests
    }
    if len(narrators) > len({manifest.language for manifest in manifests}):
        yield "narrators"
    if len({manifest.protocol for manifest in manifests}) > 1:
        yield "protocols"
    if len({manifest.arguments.get("rounds") for manifest in manifests}) > 1:
        yield "rounds"
    if any(manifest.arguments.get("branch") for manifest in manifests):
        yield "branches"
    rated = {one.run for one in runs if any(kind_of(row) == "characters" for row in one.rows)}
    if rated and len(rated) < len(runs):
        yield "some_unrated"
