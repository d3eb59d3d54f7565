"""The stage `personae interview`: characters are asked, and what they answer is judged.

Neeko, sections 4 and 5. What is asked (the scripts) is the same for every model and method, so that
their answers stand side by side. A run holds `scripts.jsonl`, `profiles.jsonl` (what judges are
told of the characters), `interviews.jsonl` and `results.jsonl`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.audit_stage import causes_by_file
from personae.cast.backend import parse_cast_id, pinned
from personae.errors import InputError, OutputError, StoppedEarlyError, UsageError
from personae.interview.evaluate import panel
from personae.interview.hold import (
    CHARACTER_SAMPLING,
    INTERVIEWER_SAMPLING,
    hold,
    interview_id,
    speaker_id,
)
from personae.interview.neeko import import_dialogues
from personae.interview.people import Interviewee, read_interviewees
from personae.interview.questions import (
    INTERVIEWS,
    MAX_TURNS,
    PROFILES,
    SCRIPTS,
    WRITER_SAMPLING,
    placed,
    read_scripts,
    write_questions,
)
from personae.interview.transfer import TURNS, transfer_scripts
from personae.journal.client import Client, Plan
from personae.journal.flow import each
from personae.judging.answers import LeftOut
from personae.judging.interview_metrics import interview_rubric_hash
from personae.judging.interviews import INTERVIEW_SAMPLING, case_of, judge_rows
from personae.judging.lift import check_words
from personae.models.registry import Registry, model_scheme
from personae.records import (
    Interview,
    InterviewProfile,
    InterviewRow,
    InterviewScript,
    Language,
    Manifest,
    Model,
    Sampling,
    content_hash,
)
from personae.records.files import read_records, write_records
from personae.records.interview import Method
from personae.records.turns import in_turns
from personae.session import (
    CAST,
    RESULTS,
    Options,
    Run,
    new_manifest,
    open_run,
    repair_messages,
)
from personae.stages import seeded

INTERVIEW = "interview"
IMPORT = "interview import"
WHY_NOT_ASKED = {"not_asked": "for somebody who is not among --characters"}
ROOMS = ("interviews", "questioning", "interview_rating")
METHODS: tuple[Method, ...] = ("prompt", "rag", "cast")
MOST_WRITTEN = 1_000
"""Questions for each character: their writer is shown all that it has written before."""
TRANSFER_EACH = 10
"""Transfer dialogues for each character: the paper has 90 of nine (appendix A.3)."""


@dataclass(frozen=True)
class Interviewed:
    """What `interview` and `import_interviews` leave; in a dry run a plan and nothing else."""

    run: Path
    interviews: tuple[Interview, ...]
    rows: tuple[InterviewRow, ...]
    plan: Plan | None


@dataclass(frozen=True)
class Voice:
    """A model under one method.

    Attributes:
        speaks: the model id that is asked, by character.
    """

    model: str
    method: Method
    speaks: Mapping[str, str]


@dataclass(frozen=True)
class Material:
    """All that a run needs before anybody is asked."""

    people: Mapping[str, Interviewee]
    voices: tuple[Voice, ...]
    interviewer: str | None
    judges: tuple[str, ...]
    language: Language
    sampling: Mapping[str, Sampling]

    @property
    def profiles(self) -> tuple[InterviewProfile, ...]:
        """What judges are told."""
        return tuple(
            InterviewProfile(name=p.name, text=p.profile, source=p.source)
            for p in self.people.values()
        )


@dataclass
class _Held:
    """One interview and its verdicts."""

    interview: Interview
    rows: list[InterviewRow] = field(default_factory=list)


async def interview(
    characters: Sequence[Path | str],
    out: Path,
    models: Sequence[str],
    judges: Sequence[str],
    *,
    questions: Sequence[Path] = (),
    generate: int | None = None,
    turns: int | None = None,
    methods: Sequence[Method] = (),
    interviewer: str | None = None,
    transfer: bool = False,
    language: Language = "en",
    location: str | None = None,
    status: str | None = None,
    limit: int | None = None,
    sampling: Mapping[str, Any] | None = None,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Interviewed:
    """Interview characters and have the interviews judged (`personae interview`).

    Args:
        characters: cards, folders of cards, `starter:ID`, Neeko's profiles.
        out: the run directory.
        models: who plays; `cast:DIR` plays each character through its blocks.
        questions: files of questions or dialogues (docs/interview-data.md); or
        generate: how many questions to have written for each character.
        turns: of an interview; more than one leads a live interviewer from each question.
        methods: `prompt`, `rag`, `cast`; default: `cast` of casts, `prompt` of others.
        interviewer: writes questions and leads live interviews.
        transfer: the character changes every turn (appendix A.3).
        location, status: of the meta prompt (appendix B.2); default: a neutral one.
        limit: scripts, taken in turns from the characters.
        sampling: overrides for the models under test.

    Raises:
        UsageError: arguments that do not go together; a character whom a cast has not.
        InputError: a file cannot be used.
        StoppedEarlyError: a cap or Ctrl-C; call again to go on. What was answered is in
            results.jsonl, the rest is marked `not_asked`.
    """
    options = options or Options()
    _check(models, judges, questions, generate, turns, interviewer, transfer, limit)
    people = {p.name: p for p in read_interviewees(characters, language)}
    if transfer and len(people) < 2:
        raise UsageError("--transfer needs two characters at least")
    if transfer and generate is not None and generate * len(people) < (turns or TURNS):
        raise UsageError(
            f"a dialogue of {turns or TURNS} turns asks nothing twice, and --generate {generate} "
            f"gives {generate * len(people)} questions"
        )
    voices = _voices(models, methods, tuple(people))
    unasked: list[LeftOut] = []
    given = read_scripts(
        questions,
        tuple(people.values()),
        turns=1 if transfer else turns or 1,
        language=language,
        location=location,
        status=status,
        left_out=unasked,
    )
    _check_led(given, interviewer, transfer)
    if turns is not None and turns > 1 and not transfer and given:
        _check_turns(given)
    _check_language(given, language)

    def drawn(scripts: Sequence[InterviewScript]) -> tuple[InterviewScript, ...]:
        """Transfer dialogues of these."""
        made = transfer_scripts(
            scripts,
            tuple(people.values()),
            TRANSFER_EACH * len(people) if limit is None else limit,
            turns=turns or TURNS,
            seed=seed,
            live=interviewer is not None and generate is None,
        )
        return tuple(placed(script, location, status) for script in made)

    # Files that do not give so many are told before there is a run that another --limit is not of.
    from_files = drawn(given) if transfer and generate is None else given
    samplings = {
        "model": Sampling.from_dict(
            {**seeded(CHARACTER_SAMPLING, seed).to_dict(), **(sampling or {})}, place="sampling"
        ),
        "interviewer": seeded(INTERVIEWER_SAMPLING, seed),
        "writer": seeded(WRITER_SAMPLING, seed),
        "judge": seeded(INTERVIEW_SAMPLING, seed),
    }
    material = Material(
        people=people,
        voices=voices,
        interviewer=interviewer,
        judges=tuple(judges),
        language=language,
        sampling=samplings,
    )
    manifest = new_manifest(
        INTERVIEW,
        {
            "model": _asked(voices),
            "interviewer": [interviewer] if interviewer else [],
            "judge": list(judges),
        },
        language,
        room=ROOMS,
        seed=seed,
        sampling={name: s.to_dict() for name, s in samplings.items()},
        arguments={
            "characters": [str(c) for c in characters],
            "models": list(models),
            "questions": [str(q) for q in questions],
            "generate": generate,
            "turns": turns,
            "methods": list(methods),
            "transfer": transfer,
            "location": location,
            "status": status,
            "limit": limit,
            "sampling": dict(sampling or {}),
            "cwd": str(Path.cwd()),
        },
        rubric_hash=interview_rubric_hash(language),
        made_from=(
            *(content_hash(p.card.to_dict()) for p in people.values()),
            *(script.hash for script in given),
        ),
    )
    async with open_run(out, manifest, options, registry=registry) as run:
        notes = _left_out_notes(unasked)
        scripts = from_files
        if generate is not None:
            scripts, short = await _written(
                run, material, generate, 1 if transfer else turns or 1, location, status
            )
            notes += short
        if transfer and generate is not None:
            scripts = drawn(scripts)
        scripts = _limited(scripts, None if transfer else limit)
        if not scripts and not run.dry:
            why = f": {'; '.join(notes[:3])}" if notes else ""
            raise InputError(f"there is nothing to ask{why}", path=out, mend="Give other questions")
        run.manifest = run.manifest.model_copy(update={"notes": tuple(notes)})
        if options.live:
            write_records(scripts, out / SCRIPTS)
            write_records(material.profiles, out / PROFILES)
        return await _hold_and_judge(run, material, scripts)


async def import_interviews(
    files: Sequence[Path],
    out: Path,
    judges: Sequence[str] = (),
    *,
    characters: Sequence[Path | str] = (),
    language: Language = "en",
    limit: int | None = None,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Interviewed:
    """Published interviews as a run (`personae interview import`), judged where judges are named.

    A reply that is empty or contaminated is kept and reported, and never scored; nor is a dialogue
    with somebody of whom there is no profile.

    Args:
        files: see docs/interview-data.md; folders of them.
        characters: cards, where no profile lies beside the files.

    Raises:
        InputError: a file cannot be used; judges are named and there is a profile of nobody.
        StoppedEarlyError: as `interview`.
    """
    options = options or Options()
    check_words(judges)
    people = read_interviewees(characters, language) if characters else ()
    found = import_dialogues(files, people, language=language)
    _check_language(found.interviews, language)
    interviews = _limited_interviews(found.interviews, limit)
    notes = found.notes
    if len(interviews) < len(found.interviews):
        notes += (f"{len(interviews)} of the {len(found.interviews)} interviews (--limit)",)
    asked = {one.script_id for one in interviews}
    called = {name for one in interviews for name in one.characters}
    profiles = {p.name: p for p in found.profiles if p.name in called}
    if judges:
        _check_known(interviews, profiles)
    sampling = seeded(INTERVIEW_SAMPLING, seed)
    material = Material(
        people={},
        voices=(),
        interviewer=None,
        judges=tuple(judges),
        language=language,
        sampling={"judge": sampling},
    )
    manifest = new_manifest(
        IMPORT,
        {"judge": list(judges)},
        language,
        room=ROOMS,
        seed=seed,
        sampling={"judge": sampling.to_dict()},
        arguments={
            "files": [str(f) for f in files],
            "characters": [str(c) for c in characters],
            "limit": limit,
            "cwd": str(Path.cwd()),
        },
        rubric_hash=interview_rubric_hash(language),
        made_from=(
            *sorted(content_hash(i.to_dict()) for i in interviews),
            *sorted(content_hash([p.name, p.text]) for p in profiles.values()),
        ),
        notes=notes,
    )
    async with open_run(out, manifest, options, registry=registry) as run:
        if options.live:
            write_records(profiles.values(), out / PROFILES)
            write_records((s for s in found.scripts if s.id in asked), out / SCRIPTS)
            write_records(interviews, out / INTERVIEWS)
        return await _carry_out(run, material, [_Given(i) for i in interviews], profiles)


# Who is asked what -------------------------------------------------------------------------------


def _check(
    models: Sequence[str],
    judges: Sequence[str],
    questions: Sequence[Path],
    generate: int | None,
    turns: int | None,
    interviewer: str | None,
    transfer: bool,
    limit: int | None,
) -> None:
    if not models or not judges:
        raise UsageError("give at least one --model and one --judge")
    if len(set(models)) != len(models):
        raise UsageError("a --model is named twice")
    check_words(judges)
    if bool(questions) == (generate is not None):
        raise UsageError("give either --questions FILE or --generate N")
    for name, value in (("generate", generate), ("turns", turns), ("limit", limit)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} counts from 1")
    if turns is not None and turns > MAX_TURNS:
        raise UsageError(f"an interview has {MAX_TURNS:,} turns at the most")
    if generate is not None and generate > MOST_WRITTEN:
        raise UsageError(f"--generate has {MOST_WRITTEN:,} questions a character written at most")
    if generate is not None and interviewer is None:
        raise UsageError("--generate needs --interviewer MODEL, who writes the questions")
    if transfer and turns is not None and turns < 2:
        raise UsageError("a transfer dialogue has two turns at least")


def _check_led(scripts: Sequence[InterviewScript], interviewer: str | None, transfer: bool) -> None:
    # What dialogues are made of may be led; those that are transfer dialogues are held as they are.
    led = [s for s in scripts if s.mode == "live" and (s.kind == "transfer" or not transfer)]
    if interviewer is None and led:
        raise UsageError(
            f"{led[0].id} leaves the words to an interviewer: give --interviewer MODEL"
        )


def _check_turns(scripts: Sequence[InterviewScript]) -> None:
    if not any(script.mode == "live" for script in scripts):
        raise UsageError(
            "--turns leads on from questions, and these files hold dialogues or scripts, which are "
            "asked as they stand"
        )


def _check_language(asked: Iterable[InterviewScript | Interview], language: Language) -> None:
    """Rubrics, and so the audits that count, are those of the run's one language."""
    for one in asked:
        if one.language != language:
            raise InputError(
                f"{one.id} is in {one.language!r}, and the run is in {language!r}",
                mend=f"Give --lang {one.language}, or leave out what is in another language",
            )


