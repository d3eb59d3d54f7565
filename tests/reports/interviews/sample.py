"""Runs of interviews on disk, with scores that can be counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from personae.interview.questions import INTERVIEWS, SCRIPTS
from personae.interview_stage import INTERVIEW
from personae.judging.interview_metrics import STABILITY, interview_rubric_hash, metrics_for
from personae.models.prices import load_prices
from personae.records import (
    Audit,
    AuditGroup,
    Exchange,
    Failure,
    Interview,
    InterviewRow,
    InterviewScript,
    Language,
    Manifest,
    ScriptTurn,
)
from personae.records.interview import InterviewMode, Method
from personae.reports.interviews import InterviewsReport, gather_interviews
from personae.session import MANIFEST, RESULTS
from personae.stages import write_results

Score = Callable[[Interview, str], int | None]
"""A judge's score of an interview on a metric; None is a reply that was no verdict."""

BY_NAME = {"Ada": 6, "Bede": 4, "阿黛": 6, "白德": 4}


def by_name(one: Interview, metric: str) -> int:
    """Ada 6 and Bede 4, two less on Stab, one less when asked by retrieval."""
    return BY_NAME[one.characters[0]] - 2 * (metric == STABILITY) - (one.method == "rag")


def question(number: int, character: str = "Ada", **more: object) -> InterviewScript:
    """A single question."""
    return InterviewScript.model_validate(
        {
            "id": f"{character}/{number}",
            "kind": "single",
            "topic": "Values",
            "topic_id": "topic-3",
            "location": "A quay at night",
            "status": "waiting for the ferry",
            "turns": [ScriptTurn(character=character, asked=f"Question {number} to {character}?")],
            **more,
        }
    )


def talk(number: int, character: str = "Ada", turns: int = 3, **more: object) -> InterviewScript:
    """An interview of fixed words."""
    return InterviewScript.model_validate(
        {
            "id": f"{character}/talk/{number}",
            "kind": "multi",
            "topic": "The crossing",
            "turns": [
                ScriptTurn(character=character, asked=f"Turn {i} of {number}?")
                for i in range(1, turns + 1)
            ],
            **more,
        }
    )


def switching(number: int = 1, names: Sequence[str] = ("Ada", "Bede", "Ada")) -> InterviewScript:
    """A transfer dialogue."""
    turns = [ScriptTurn(character=n, asked=f"And you, {n}?") for n in names]
    return InterviewScript(id=f"switch/{number}", kind="transfer", turns=tuple(turns))


def held(
    script: InterviewScript,
    model: str = "test:player",
    method: Method = "prompt",
    *,
    mode: InterviewMode | None = None,
    answer: str = "",
    failures: dict[int, Failure] | None = None,
    passages: Sequence[str] = (),
    interviewer: str | None = None,
    source: str = "",
) -> Interview:
    """A script as it was held.

    Args:
        answer: stands as every answer; empty gives plain words.
        failures: by turn (from 1); the words stand beside them unless nothing came.
    """
    lost = failures or {}
    return Interview(
        id=f"{script.id}@{model}#{method}",
        script_id=script.id,
        kind=script.kind,
        mode=mode or script.mode,
        method=method,
        model=model,
        interviewer=interviewer,
        language=script.language,
        topic=script.topic,
        topic_id=script.topic_id,
        tempting=script.tempting,
        location=script.location,
        status=script.status,
        source=source,
        exchanges=tuple(
            Exchange(
                character=turn.character,
                asked=turn.asked if interviewer is None else f"{turn.asked} ({model} {method})",
                answer=None
                if i in lost and lost[i].cause in ("timeout", "not_reached")
                else answer or f"{turn.character} answers {i} by {method}.",
                failure=lost.get(i),
                passages=tuple(passages),
            )
            for i, turn in enumerate(script.turns, 1)
        ),
    )


