"""From rated play runs to what a report shows of them; everything is read, nothing remembered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from personae.errors import InputError
from personae.journal.store import Journal
from personae.judging.metrics import Kind
from personae.judging.trajectories import narrator_unit_id, unit_id
from personae.judging.trajectory_scores import kind_of, scores_document
from personae.play_stage import CARDS, PLAYS, read_plays
from personae.records import Audit, Language, Manifest, Play, Prices, RatingRow, content_hash
from personae.records.files import read_jsonl
from personae.reports.data import Cost, UsageLine
from personae.reports.gather import find_audit, total_cost, usage_line
from personae.reports.gather import weights_of as weights_behind
from personae.session import JOURNAL, MANIFEST, RESULTS, read_manifest
from personae.world.cast import CardInPlay, read_cards

RATINGS = "ratings"
RATE = "rate"


@dataclass(frozen=True)
class RatedRun:
    """A play run with all that judges said of it.

    Attributes:
        ratings: its ratings by their directories; none where nobody has rated it.
        rows: of all of them.
        names: what models are called here, by kind and id, where several runs are told apart.
    """

    run: Path
    plays: tuple[Play, ...]
    ratings: dict[Path, Manifest]
    rows: tuple[RatingRow, ...]
    names: Mapping[tuple[Kind, str], str] = field(default_factory=dict)

    def name(self, kind: Kind, model: str) -> str:
        """What a model is called here."""
        return self.names.get((kind, model), model)


def finished_plays(run: Path) -> tuple[Play, ...]:
    """The plays of a run, or of its plays.jsonl, which must all have come to their end.

    Raises:
        InputError: there are none, a line is no play, or a play is not complete.
    """
    path = run / PLAYS if run.is_dir() else run
    if run.is_dir() and not path.is_file():
        raise InputError(
            f"there is no {PLAYS}", path=run, mend="Give the finished run of a `personae play`"
        )
    plays = read_plays(path)
    if not plays:
        raise InputError("holds no play", path=path, mend="Play a scene first: personae play")
    for number, play in enumerate(plays, 1):
        if not play.complete:
            raise InputError(
                f"the play of scene {play.scene.id!r} was stopped before its end",
                path=path,
                place=f"play {number}",
                mend=f"Resume the run first: personae resume {path.parent}",
            )
    return plays


def plays_hash(plays: Iterable[Play]) -> str:
    """SHA-256 (64 hex digits) over plays."""
    return content_hash([play.to_dict() for play in plays])


def kept_cards(run: Path) -> tuple[CardInPlay, ...]:
    """The cards that a play run kept; none where its scenes refer to none.

    Raises:
        InputError: a line is no card.
    """
    return read_cards(run / CARDS) if (run / CARDS).is_file() else ()


def made_from(run: Path, plays: Sequence[Play]) -> tuple[str, ...]:
    """The hashes of what a rating is made from: the plays, and the cards that judges are told."""
    return (plays_hash(plays), *(card.hash for card in kept_cards(run)))


def ratings_of(run: Path) -> dict[Path, Manifest]:
    """The ratings of a play run, by their directories.

    Raises:
        InputError: a manifest among them cannot be read.
    """
    folders = [file.parent for file in sorted((run / RATINGS).glob(f"*/{MANIFEST}"))]
    found = {folder: read_manifest(folder) for folder in folders}
    return {folder: manifest for folder, manifest in found.items() if manifest.kind == RATE}


def check_made_from(rating: Path, manifest: Manifest, made: Sequence[str]) -> None:
    """Refuse a rating that was made from other plays (`made_from`).

    Raises:
        InputError: it was.
    """
    if manifest.made_from != tuple(made):
        raise InputError(
            f"this rating is of other plays than those in {PLAYS} now",
            path=rating,
            mend="Delete it, or keep it with the run that it belongs to, then rate again",
        )


def read_rated(run: Path) -> RatedRun:
    """A play run and the rows of all its ratings.

    Raises:
        InputError: as `finished_plays`; a rating is of other plays; a line is no rating.
    """
    plays = finished_plays(run)
    made = made_from(run, plays)
    ratings = ratings_of(run)
    rows: list[RatingRow] = []
    for folder, manifest in ratings.items():
        check_made_from(folder, manifest, made)
        if (folder / RESULTS).is_file():
            rows += read_rating_rows(folder / RESULTS)
    return RatedRun(run, plays, ratings, tuple(rows))


def read_rating_rows(path: Path) -> tuple[RatingRow, ...]:
    """The rows of one results.jsonl of a play run or of a rating.

    Raises:
        InputError: names the line that is not a rating.
    """
    return tuple(
        RatingRow.from_dict(line, path=path, place=f"line {number}")
        for number, line in read_jsonl(path)
    )


def scenes_document(
    runs: Sequence[Path], *, audits: Sequence[Audit] = (), prices: Prices
) -> dict[str, Any]:
    """What `report --json` gives under `scenes`: scores, judges, cost.

    `models` is the contract of issue B5; what stands beside it is that of `scores_document`, and:
    `judges` (model, kind, lang, rubric_hash, audit: passed, failed or none, reasons), `cost` (of
    characters, narrator and judges apart, with the mean over plays; the paper's Table 6), `plays`.

    A model that played the same scene in several runs stands once for each, with the run's name
    behind it.

    Args:
        audits: those that may be of these judges; the last one of a judge counts.

    Raises:
        InputError: as `read_rated`.
    """
    return document_of(told_apart([read_rated(run) for run in runs]), audits=audits, prices=prices)


def document_of(
    rated: Sequence[RatedRun], *, audits: Sequence[Audit] = (), prices: Prices
) -> dict[str, Any]:
    """As `scenes_document`, of runs that are read already and told apart."""
    rows = [row for one in rated for row in one.rows]
    return {
        **scores_document(rows, weights_of=weights_behind),
        "judges": _judges(rated, audits),
        "cost": _costs(rated, prices),
        "plays": sum(len(one.plays) for one in rated),
    }


def told_apart(rated: Sequence[RatedRun]) -> tuple[RatedRun, ...]:
    """The runs with their own names for what several of them have.

    A model that played (or narrated) a scene in several runs has the run's name behind it, in plays
    and in rows: in all its scenes of that language, those that only one run has too. Scenes of one
    id that are not the same scene (two files that both begin with 1) have the run's name behind
    their id in rows, or scores would take them for one.
    """
    hashes: dict[str, set[str]] = defaultdict(set)
    for one in rated:
        for play in one.plays:
            hashes[play.scene.id].add(play.scene_hash)
    clashing = frozenset(scene for scene, found in hashes.items() if len(found) > 1)
    runs_of: dict[str, set[Path]] = defaultdict(set)
    of_units: dict[str, tuple[str, Language, Kind]] = {}
    for one in rated:
        for row in one.rows:
            runs_of[row.unit_id].add(one.run)
            of_units[row.unit_id] = (row.model, row.language, kind_of(row))
        for play in one.plays:
            for unit, model, kind in _units(play):
                runs_of[unit].add(one.run)
                of_units[unit] = (model, play.language, kind)
    several = {of_units[unit] for unit, runs in runs_of.items() if len(runs) > 1}
    names = [one.run.resolve().name for one in rated]
    return tuple(
        _named(one, several, clashing, str(one.run) if names.count(name) > 1 else name)
        for one, name in zip(rated, names, strict=True)
    )


def _units(play: Play) -> Iterator[tuple[str, str, Kind]]:
    """Unit id, model and kind of all that can be rated in a play."""
    for name, model in play.models.items():
        yield unit_id(play, name), model, "characters"
    yield narrator_unit_id(play), play.narrator, "narrator"


def _named(
    one: RatedRun,
    several: set[tuple[str, Language, Kind]],
    clashing: frozenset[str],
    label: str,
) -> RatedRun:
    """A run whose models of `several` and scenes of `clashing` have its label behind them."""

    def apart(model: str, lang: Language, kind: Kind) -> str:
        return f"{model} [{label}]" if (model, lang, kind) in several else model

    def told(row: RatingRow) -> dict[str, str]:
        found = {}
        if (row.model, row.language, kind_of(row)) in several:
            found["model"] = apart(row.model, row.language, kind_of(row))
            found["unit_id"] = f"{row.unit_id} [{label}]"
        if row.scene_id in clashing:
            found["scene_id"] = f"{row.scene_id} [{label}]"
        return found

    return replace(
        one,
        plays=tuple(
            play.model_copy(
                update={
                    "models": {
                        n: apart(m, play.language, "characters") for n, m in play.models.items()
                    },
                    "narrator": apart(play.narrator, play.language, "narrator"),
                }
            )
            for play in one.plays
        ),
        rows=tuple(row.model_copy(update=told(row)) for row in one.rows),
        names={
            (kind, model): f"{model} [{label}]"
            for model, lang, kind in several
            if lang in {play.language for play in one.plays}
        },
    )


def _judges(rated: Sequence[RatedRun], audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Each judge under each rubric, with the verdict of its audit for trajectories."""
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for one in rated:
        for manifest in one.ratings.values():
            kind: Kind = "narrator" if manifest.arguments.get("narrator") else "characters"
            for judge in dict.fromkeys(manifest.models.get("judge", ())):
                audit = find_audit(audits, judge, manifest.rubric_hash, manifest.language)
                key = (judge, kind, manifest.language, manifest.rubric_hash or "")
                found[key] = {
                    "model": judge,
                    "kind": kind,
                    "lang": manifest.language,
                    "rubric_hash": manifest.rubric_hash,
                    "audit": "none" if audit is None else audit.verdict,
                    "reasons": [] if audit is None else list(audit.reasons),
                }
    return [found[key] for key in sorted(found)]


def _costs(rated: Sequence[RatedRun], prices: Prices) -> dict[str, Any]:
    """Tokens and money of characters, narrator and judges, in all and in the mean over plays.

    Where a journal is gone, they are unknown.
    """
    plays = sum(len(one.plays) for one in rated)
    lines: dict[str, list[UsageLine]] = {"characters": [], "narrator": [], "judges": []}
    plays_known = all((one.run / JOURNAL).is_file() for one in rated)
    judges_known = all((f / JOURNAL).is_file() for one in rated for f in one.ratings)
    known = {"characters": plays_known, "narrator": plays_known, "judges": judges_known}
    roles: Mapping[str, Kind] = {"character": "characters", "narrator": "narrator"}
    for one in rated:
        for line in _usage(one.run, prices):
            if line.role in roles:
                kind = roles[line.role]
                named = line.model_copy(update={"model": one.name(kind, line.model)})
                lines[kind].append(named)
        for folder in one.ratings:
            lines["judges"] += _usage(folder, prices)
    return {
        part: {
            "calls": sum(line.calls for line in some),
            **(whole := total_cost(some) if known[part] else Cost()).to_dict(),
            "per_play": _share(whole, plays),
            "models": [line.to_dict() for line in some],
        }
        for part, some in lines.items()
    }


def _usage(run: Path, prices: Prices) -> list[UsageLine]:
    if not (run / JOURNAL).is_file():
        return []
    with Journal(run / JOURNAL, read_only=True) as journal:
        return [usage_line(line, prices) for line in journal.usage()]


def _share(whole: Cost, plays: int) -> dict[str, float | None]:
    return {
        name: None if value is None or not plays else value / plays
        for name, value in whole.to_dict().items()
    }