def _voices(
    models: Sequence[str], methods: Sequence[Method], names: Sequence[str]
) -> tuple[Voice, ...]:
    """Every model under each of its methods.

    Raises:
        UsageError: a method is unknown; `cast` is asked for and no model is a cast, or nothing else
            and one is none; a cast has not all of the characters, or is asked for one of them.
    """
    unknown = [m for m in methods if m not in METHODS]
    if unknown:
        raise UsageError(f"--method has no {unknown[0]!r}; there are {', '.join(METHODS)}")
    casts = [m for m in models if model_scheme(m) == CAST]
    if "cast" in methods and not casts:
        raise UsageError("--method cast needs a --model cast:DIR")
    found: list[Voice] = []
    for model in models:
        is_cast = model in casts
        wanted = tuple(dict.fromkeys(methods)) or (("cast",) if is_cast else ("prompt",))
        if not is_cast and set(wanted) == {"cast"}:
            raise UsageError(f"{model} is no cast: --method needs prompt or rag for it")
        for method in wanted:
            if method == "cast" and not is_cast:
                continue
            found.append(Voice(model, method, _speakers(model, method, is_cast, names)))
    return tuple(found)


def _speakers(model: str, method: Method, is_cast: bool, names: Sequence[str]) -> dict[str, str]:
    if is_cast and method == "cast":
        asked = parse_cast_id(model)
        if asked.name is None and not asked.base:
            return pinned(model, names)
        if asked.name is not None and len(names) > 1:
            raise UsageError(
                f"{model} plays one character, and there are {len(names)}: give "
                f"{CAST}:{asked.path}, which plays each"
            )
    return {name: speaker_id(model, method, name) for name in names}