def verdicts(
    one: Interview,
    judge: str = "test:judge",
    score: Score = by_name,
    *,
    reason: str = "So it reads.",
    repeat: int = 0,
) -> list[InterviewRow]:
    """What one judge says of an interview; under Stab each turn has the score of the whole."""
    failure = one.failure
    return [
        InterviewRow(
            interview_id=one.id,
            script_id=one.script_id,
            kind=one.kind,
            mode=one.mode,
            method=one.method,
            model=one.model,
            language=one.language,
            characters=one.characters,
            topic=one.topic,
            topic_id=one.topic_id,
            tempting=one.tempting,
            turns=len(one.exchanges),
            judge=judge,
            metric=metric,
            score=given,
            failure=None
            if given is not None
            else Failure(cause="malformed", detail="no score in it")
            if failure is None
            else Failure(cause=f"answer: {failure.cause}", detail=failure.detail),
            reasoning=None if given is None else f"{reason} ({metric})",
            turn_scores=(given,) * len(one.exchanges)
            if given is not None and metric == STABILITY
            else (),
            repeat=repeat,
        )
        for metric in metrics_for(one.kind)
        for given in [None if failure is not None else score(one, metric)]
    ]


def interview_run(
    run: Path,
    interviews: Sequence[Interview],
    judges: Iterable[str] = ("test:judge",),
    *,
    scripts: Sequence[InterviewScript] = (),
    score: Score = by_name,
    reason: str = "So it reads.",
    **more: object,
) -> Path:
    """A run as `personae interview` leaves it, without its journal."""
    run.mkdir(parents=True)
    language: Language = interviews[0].language
    seats = list(judges)
    manifest = Manifest(
        kind=INTERVIEW,
        arguments={"characters": ["starter:ada"]},
        models={
            "model": tuple(dict.fromkeys(one.model for one in interviews)),
            "judge": tuple(seats),
        },
        language=language,
        rubric_hash=interview_rubric_hash(language),
        created="2026-11-20T10:00:00Z",
        status="done",
    ).model_copy(update=more)
    (run / MANIFEST).write_text(manifest.to_json(), "utf-8")
    write_results(scripts, run / SCRIPTS)
    write_results(interviews, run / INTERVIEWS)
    rows = [
        row
        for one in interviews
        for i, judge in enumerate(seats)
        for row in verdicts(one, judge, score, reason=reason, repeat=seats[:i].count(judge))
    ]
    if seats:
        write_results(rows, run / RESULTS)
    return run


def both_methods(scripts: Sequence[InterviewScript], model: str = "test:player") -> list[Interview]:
    """The scripts as a model held them with the card in its prompt, and by retrieval."""
    return [
        held(script, model, method, passages=("She keeps the lamp.",) if method == "rag" else ())
        for script in scripts
        for method in ("prompt", "rag")
    ]


def two_questions_each() -> list[InterviewScript]:
    """Two questions to Ada and two to Bede, the second of each tempting."""
    return [
        question(number, name, tempting=number == 2)
        for name in ("Ada", "Bede")
        for number in (1, 2)
    ]


def audit(
    folder: Path,
    judge: str = "test:judge",
    *,
    verdict: str = "passed",
    language: Language = "en",
    groups: Sequence[str] = ("refusal", "order"),
) -> Path:
    """An audit of a judge of interviews, as `personae audit` leaves it.

    Args:
        groups: that were tried; those of the default speak of the seven metrics, not of Trans.
    """
    folder.mkdir()
    about = Audit(
        judge=judge,
        rubric_hash=interview_rubric_hash(language),
        language=language,
        verdict="passed" if verdict == "passed" else "failed",
        reasons=() if verdict == "passed" else ("it cannot tell refusals apart",),
        groups=tuple(
            AuditGroup(name=name, auc=0.6, low=0.5, high=0.7, n=20, missing=0,
                       passed=verdict == "passed")
            for name in groups
        ),
        order_shift=0.1, length_slope=None, repeat_variance=None, swap_shift=None, missing=0,
        thresholds={"auc_low": 0.8},
    )  # fmt: skip
    (folder / "audits.json").write_text(json.dumps([about.to_dict()]), "utf-8")
    return folder


def report(*runs: Path, **more: object) -> InterviewsReport:
    """The report of these runs."""
    return gather_interviews(runs, prices=load_prices(), **more)  # type: ignore[arg-type]
