"""The stage `personae audit` over plays: judges of trajectories, in a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from personae.audit_stage import (
    DEFAULT_LIMIT,
    Audited,
    causes_by_file,
    check_asked,
    check_groups,
    write_audit,
)
from personae.errors import InputError
from personae.judging.answers import LeftOut
from personae.judging.audit import load_words
from personae.judging.lift import check_words
from personae.judging.metrics import rating_hash
from personae.judging.trajectories import RATING_SAMPLING, Case, cases_of
from personae.judging.trajectory_audit import (
    GROUPS,
    TrajectoryAuditRow,
    ask_cases,
    build_cases,
    choose,
    judge_audit,
    usable,
)
from personae.models.registry import Registry
from personae.play_stage import PLAYS
from personae.rate_stage import known_of, language_of, protocol_of
from personae.records import Language, content_hash
from personae.records.files import read_jsonl
from personae.records.trajectory import Protocol
from personae.reports.ratings import finished_plays, plays_hash
from personae.session import Options, new_manifest, open_run
from personae.stages import seeded


@dataclass(frozen=True)
class Material:
    """Trajectories, and what was asked of the plays that they are from.

    Attributes:
        plays: the hash of each run's plays.
    """

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    language: Language
    protocol: Protocol
    plays: tuple[str, ...]

    @property
    def hash(self) -> str:
        """SHA-256 over the plays that the trajectories are from, in whatever order."""
        return content_hash(sorted(self.plays))


def is_play(path: Path) -> bool:
    """Whether a path is a play run, or its plays.jsonl."""
    if path.is_dir():
        return (path / PLAYS).is_file()
    if path.suffix.lower() not in (".jsonl", ".ndjson") or not path.is_file():
        return False
    first = next(read_jsonl(path), None)
    return first is not None and {"scene_hash", "events"} <= first[1].keys()


def read_trajectories(paths: Sequence[Path], language: Language | None = None) -> Material:
    """The trajectories of finished plays.

    Args:
        language: of the audit; None takes that of the plays.

    Raises:
        InputError: as `finished_plays`; the plays differ in language or protocol; none holds a
            trajectory that can be used.
    """
    kept: list[Case] = []
    left: list[LeftOut] = []
    made: dict[Path, tuple[Language, Protocol, str]] = {}
    seen: set[str] = set()
    for path in paths:
        plays = finished_plays(path)
        run = path if path.is_dir() else path.parent
        digest = plays_hash(plays)
        if any(digest == other for *_, other in made.values()):
            continue  # a run and its plays.jsonl are the same plays
        made[path] = (language_of(plays, path), protocol_of(plays, path), digest)
        found, unusable = usable(cases_of(plays, known=known_of(run, plays)), str(path))
        left += unusable
        for case in found:
            unit, number = case.unit_id, 2
            while unit in seen:
                unit, number = f"{case.unit_id}#{number}", number + 1
            seen.add(unit)
            kept.append(replace(case, unit_id=unit))
    for index, what in enumerate(("languages", "protocols")):
        if len({one[index] for one in made.values()}) > 1:
            raise InputError(
                f"the plays are in two {what}, and a judge is audited for one",
                mend="Audit them one after the other",
            )
    first, *_ = made
    spoken, protocol, _ = made[first]
    if not kept:
        raise InputError(
            "no trajectory that can be used: all are empty or hold refusals",
            path=first,
            mend="Play with a better model",
        )
    if language is not None and language != spoken:
        raise InputError(
            f"the plays are in {spoken!r}, the audit was asked for in {language!r}",
            path=first,
            mend="Leave --lang out",
        )
    plays_hashes = tuple(digest for *_, digest in made.values())
    return Material(tuple(kept), tuple(left), spoken, protocol, plays_hashes)


async def audit_trajectories(
    plays: Sequence[Path],
    judges: Sequence[str],
    out: Path,
    *,
    language: Language | None = None,
    limit: int = DEFAULT_LIMIT,
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Audited[TrajectoryAuditRow]:
    """Find out whether judges can be trusted with trajectories (`personae audit` over plays).

    Leaves `audits.json` (one audit a judge) and `audit_rows.jsonl` (every case) in the run. The
    audit is under the rubric and the protocol by which `personae rate` would rate these plays.

    Args:
        plays: play runs, or their plays.jsonl.
        judges: model ids.
        out: the run directory.
        limit: how many own trajectories, spread over scenes; each costs up to 52 calls.
        groups: which known groups to try; without one that decides no judge passes.

    Raises:
        UsageError: no judge, an unknown group, or other wrong arguments.
        InputError: see `read_trajectories`.
        StoppedEarlyError: a cap; call again to go on. The audit is written when it is whole.
    """
    options = options or Options()
    judges = tuple(dict.fromkeys(judges))
    check_asked(judges, plays, limit)
    check_words(judges)
    check_groups(groups, GROUPS)
    material = read_trajectories(plays, language)
    spoken = material.language
    sampling = seeded(RATING_SAMPLING, seed)
    rubric = rating_hash(spoken, material.protocol)
    manifest = new_manifest(
        "audit",
        {"judge": judges},
        spoken,
        room="rating",
        seed=seed,
        protocol=material.protocol,
        sampling={"judge": sampling.to_dict()},
        arguments={
            "answers": [str(path) for path in plays],
            "language": language,
            "limit": limit,
            "groups": list(groups),
            "cwd": str(Path.cwd()),
        },
        rubric_hash=rubric,
        made_from=(material.hash,),
        notes=tuple(_notes(material)),
    )
    own = choose(material.cases, limit, seed)
    cases = build_cases(own, material.cases, spoken, groups=groups, seed=seed)
    async with open_run(out, manifest, options, registry=registry) as run:
        rows = await ask_cases(
            run.client,
            judges,
            cases,
            protocol=material.protocol,
            sampling=sampling,
            window=options.window,
            watcher=options.watcher,
        )
        if run.dry:
            return Audited(out, (), (), material.left_out, run.plan)
        audits = tuple(
            judge_audit(
                judge,
                rows,
                language=spoken,
                rubric_hash=rubric,
                answers_hash=material.hash,
                groups=groups,
                seed=seed,
            )
            for judge in judges
        )
        write_audit(run, rows, audits)
        return Audited(out, audits, tuple(rows), material.left_out, run.plan)


_CAUSES = {"empty": "no_acts", "refusal": "refusal"}


def _notes(material: Material) -> list[str]:
    """What was left out, file by file, in plain words."""
    words = load_words(material.language)["trajectory_note"]
    return [
        words["left_out"].format(
            n=causes.total(),
            source=path,
            causes=", ".join(f"{words[_CAUSES[c]]} {n}" for c, n in sorted(causes.items())),
        )
        for path, causes in causes_by_file(material.left_out).items()
    ]