def _asked(voices: Sequence[Voice]) -> list[str]:
    """The ids that are really called, each once."""
    return list(dict.fromkeys(id_ for voice in voices for id_ in voice.speaks.values()))


async def _written(
    run: Run,
    material: Material,
    count: int,
    turns: int,
    location: str | None,
    status: str | None,
) -> tuple[tuple[InterviewScript, ...], list[str]]:
    """Questions for every character, and in plain words what could not be had of them."""

    async def one(person: Interviewee) -> Any:
        return await write_questions(
            run.client,
            material.interviewer or "",
            person,
            count,
            turns=turns,
            language=material.language,
            location=location,
            status=status,
            sampling=material.sampling["writer"],
        )

    found = await each(
        material.people.values(),
        one,
        stage="questions",
        window=run.options.window,
        watcher=run.options.watcher,
    )
    notes = [f"{s.what}: {s.got} of {s.wanted} ({s.cause})" for _, short in found for s in short]
    return tuple(script for scripts, _ in found for script in scripts), notes


def _limited(scripts: Sequence[InterviewScript], limit: int | None) -> tuple[InterviewScript, ...]:
    """The first of every character, then the second, ..., up to the limit."""
    if limit is None:
        return tuple(scripts)
    queues: dict[tuple[str, ...], list[InterviewScript]] = {}
    for script in scripts:
        queues.setdefault(script.characters, []).append(script)
    kept = {script.id for script in in_turns(queues.values())[:limit]}
    return tuple(script for script in scripts if script.id in kept)


