"""From personas to a benchmark: environments, questions, exemplars (PersonaGym, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from personae.journal.flow import Watcher, each
from personae.judging.rubrics import rubric_set
from personae.prompts import render
from personae.prompts.schemas import environments_schema, exemplars_schema, questions_schema
from personae.records import (
    Benchmark,
    Call,
    Language,
    Model,
    Persona,
    Question,
    Sampling,
    Shortfall,
    Task,
)
from personae.records.similarity import Distinct

MOST_ENVIRONMENTS = 6
BATCH = 10
ROUNDS = 4
# Two questions about one scene share many words by nature; only near-identical ones are refused.
SAME_QUESTION = 0.75

EXAMINER_SAMPLING = Sampling(temperature=0.9, top_p=0.9, max_tokens=3000)
"""Section 4, "Environment and Question Generation"."""
EXEMPLAR_SAMPLING = Sampling(temperature=0.0, max_tokens=3000)


_Job: TypeAlias = tuple[Persona, Task, tuple[str, ...]]
_Written: TypeAlias = tuple[list[tuple[str, str]], str]


@dataclass(frozen=True)
class BuildPlan:
    """What a benchmark is built of.

    Attributes:
        questions: how many a task, or a task and environment if `per_environment`.
        pool: the names of the environments to choose from.
    """

    examiner: str
    pool: tuple[str, ...]
    language: Language = "en"
    tasks: tuple[Task, ...] = tuple(Task)
    questions: int = 10
    per_environment: bool = False
    most_environments: int = MOST_ENVIRONMENTS
    sampling: Sampling = EXAMINER_SAMPLING


def question_id(persona_id: str, task: Task, number: int) -> str:
    """The id of the question of that number (from 1) among a persona's questions of one task."""
    return f"{persona_id}/{task.short}/{number:02d}"


async def select_environments(
    model: Model, plan: BuildPlan, persona: Persona
) -> tuple[tuple[str, ...], str]:
    """The environments relevant to a persona, every name out of the pool; or none and the cause."""
    cause = ""
    for repeat in range(ROUNDS):
        reply = await model.ask(
            Call(
                role="examiner",
                model=plan.examiner,
                messages=render(
                    "environments",
                    plan.language,
                    pool=plan.pool,
                    persona=persona.description,
                    maximum=plan.most_environments,
                ),
                reply_schema=environments_schema(plan.pool, plan.most_environments),
                sampling=plan.sampling,
                repeat=repeat,
                meta={"stage": "environments", "persona": persona.id},
            )
        )
        if reply.ok:
            return tuple(reply.value["environments"]), ""
        assert reply.failure is not None
        cause = reply.failure.cause
    return (), f"the examiner failed: {cause}"


async def write_questions(
    model: Model,
    plan: BuildPlan,
    persona: Persona,
    task: Task,
    environments: Sequence[str],
    count: int,
    asked: Sequence[str] = (),
) -> _Written:
    """`count` distinct (environment, question) pairs; fewer with the cause, never more.

    Args:
        asked: questions that were written before and may not come again.
    """
    distinct = Distinct(SAME_QUESTION)
    for text in asked:
        distinct.add(text)

    def call(wanted: int, repeat: int, found: Sequence[tuple[str, str]]) -> Call:
        return Call(
            role="examiner",
            model=plan.examiner,
            messages=render(
                "questions",
                plan.language,
                task=task,
                persona=persona.description,
                environments=list(environments),
                count=wanted,
                accepted=[*asked, *(text for _, text in found)],
            ),
            reply_schema=questions_schema(wanted, environments),
            sampling=plan.sampling,
            repeat=repeat,
            meta={"stage": "questions", "persona": persona.id, "task": task.value},
        )

    def read(item: Mapping[str, str]) -> tuple[str, str]:
        return item["environment"], item["question"].strip()

    return await until_enough(model, call, read, count, distinct, who="examiner")


async def until_enough(
    model: Model,
    call: Callable[[int, int, Sequence[tuple[str, str]]], Call],
    read: Callable[[Any], tuple[str, str]],
    count: int,
    distinct: Distinct,
    *,
    who: str,
) -> tuple[list[tuple[str, str]], str]:
    """Ask for questions until `count` of them differ, or four rounds brought nothing new.

    Args:
        call: asks for so many; which time it is, from 0; what has been accepted so far.
        read: what an element of the reply's `questions` belongs to, and its words.
        distinct: takes up what is accepted.
        who: writes them, for the cause.

    Returns:
        what was accepted, and why it is fewer; empty where it is not.
    """
    found: list[tuple[str, str]] = []
    cause = ""
    repeat = 0
    idle = 0
    while len(found) < count and idle < ROUNDS:
        reply = await model.ask(call(min(BATCH, count - len(found)), repeat, found))
        repeat += 1
        fresh = 0
        if reply.ok:
            for item in reply.value["questions"]:
                about, text = read(item)
                if text and len(found) < count and distinct.add(text):
                    found.append((about, text))
                    fresh += 1
            cause = f"the {who} repeated itself"
        else:
            assert reply.failure is not None
            cause = f"the {who} failed: {reply.failure.cause}"
        idle = 0 if fresh else idle + 1
    return found, "" if len(found) == count else cause


