"""Report data made from seeded rows by the real scoring functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from personae.interview.evaluate import panel
from personae.judging.scores import is_lift, judge_agreement, paired, score_models
from personae.records import (
    Audit,
    AuditGroup,
    Benchmark,
    Failure,
    Language,
    Manifest,
    Persona,
    Question,
    ResultRow,
    Shortfall,
    Task,
)
from personae.reports.data import (
    CallCounts,
    Cost,
    FailureCount,
    ReportData,
    UsageLine,
)

PEOPLE = {
    "en": [
        "A 71-year-old retired nurse from Italy who volunteers at the hospice and loves opera",
        "A 36-year-old environmental lawyer from Sydney, fighting against illegal logging",
        "A 25-year-old software engineer from New York who loves hiking and cooking",
        "A vintage car enthusiast and teacher from Tokyo",
        "A retired engineer from Berlin who restores vintage radios and loves hiking",
        "A doctor from New York who advocates for patients and enjoys cooking",
    ],
    "zh": [
        "一位来自上海的退休护士，喜欢京剧和养花",
        "一名来自北京的软件工程师，热爱登山和摄影",
        "一位来自成都的中学语文教师，喜欢登山和写诗",
        "一名来自上海的环保律师，热爱摄影",
        "一位退休教师，喜欢养花和书法",
        "一名来自成都的软件工程师，喜欢京剧",
    ],
}
PLACES = {
    "en": ["Wedding", "Courtroom", "Hiking Trail", "Hackathon", "Farmers Market", "Hospital Ward"],
    "zh": ["婚礼", "法庭", "登山小径", "黑客松", "农贸市场", "医院病房"],
}
TEXT = {
    "en": (
        "At the {place}, someone asks you to explain your work. What do you do?",
        "Well now, let me tell you: after forty years on the ward I have seen everything twice. "
        "I would sit down beside them, pour us both a coffee, and start from the beginning.",
        "The response stays in character and uses fitting words, but it ignores the setting.",
    ),
    "zh": (
        "在{place}，有人请你介绍自己的工作。你会怎么做？",
        "说来话长，我在病房里干了四十年，什么都见过。我会坐到他身边，倒上两杯茶，从头讲起。",
        "回答符合人物身份，用词得体，但没有顾及所处的场景。",
    ),
}


def make_benchmark(language: Language = "en", people: int = 6, questions: int = 2) -> Benchmark:
    """`questions` for each of five tasks for each of `people` personas."""
    chosen = random.Random(3)
    texts = PEOPLE[language]
    personas = tuple(
        Persona(id=f"p{i:03}", description=texts[i % len(texts)]) for i in range(people)
    )
    asked = []
    for person in personas:
        for task in Task:
            for k in range(questions):
                place = chosen.choice(PLACES[language])
                asked.append(
                    Question(
                        id=f"{person.id}-{task.short}-{k}",
                        persona_id=person.id,
                        task=task,
                        environment=place,
                        text=TEXT[language][0].format(place=place),
                    )
                )
    return Benchmark(
        language=language,
        made_by={"examiner": "anthropic/examiner-1"},
        personas=personas,
        questions=tuple(asked),
    )


def make_rows(
    benchmark: Benchmark, models: Sequence[str], judges: Sequence[str], *, lost: float = 0.02
) -> list[ResultRow]:
    """A row per model, question and judge; better models first, `lost` of the verdicts missing."""
    luck = random.Random(11)
    rows = []
    mood = {p.id: luck.gauss(0, 0.4) for p in benchmark.personas}
    _, answer, reason = TEXT[benchmark.language]
    for rank, model in enumerate(models):
        for question in benchmark.questions:
            worth = 3.9 - 0.55 * rank + mood[question.persona_id] + luck.gauss(0, 0.8)
            for judge, repeat in panel(judges):
                failed = luck.random() < lost
                lift = is_lift(judge)
                score = None if failed or lift else min(5, max(1, round(luck.gauss(worth, 0.7))))
                rows.append(
                    ResultRow(
                        unit_id=f"{question.id}@{model}",
                        model=model,
                        persona=question.persona_id,
                        task=question.task,
                        question_id=question.id,
                        question=question.text,
                        environment=question.environment,
                        answer=answer,
                        judge=judge,
                        repeat=repeat,
                        score=score,
                        failure=Failure(cause="malformed", detail="not JSON: Expecting value")
                        if failed
                        else None,
                        justification=None if score is None else reason,
                        lift=round(luck.gauss(0.4, 0.3), 3) if lift and not failed else None,
                        refusal=luck.random() < 0.03,
                    )
                )
    return rows


def make_audit(judge: str, verdict: str, language: Language = "en") -> Audit:
    """An audit whose refusal group decides."""
    good = verdict == "passed"

    def group(name: str, auc: float, passed: bool) -> AuditGroup:
        return AuditGroup(
            name=name, auc=auc, low=auc - 0.07, high=min(1.0, auc + 0.06), n=40, missing=0.025,
            passed=passed, mean_own=3.8, mean_group=3.8 - 4 * (auc - 0.5),
        )  # fmt: skip

    return Audit.from_dict(
        {
            "judge": judge,
            "rubric_hash": "ab" * 32,
            "language": language,
            "verdict": verdict,
            "reasons": [] if good else ["refusal: lower bound of the AUC 0.51 is below 0.8"],
            "groups": [
                group("other_character", 0.9, True).to_dict(),
                group("refusal", 0.95 if good else 0.58, good).to_dict(),
                group("generic", 0.91, True).to_dict(),
                group("copied_question", 0.97, True).to_dict(),
            ],
            "order_shift": 0.05,
            "length_slope": 0.12,
            "repeat_variance": 0.031,
            "swap_shift": -0.1,
            "missing": 0.025,
            "thresholds": {"auc_low": 0.8, "order_shift": 0.25},
        }
    )


def make_data(**wanted: Any) -> ReportData:
    """Report data as `gather` fills it; the same records for the same wishes."""
    if any(isinstance(value, list) for value in wanted.values()):
        return _made(**wanted)
    return _made_once(**wanted)


def _made(
    *,
    language: Language = "en",
    people: int = 6,
    questions: int = 2,
    models: Sequence[str] = ("openai/gpt-large", "local"),
    judges: Sequence[str] = ("anthropic/judge-a", "gemini/judge-b", "lift:local"),
    states: Sequence[str] = ("failed", "passed"),
    lost: float = 0.02,
    rows: Sequence[ResultRow] | None = None,
    benchmark: Benchmark | None = None,
) -> ReportData:
    benchmark = benchmark or make_benchmark(language, people, questions)
    if rows is None:
        rows = make_rows(benchmark, models, judges, lost=lost)
    verdicts = [j for j in judges if not is_lift(j)]
    agreement, reason = judge_agreement(rows)
    return ReportData(
        title="demo-run",
        runs=("runs/demo-run",),
        manifests=(
            Manifest(
                kind="eval",
                arguments={"limit": None, "out": "runs/demo-run"},
                models={"model": tuple(models), "judge": tuple(judges)},
                sampling={"model": {"temperature": 0.9, "top_p": 0.9}, "judge": {"temperature": 0}},
                language=language,
                prompts={f"{language}/judge": "cd" * 32},
                benchmark_hash=benchmark.hash,
                rubric_hash="ab" * 32,
                versions={"personae": "0.1.0", "python": "3.11.7"},
                created="2026-11-20T07:30:00+00:00",
                status="done",
            ),
        ),
        benchmarks=(benchmark,),
        rows=tuple(rows),
        models=tuple(score_models(rows)),
        agreement=agreement,
        agreement_reason=reason or "",
        paired=tuple(paired(rows, models[0], models[1])) if len(models) > 1 else (),
        audits={
            j: None if s == "none" else make_audit(j, s, language)
            for j, s in zip(verdicts, states, strict=False)
        },
        calls=CallCounts(made=len(rows), reused=3, failed=2),
        cost=Cost(usd=None, tokens_in=1_234_567, tokens_out=45_678),
        usage=(
            UsageLine(role="character", model=models[0], calls=60, tokens_in=12_000,
                      tokens_out=6_000, cached=3_000, usd=0.0421, seconds=71.5),
            UsageLine(role="character", model=models[-1], calls=60, tokens_in=12_100,
                      tokens_out=5_500, cached=None, usd=None, seconds=140.0),
            UsageLine(role="judge", model=judges[0], calls=120, tokens_in=600_000,
                      tokens_out=20_000, cached=400_000, usd=1.23, seconds=300.0),
        ),
        failures=(
            FailureCount(role="judge", model=judges[0], cause="malformed", count=4,
                         example="not JSON: Expecting value at character 0"),
        ),
        wall_seconds=134.0,
        shortfalls=(
            Shortfall(what="questions of p001, LH", wanted=2, got=1,
                      cause="the examiner repeated itself"),
        ),
    )  # fmt: skip


_made_once = cache(_made)