def _limited_interviews(
    interviews: Sequence[Interview], limit: int | None
) -> tuple[Interview, ...]:
    if limit is None:
        return tuple(interviews)
    systems: dict[object, dict[object, list[Interview]]] = {}
    for one in interviews:
        of_system = systems.setdefault((one.model, one.kind), {})
        of_system.setdefault(one.characters, []).append(one)
    queues = [in_turns(by_character.values()) for by_character in systems.values()]
    kept = {one.id for one in in_turns(queues)[:limit]}
    return tuple(one for one in interviews if one.id in kept)


def _left_out_notes(left_out: Sequence[LeftOut]) -> list[str]:
    """What of the question files is not asked, in plain words."""
    return [
        f"{path}: {count} not asked ({WHY_NOT_ASKED.get(cause, cause)})"
        for path, causes in causes_by_file(left_out).items()
        for cause, count in sorted(causes.items())
    ]


def _check_known(interviews: Sequence[Interview], profiles: Mapping[str, InterviewProfile]) -> None:
    """Better noticed before anything is paid for."""
    lacking = {name for one in interviews for name in one.characters if name not in profiles}
    if lacking and not any(lacking.isdisjoint(one.characters) for one in interviews):
        raise InputError(
            f"no profile of {', '.join(sorted(lacking))}, which judges need",
            mend="Put wiki_NAME.txt into profiles/ beside the data, or give --characters CARD...",
        )