async def build_benchmark(
    model: Model,
    plan: BuildPlan,
    personas: Sequence[Persona],
    *,
    window: int = 64,
    watcher: Watcher | None = None,
) -> Benchmark:
    """Environments and questions for every persona; what was not delivered is in `shortfalls`."""
    chosen = await each(
        personas,
        lambda p: select_environments(model, plan, p),
        stage="environments",
        window=window,
        watcher=watcher,
    )
    shortfalls = [
        Shortfall(what=f"environments of {p.id}", wanted=1, got=0, cause=cause)
        for p, (names, cause) in zip(personas, chosen, strict=True)
        if not names
    ]
    jobs: list[_Job] = []
    for persona, (names, _) in zip(personas, chosen, strict=True):
        for task in plan.tasks:
            if not names:
                short = f"{task} questions to {persona.id}"
                shortfalls.append(
                    Shortfall(what=short, wanted=plan.questions, got=0, cause="no environment")
                )
            else:
                jobs.append((persona, task, names))

    async def write(job: _Job) -> list[_Written]:
        # One environment after the other: a question must not come again in the next one.
        persona, task, names = job
        done: list[_Written] = []
        for group in [(name,) for name in names] if plan.per_environment else [names]:
            asked = [text for pairs, _ in done for _, text in pairs]
            done.append(
                await write_questions(model, plan, persona, task, group, plan.questions, asked)
            )
        return done

    written = await each(
        jobs,
        write,
        stage="questions",
        window=window,
        watcher=watcher,
    )
    questions: list[Question] = []
    numbers: dict[tuple[str, Task], int] = {}
    for (persona, task), (pairs, cause) in (
        ((persona, task), part)
        for (persona, task, _), parts in zip(jobs, written, strict=True)
        for part in parts
    ):
        if cause:
            shortfalls.append(
                Shortfall(
                    what=f"{task} questions to {persona.id}",
                    wanted=plan.questions,
                    got=len(pairs),
                    cause=cause,
                )
            )
        for environment, text in pairs:
            number = numbers[persona.id, task] = numbers.get((persona.id, task), 0) + 1
            questions.append(
                Question(
                    id=question_id(persona.id, task, number),
                    persona_id=persona.id,
                    task=task,
                    environment=environment,
                    text=text,
                )
            )
    return Benchmark(
        language=plan.language,
        made_by={"questions": plan.examiner},
        environments={p.id: names for p, (names, _) in zip(personas, chosen, strict=True)},
        shortfalls=tuple(shortfalls),
        personas=tuple(personas),
        questions=tuple(questions),
    )


async def write_exemplars(
    model: Model,
    benchmark: Benchmark,
    writer: str,
    *,
    sampling: Sampling = EXEMPLAR_SAMPLING,
    window: int = 256,
    watcher: Watcher | None = None,
) -> Benchmark:
    """The benchmark with five exemplars for every question that has none yet.

    Section 3, "Reasoning Exemplars": tailored to persona and question, once per question, the
    same for every model under test. Questions whose exemplars failed are in `shortfalls`.
    """
    rubrics = rubric_set(benchmark.language, benchmark.rubrics)
    people = {p.id: p for p in benchmark.personas}

    async def write(question: Question) -> tuple[Question, str]:
        if question.exemplars is not None:
            return question, ""
        reply = await model.ask(
            Call(
                role="exemplar_writer",
                model=writer,
                messages=render(
                    "exemplars",
                    benchmark.language,
                    rubric=rubrics[question.task],
                    persona=people[question.persona_id].description,
                    question=question.text,
                ),
                reply_schema=exemplars_schema(),
                sampling=sampling,
                meta={
                    "stage": "exemplars",
                    "persona": question.persona_id,
                    "task": question.task.value,
                    "question": question.id,
                },
            )
        )
        if not reply.ok:
            assert reply.failure is not None
            return question, reply.failure.cause
        texts = tuple(reply.value[str(score)] for score in range(1, 6))
        return question.model_copy(update={"exemplars": texts}), ""

    done = await each(benchmark.questions, write, stage="exemplars", window=window, watcher=watcher)
    kept = tuple(s for s in benchmark.shortfalls if not s.what.startswith("exemplars of "))
    short = tuple(
        Shortfall(what=f"exemplars of {question.id}", wanted=1, got=0, cause=cause)
        for question, cause in done
        if cause
    )
    changed = any(new is not old for (new, _), old in zip(done, benchmark.questions, strict=True))
    return benchmark.model_copy(
        update={
            "questions": tuple(question for question, _ in done),
            "shortfalls": (*kept, *short),
            "made_by": {**benchmark.made_by, "exemplars": writer} if changed else benchmark.made_by,
            "made_from": (benchmark.hash,) if changed else benchmark.made_from,
        }
    )
