"""The stage `personae audit` over interviews: their judges, in a run of its own."""

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
from personae.interview.questions import INTERVIEWS, PROFILES
from personae.interview_stage import read_profiles
from personae.judging.answers import LeftOut
from personae.judging.audit import LEAST_PAIRS, load_words
from personae.judging.interview_audit import (
    GROUPS,
    OF_INTERVIEWS,
    OF_TRANSFERS,
    InterviewAuditRow,
    ask_cases,
    build_cases,
    choose,
    judge_audit,
    parts_of,
    usable,
)
from personae.judging.interview_metrics import interview_rubric_hash
from personae.judging.interviews import INTERVIEW_SAMPLING, InterviewCase, cases_of
from personae.judging.lift import check_words
from personae.models.registry import Registry
from personae.records import Language, content_hash
from personae.records.files import read_jsonl, read_records
from personae.records.interview import Interview
from personae.session import RESULTS, Options, new_manifest, open_run
from personae.stages import seeded


@dataclass(frozen=True)
class Material:
    """Interviews that can stand for their characters.

    Attributes:
        interviews: the hash of each run's interviews and of what judges are told there.
    """

    cases: tuple[InterviewCase, ...]
    left_out: tuple[LeftOut, ...]
    language: Language
    interviews: tuple[str, ...]

    @property
    def hash(self) -> str:
        """SHA-256 over all interviews, in whatever order."""
        return content_hash(sorted(self.interviews))


def is_interview(path: Path) -> bool:
    """Whether a path is an interview run, or its interviews.jsonl or results.jsonl."""
    if path.is_dir():
        return (path / INTERVIEWS).is_file()
    if path.suffix.lower() not in (".jsonl", ".ndjson") or not path.is_file():
        return False
    first = next(read_jsonl(path), None)
    return first is not None and (
        {"script_id", "exchanges"} <= first[1].keys() or "interview_id" in first[1]
    )


def read_material(paths: Sequence[Path], language: Language | None = None) -> Material:
    """The interviews of runs.

    Args:
        language: of the audit; None takes that of the interviews.

    Raises:
        InputError: a file cannot be used, or lies there without the profiles of its run; the
            interviews are in two languages; none can be used.
    """
    kept: list[InterviewCase] = []
    left: list[LeftOut] = []
    made: dict[str, Path] = {}
    languages: dict[Language, Path] = {}
    seen: set[str] = set()
    for path in paths:
        run = path if path.is_dir() else path.parent
        file = run / INTERVIEWS if path.is_dir() or path.name == RESULTS else path
        interviews = read_records(Interview, file)
        if not (run / PROFILES).is_file():
            raise InputError(
                f"there is no {PROFILES} beside it, which says who the characters are",
                path=file,
                mend="Give the interviews inside their run directory",
            )
        profiles = read_profiles(run)
        told = {profile.name: profile.text for profile in profiles}
        digest = content_hash([[one.to_dict() for one in interviews], told])
        if digest in made:
            continue  # a run and its interviews.jsonl are the same interviews
        made[digest] = path
        for one in interviews:
            languages.setdefault(one.language, path)
        found, unusable = usable(cases_of(interviews, profiles), str(path))
        left += unusable
        for case in found:
            unit, number = case.interview.id, 2
            while unit in seen:
                unit, number = f"{case.interview.id}#{number}", number + 1
            seen.add(unit)
            kept.append(
                replace(case, interview=case.interview.model_copy(update={"id": unit}))
                if unit != case.interview.id
                else case
            )
    first = next(iter(paths))
    if len(languages) > 1:
        raise InputError(
            "the interviews are in two languages, and a judge is audited for one",
            mend="Audit them one after the other",
        )
    if not kept:
        raise InputError(
            "no interview that can be used: all lack an answer or a profile, or hold refusals",
            path=first,
            mend="Interview a better model, or import them with --characters CARD...",
        )
    (spoken,) = languages
    if language is not None and language != spoken:
        raise InputError(
            f"the interviews are in {spoken!r}, the audit was asked for in {language!r}",
            path=first,
            mend="Leave --lang out",
        )
    return Material(tuple(kept), tuple(left), spoken, tuple(made))


async def audit_interviews(
    interviews: Sequence[Path],
    judges: Sequence[str],
    out: Path,
    *,
    language: Language | None = None,
    limit: int = DEFAULT_LIMIT,
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Audited[InterviewAuditRow]:
    """Find out whether judges can be trusted with interviews (`personae audit` over interviews).

    Leaves `audits.json` (one audit a judge) and `audit_rows.jsonl` (every case) in the run. The
    audit is under the rubrics by which `personae interview` judges, and vouches for the metrics
    that the interviews allow to try (`judging.interview_audit.covered`).

    Args:
        interviews: interview runs, or their interviews.jsonl.
        judges: model ids.
        out: the run directory.
        limit: how many own interviews, spread over characters; each costs up to 42 calls, a
            transfer dialogue up to 6.
        groups: which known groups to try; without one that decides no judge passes.

    Raises:
        UsageError: no judge, an unknown group, or other wrong arguments.
        InputError: see `read_material`.
        StoppedEarlyError: a cap; call again to go on. The audit is written when it is whole.
    """
    options = options or Options()
    judges = tuple(dict.fromkeys(judges))
    check_asked(judges, interviews, limit)
    check_words(judges)
    check_groups(groups, GROUPS)
    material = read_material(interviews, language)
    spoken = material.language
    sampling = seeded(INTERVIEW_SAMPLING, seed)
    rubric = interview_rubric_hash(spoken)
    manifest = new_manifest(
        "audit",
        {"judge": judges},
        spoken,
        room="interview_rating",
        seed=seed,
        sampling={"judge": sampling.to_dict()},
        arguments={
            "answers": [str(path) for path in interviews],
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
                parts=parts_of(material.cases),
                seed=seed,
            )
            for judge in judges
        )
        write_audit(run, rows, audits)
        return Audited(out, audits, tuple(rows), material.left_out, run.plan)


def _notes(material: Material) -> list[str]:
    """What was left out, and what the audit does not cover, in plain words."""
    tables = load_words(material.language)
    words, causes_in_words = tables["interview_note"], tables["interview_left_out"]
    notes = [
        words["left_out"].format(
            n=causes.total(),
            source=path,
            causes=", ".join(f"{causes_in_words[c]} {n}" for c, n in sorted(causes.items())),
        )
        for path, causes in causes_by_file(material.left_out).items()
    ]
    transfers = sum(case.interview.kind == "transfer" for case in material.cases)
    tried = parts_of(material.cases)
    if OF_TRANSFERS[0] not in tried:
        notes.append(words["no_trans"].format(n=transfers, least=LEAST_PAIRS))
    if OF_INTERVIEWS[0] not in tried:
        n = len(material.cases) - transfers
        notes.append(words["trans_only"].format(n=n, least=LEAST_PAIRS))
    return notes