# Holding and judging -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """An interview to be held."""

    script: InterviewScript
    voice: Voice


@dataclass(frozen=True)
class _Given:
    """An interview that was held elsewhere."""

    interview: Interview


async def _hold_and_judge(
    run: Run, material: Material, scripts: Sequence[InterviewScript]
) -> Interviewed:
    jobs = [_Asked(script, voice) for script in scripts for voice in material.voices]
    profiles = {p.name: p for p in material.profiles}
    return await _carry_out(run, material, jobs, profiles)


async def _carry_out(
    run: Run,
    material: Material,
    jobs: Sequence[_Asked | _Given],
    profiles: Mapping[str, InterviewProfile],
) -> Interviewed:
    """Hold and judge in an open run, and write what there is, when it is stopped too.

    Raises:
        StoppedEarlyError: a cap or Ctrl-C; what was not asked is marked `not_asked`.
    """
    options = run.options

    async def all_of(client: Client) -> list[_Held]:
        async def one(job: _Asked | _Given) -> _Held:
            return await _one(client, job, material, profiles)

        watcher = options.watcher if client is run.client else None
        return await each(jobs, one, stage="interviews", window=options.window, watcher=watcher)

    try:
        held = await all_of(run.client)
    except StoppedEarlyError:
        journal = run.client.journal
        if journal is not None and not run.dry:
            repair = repair_messages(material.language)
            reader = Client(journal, Registry(), repair=repair, replay=True, gaps=True)
            with contextlib.suppress(OutputError):  # the stop is what the user must hear of
                _write(run, material, await all_of(reader))
        raise
    if options.live:
        _write(run, material, held)
    if run.dry:
        return Interviewed(run.path, (), (), run.plan)
    rows = tuple(row for one in held for row in one.rows)
    return Interviewed(run.path, tuple(one.interview for one in held), rows, None)


async def _one(
    model: Model, job: _Asked | _Given, material: Material, profiles: Mapping[str, InterviewProfile]
) -> _Held:
    """Hold an interview, or take it as it is, and have every judge judge it."""
    if isinstance(job, _Given):
        done = job.interview
    else:
        done = await hold(
            model,
            job.script,
            material.people,
            id=interview_id(job.script, job.voice.model, job.voice.method),
            model_id=job.voice.model,
            speaks=job.voice.speaks,
            method=job.voice.method,
            interviewer=material.interviewer,
            sampling=material.sampling["model"],
            interviewer_sampling=material.sampling["interviewer"],
        )
    if not material.judges:
        return _Held(done)
    case = case_of(done, profiles)
    found = await asyncio.gather(
        *(
            judge_rows(model, seat, case, sampling=material.sampling["judge"])
            for seat in panel(material.judges)
        )
    )
    return _Held(done, [row for rows in found for row in rows])


def _write(run: Run, material: Material, held: Sequence[_Held]) -> None:
    write_records([one.interview for one in held], run.path / INTERVIEWS)
    if material.judges:
        write_records((row for one in held for row in one.rows), run.path / RESULTS)


def read_interviews(run: Path) -> tuple[Interview, ...]:
    """The interviews of a run directory.

    Raises:
        InputError: there are none, or a line is no interview.
    """
    return read_records(Interview, run / INTERVIEWS)


def read_profiles(run: Path) -> tuple[InterviewProfile, ...]:
    """What judges were told of the characters of a run.

    Raises:
        InputError: as `read_interviews`.
    """
    return read_records(InterviewProfile, run / PROFILES)


def read_kept_scripts(run: Path) -> tuple[InterviewScript, ...]:
    """What was asked in a run.

    Raises:
        InputError: as `read_interviews`.
    """
    return read_records(InterviewScript, run / SCRIPTS)


def is_interview_run(manifest: Manifest) -> bool:
    """Whether a run holds interviews."""
    return manifest.kind in (INTERVIEW, IMPORT)
