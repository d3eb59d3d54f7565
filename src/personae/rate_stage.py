"""The stage `personae rate`: from what was played to ratings, in runs of their own inside of it.

A rating lies in `RUN/ratings/HASH/`, a run with its own manifest and journal, so that rating again
with other judges adds and overwrites nothing. `RUN/results.jsonl` is made of all of them whenever
one ends; it is derived, never appended to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from personae.errors import InputError, OutputError, StoppedEarlyError, UsageError
from personae.interview.evaluate import panel
from personae.journal.client import Client, Plan
from personae.journal.flow import each
from personae.judging.lift import check_words
from personae.judging.metrics import Kind, rating_hash
from personae.judging.trajectories import RATING_SAMPLING, Case, Known, Seat, cases_of, rate_rows
from personae.models.registry import Registry
from personae.play_stage import CARDS, PLAYS
from personae.records import Language, Manifest, Play, RatingRow, Sampling, content_hash
from personae.records.trajectory import Protocol
from personae.reports.ratings import (
    RATE,
    RATINGS,
    check_made_from,
    finished_plays,
    kept_cards,
    made_from,
    ratings_of,
    read_rated,
)
from personae.session import (
    MANIFEST,
    RESULTS,
    Options,
    Run,
    new_manifest,
    open_run,
    read_manifest,
    repair_messages,
)
from personae.stages import seeded, write_results
from personae.world.cast import players

_HASH_CHARS = 12


@dataclass(frozen=True)
class Rated:
    """What `rate` leaves.

    Attributes:
        run: the play run; its results.jsonl holds the rows of all its ratings.
        rating: the run of this rating.
        rows: of this rating; none of a dry run, whose verdicts mean nothing.
    """

    run: Path
    rating: Path
    rows: tuple[RatingRow, ...]
    plan: Plan | None


def language_of(plays: Sequence[Play], path: Path) -> Language:
    """The one language of the plays.

    Raises:
        InputError: they have two.
    """
    languages = {play.language for play in plays}
    if len(languages) > 1:
        raise InputError(
            "the plays are in two languages, and a rubric is in one",
            path=path,
            mend="Play the scenes of each language in a run of its own",
        )
    return languages.pop()


def rating_path(
    run: Path, judges: Sequence[str], kind: Kind, protocol: Protocol, seed: int
) -> Path:
    """Where the rating of a run by these judges lies, in whatever order they are named."""
    named = content_hash([sorted(judges), kind, protocol, seed])
    return run / RATINGS / named[:_HASH_CHARS]


async def rate(
    run: Path,
    judges: Sequence[str],
    *,
    narrator: bool = False,
    protocol: Protocol | None = None,
    seed: int = 0,
    begun: Callable[[Path], None] | None = None,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Rated:
    """Have judges rate what was played (`personae rate`).

    Args:
        run: a finished play run.
        judges: model ids; a judge that is named twice is asked twice.
        narrator: rate the narrator on the four maxims, instead of the characters.
        protocol: default: that of the plays.
        begun: is told where the rating lies, before anything is asked.

    Raises:
        UsageError: no judge; `lift:MODEL`; a judge that has rated this run already; other wrong
            arguments.
        InputError: no plays, plays that are not complete, or ratings of other plays than these.
        StoppedEarlyError: a cap; call again to go on. What was rated is in results.jsonl, the rest
            is marked `not_asked`.
    """
    options = options or Options()
    if not judges:
        raise UsageError("give at least one --judge")
    check_words(judges)
    if not run.is_dir():
        raise InputError("there is no such run directory", path=run, mend="Check the path")
    if (run / MANIFEST).is_file() and (kind_of_run := read_manifest(run).kind) != "play":
        # Ratings become the results.jsonl of a run; those of an interview must not be lost.
        raise InputError(
            f"this is a run of {kind_of_run!r}",
            path=run,
            mend="Give the finished run of a `personae play`",
        )
    plays = finished_plays(run)
    language = language_of(plays, run / PLAYS)
    protocol = protocol or protocol_of(plays, run)
    kind: Kind = "narrator" if narrator else "characters"
    judges = sorted(judges)
    sampling = seeded(RATING_SAMPLING, seed)
    manifest = new_manifest(
        RATE,
        {"judge": judges},
        language,
        room="rating",
        seed=seed,
        protocol=protocol,
        sampling={"judge": sampling.to_dict()},
        arguments={"narrator": narrator, "cwd": str(Path.cwd())},
        rubric_hash=rating_hash(language, protocol, kind),
        made_from=made_from(run, plays),
    )
    path = rating_path(run, judges, kind, protocol, seed)
    _check_neighbours(run, path, manifest)
    cases = cases_of(plays, kind, known_of(run, plays))
    if begun is not None:
        begun(path)
    async with open_run(path, manifest, options, registry=registry) as opened:
        rows = await _rate_in(opened, run, cases, protocol, sampling)
        return Rated(run, path, () if opened.dry else tuple(rows), opened.plan)


async def _rate_in(
    opened: Run, run: Path, cases: Sequence[Case], protocol: Protocol, sampling: Sampling
) -> list[RatingRow]:
    """Rate in an open run and write its results; when it is stopped, what there is."""
    judges = opened.manifest.models["judge"]
    options = opened.options
    jobs = [(case, seat) for case in cases for seat in panel(judges)]

    async def asked(client: Client) -> list[RatingRow]:
        async def one(job: tuple[Case, Seat]) -> list[RatingRow]:
            case, seat = job
            return await rate_rows(client, seat, case, protocol=protocol, sampling=sampling)

        watcher = options.watcher if client is opened.client else None
        found = await each(jobs, one, stage="rating", window=options.window, watcher=watcher)
        return [row for rows in found for row in rows]

    def written(rows: Sequence[RatingRow]) -> None:
        write_results(rows, opened.path / RESULTS)
        merge_ratings(run)

    try:
        rows = await asked(opened.client)
    except StoppedEarlyError:
        journal = opened.client.journal
        if journal is not None and not opened.dry:
            repair = repair_messages(opened.manifest.language)
            reader = Client(journal, Registry(), repair=repair, replay=True, gaps=True)
            with contextlib.suppress(OutputError):  # the stop is what the user must hear of
                written(await asked(reader))
        raise
    if options.live:
        written(rows)
    return rows


def protocol_of(plays: Sequence[Play], run: Path) -> Protocol:
    """The one protocol of the plays.

    Raises:
        UsageError: they have two.
    """
    protocols = {play.protocol for play in plays}
    if len(protocols) > 1:
        raise UsageError(f"{run} holds plays of both protocols; choose with --protocol")
    return protocols.pop()


def _check_neighbours(run: Path, path: Path, manifest: Manifest) -> None:
    """Refuse what would make the run's ratings incomparable with one another.

    Raises:
        InputError: a rating was made from other plays.
        UsageError: a rating of the same kind used other rubrics, or one of these judges.
    """
    for other, was in ratings_of(run).items():
        check_made_from(other, was, manifest.made_from)
        if was.arguments.get("narrator") != manifest.arguments["narrator"]:
            continue
        if was.rubric_hash != manifest.rubric_hash:
            raise UsageError(
                f"{other} rated this run under other rubrics or another protocol, and their scores "
                "cannot stand in one table. Rate a copy of the run, or delete that folder"
            )
        if other == path:
            continue
        for judge in manifest.models["judge"]:
            if judge in was.models.get("judge", ()):
                raise UsageError(
                    f"{judge} has rated this run already ({other}). Name the new judges alone; "
                    "for repeats, delete that folder and name the judge twice"
                )


def merge_ratings(run: Path) -> tuple[RatingRow, ...]:
    """Write the rows of all ratings of a play run as its results.jsonl.

    Raises:
        InputError: as `read_rated`.
    """
    rows = read_rated(run).rows
    write_results(rows, run / RESULTS)
    return rows


def known_of(run: Path, plays: Sequence[Play]) -> dict[tuple[str, str], Known]:
    """What characters knew by their cards, by scene id and name: as the play put it to them.

    Raises:
        InputError: a card that a scene refers to is not kept in the run.
    """
    cards = {card.card: card.character for card in kept_cards(run)}
    seed = read_manifest(run).seed if (run / MANIFEST).is_file() else 0
    found: dict[tuple[str, str], Known] = {}
    for play in plays:
        for one in play.scene.characters:
            if one.card is not None and one.card not in cards:
                raise InputError(
                    f"the card {one.card!r} of {one.name!r} is not there",
                    path=run / CARDS,
                    mend="Give the run as `personae play` left it",
                )
        brought = players(play.scene, cards, play.language, seed)
        secrets = [secret for player in brought.values() for secret in player.secrets]
        for one in play.scene.characters:
            player = brought.get(one.name)
            found[play.scene.id, one.name] = Known(
                profile="" if player is None else player.profile,
                secrets=tuple(s for s in secrets if one.name in s.known_by),
            )
    return found
