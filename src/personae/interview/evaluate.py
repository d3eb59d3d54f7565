"""Answers, verdicts and lift: from a benchmark to result rows (PersonaGym, section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from personae.journal.flow import Watcher, each
from personae.judging.judge import JUDGE_SAMPLING, expected_score, verdict_call, verdict_fields
from personae.judging.lift import is_lift, persona_lift
from personae.judging.refusal import is_refusal
from personae.judging.rubrics import rubric_set
from personae.prompts import render
from personae.records import (
    Benchmark,
    Call,
    Failure,
    Language,
    Model,
    Persona,
    Question,
    ResultRow,
    Sampling,
)
from personae.records.turns import in_turns

ANSWER_SAMPLING = Sampling(temperature=0.9, top_p=0.9, max_tokens=1024)


@dataclass(frozen=True)
class EvalPlan:
    """What is evaluated by whom.

    Attributes:
        exemplars: show the judges the questions' exemplars.
        limit: how many questions, taken round-robin over personas, then tasks; None for all.
    """

    models: tuple[str, ...]
    judges: tuple[str, ...]
    exemplars: bool = True
    limit: int | None = None
    sampling: Sampling = ANSWER_SAMPLING
    judge_sampling: Sampling = JUDGE_SAMPLING


def limited(benchmark: Benchmark, limit: int | None) -> tuple[Question, ...]:
    """The first `limit` questions, round-robin over personas, then tasks.

    One question from each persona in turn; a persona's turns go through its tasks in turn.
    """
    if limit is None or limit >= len(benchmark.questions):
        return benchmark.questions
    queues: dict[str, dict[str, list[Question]]] = {p.id: {} for p in benchmark.personas}
    for question in benchmark.questions:
        queues[question.persona_id].setdefault(question.task, []).append(question)
    return tuple(in_turns([in_turns(tasks.values()) for tasks in queues.values()])[:limit])


def unit_id(model: str, question: Question) -> str:
    """The id of one answer, shared by all its judges and by people's ratings."""
    return f"{question.id}@{model}"


async def answer_question(
    model: Model,
    under_test: str,
    person: Persona,
    question: Question,
    *,
    language: Language,
    sampling: Sampling,
) -> tuple[str | None, Failure | None]:
    """One answer in character, or why there is none.

    The persona stands in the system prompt (section "Persona Agent Response Generation").
    """
    reply = await model.ask(
        Call(
            role="character",
            model=under_test,
            messages=render("answer", language, persona=person.description, question=question.text),
            sampling=sampling,
            meta={
                "persona": person.id,
                "task": question.task.value,
                "question": question.id,
            },
        )
    )
    return (reply.text, None) if reply.ok else (None, reply.failure)


async def evaluate(
    model: Model,
    benchmark: Benchmark,
    plan: EvalPlan,
    *,
    window: int = 256,
    watcher: Watcher | None = None,
) -> list[ResultRow]:
    """Every question answered by every model under test, every answer seen by every judge."""
    rubrics = rubric_set(benchmark.language, benchmark.rubrics)
    people = {p.id: p for p in benchmark.personas}
    questions = {q.id: q for q in benchmark.questions}
    seats = panel(plan.judges)
    verdicts_wanted = not all(is_lift(judge) for judge in plan.judges)
    units = [(m, q) for q in limited(benchmark, plan.limit) for m in plan.models]

    async def unit(job: tuple[str, Question]) -> list[ResultRow]:
        under_test, question = job
        person = people[question.persona_id]
        answer, failure = await answer_question(
            model,
            under_test,
            person,
            question,
            language=benchmark.language,
            sampling=plan.sampling,
        )
        row = ResultRow(
            unit_id=unit_id(under_test, question),
            model=under_test,
            persona=question.persona_id,
            task=question.task,
            question_id=question.id,
            question=question.text,
            environment=question.environment,
            answer=answer,
            judge="",
            score=None,
            failure=failure,
            refusal=None if answer is None else is_refusal(answer),
        )
        if answer is None:
            assert failure is not None
            nothing = Failure(cause=f"answer: {failure.cause}", detail=failure.detail)
            return [
                row.model_copy(update={"judge": judge, "repeat": repeat, "failure": nothing})
                for judge, repeat in seats
            ]
        # Judged without its exemplars, a score would not mean what its neighbours' scores mean.
        lacking = plan.exemplars and question.exemplars is None
        asked = None
        if verdicts_wanted and not lacking:
            # One prompt for the panel: judges differ in who reads it, not in what they read.
            asked = verdict_call(
                "the panel",
                rubrics,
                person,
                question,
                answer,
                language=benchmark.language,
                sampling=plan.judge_sampling,
                exemplars=plan.exemplars,
                meta={"unit": row.unit_id},
            )
        return list(
            await asyncio.gather(
                *(judged(row, asked, {"judge": judge, "repeat": repeat}) for judge, repeat in seats)
            )
        )

    async def judged(row: ResultRow, asked: Call | None, seat: dict[str, Any]) -> ResultRow:
        question, judge = questions[row.question_id], seat["judge"]
        if is_lift(judge):
            lift, failure = await persona_lift(
                model,
                judge,
                people[row.persona],
                benchmark.personas,
                question,
                row.answer or "",
                language=benchmark.language,
                unit=row.unit_id,
            )
            return row.model_copy(update={**seat, "lift": lift, "failure": failure})
        if asked is None:
            failure = Failure(cause="no_exemplars", detail="the question's exemplars failed")
            return row.model_copy(update={**seat, "failure": failure})
        reply = await model.ask(asked.model_copy(update={"model": judge, "repeat": seat["repeat"]}))
        return row.model_copy(
            update={**seat, **verdict_fields(reply), "expected_score": expected_score(reply)}
        )

    rows = await each(units, unit, stage="interview", window=window, watcher=watcher)
    return [row for some in rows for row in some]


def panel(judges: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Each judge with its repeat number: one that is named twice is asked twice."""
    seen: dict[str, int] = {}
    seats: list[tuple[str, int]] = []
    for judge in judges:
        seats.append((judge, seen.get(judge, 0)))
        seen[judge] = seen.get(judge, 0) + 1
    return tuple(seats)
