"""The report as one self-contained HTML page: no script, nothing fetched, every value escaped."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from markupsafe import Markup

from personae.judging.scores import LIFT, persona_mean
from personae.play_stage import PLAYS
from personae.records import Audit, AuditGroup, Estimate, Language, ModelScores, Task
from personae.records.files import write_atomically
from personae.reports import figures
from personae.reports.data import CHARACTER_ROLE, ReportData, Unit, group_units
from personae.reports.language import Words, clean, one_line
from personae.reports.page import environment, style
from personae.reports.words import attribute_counts

WORST = 20
DIFFERENT = 10
FEW_PERSONAS = 10
ANSWER_CHARS = 4_000
FOLD_CHARS = 700
ENVIRONMENTS = 24
JUDGE_PAIRS = 6


@dataclass(frozen=True)
class ModelLine:
    """A model's line in the table of scores, with the use of its answers."""

    series: int
    scores: ModelScores
    tokens_in: int | None
    tokens_out: int | None
    usd: float | None
    seconds: float | None
    calls: int | None


@dataclass(frozen=True)
class JudgeLine:
    """A judge as the warning and the table of judges show it."""

    judge: str
    state: str
    is_lift: bool
    audit: Audit | None
    failed: tuple[AuditGroup, ...]
    counts: tuple[figures.Bar, ...]
    n_scored: int
    n_missing: int
    judges_itself: bool
    audit_command: str


def _total(values: Sequence[float | None]) -> float | None:
    """The sum, unknown where any part is."""
    known = [v for v in values if v is not None]
    return sum(known) if values and len(known) == len(values) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def model_lines(data: ReportData) -> list[ModelLine]:
    """The models in order, each with the use of its own answers."""
    lines = []
    for series, scores in enumerate(data.models):
        own = [u for u in data.usage if u.role == CHARACTER_ROLE and u.model == scores.model]
        lines.append(
            ModelLine(
                series % figures.SERIES,
                scores,
                _whole(_total([u.tokens_in for u in own])),
                _whole(_total([u.tokens_out for u in own])),
                _total([u.usd for u in own]),
                _total([u.seconds for u in own]),
                sum(u.calls for u in own) if own else None,
            )
        )
    return lines


def _audit_command(data: ReportData, judge: str) -> str:
    answers = data.runs[0] if data.runs else data.results
    return shlex.join(
        ["personae", "audit", "--judge", judge, "--answers", answers, "--out", "AUDIT"]
    )


def _judge_lines(data: ReportData) -> list[JudgeLine]:
    given: dict[str, Counter[int]] = {}
    missing: Counter[str] = Counter()
    for row in data.rows:
        if row.score is not None:
            given.setdefault(row.judge, Counter())[row.score] += 1
        elif row.lift is None:
            missing[row.judge] += 1
    # By the manifests: in a report of several runs a model's name may have a run's behind it.
    tested = {model for manifest in data.manifests for model in manifest.models.get("model", ())}
    lines = []
    for judge in data.judges:
        audit = data.audits.get(judge)
        counts = given.get(judge, Counter())
        lines.append(
            JudgeLine(
                judge,
                data.judge_state(judge),
                judge not in data.verdict_judges,
                audit,
                tuple(g for g in audit.groups if g.passed is False) if audit else (),
                figures.bars([(str(s), counts[s]) for s in range(1, 6)]) if counts else (),
                counts.total(),
                missing[judge],
                judge in tested,
                _audit_command(data, judge),
            )
        )
    return lines


def worst_units(units: Sequence[Unit], limit: int = WORST) -> list[Unit]:
    """The answers with the lowest score, the lowest first; by unit id among equals."""
    scored = [unit for unit in units if unit.mean is not None]
    return sorted(scored, key=lambda u: (u.mean, u.unit_id))[:limit]


def disputed_units(units: Sequence[Unit], limit: int = DIFFERENT) -> list[Unit]:
    """The answers whose judges lie furthest apart, the furthest first; only where they differ."""
    split = [unit for unit in units if unit.spread > 0]
    return sorted(split, key=lambda u: (-u.spread, u.unit_id))[:limit]


def estimate_text(words: Words, e: Estimate, *, signed: bool = False) -> str:
    """Mean, interval and missing rate in words, for beside a mark and for who cannot see it."""
    if e.mean is None:
        return words("no_score")
    mean = words.signed(e.mean) if signed else words.number(e.mean)
    interval = words.interval(e, signed=signed) if e.low is not None else ""
    return (
        f"{mean} {interval}".strip() + f" · {words('missing_short', share=words.share(e.missing))}"
    )


def _task_rows(data: ReportData, words: Words, axis: figures.Axis) -> list[figures.MarkRow]:
    def row(label: str, found: Sequence[Estimate | None]) -> figures.MarkRow:
        marks = [(i, e, estimate_text(words, e)) for i, e in enumerate(found) if e is not None]
        return figures.mark_row(label, marks, axis)

    return [
        row(words("persona_score"), [m.persona_score for m in data.models]),
        *(
            row(words.known("tasks", task), [m.tasks.get(task) for m in data.models])
            for task in ordered_tasks(data)
        ),
    ]


def ordered_tasks(data: ReportData) -> list[str]:
    """The tasks that have a score, in the paper's order."""
    named = {name for scores in data.models for name in scores.tasks}
    order = [str(task) for task in Task]
    return [t for t in order if t in named] + sorted(named.difference(order))


@dataclass(frozen=True)
class PersonaLine:
    """A character's scores by model: mean, units, share without a score."""

    persona: str
    description: str
    cells: tuple[tuple[float | None, int, float], ...]


def persona_means(units: Sequence[Unit]) -> dict[tuple[str, str], tuple[float | None, int, float]]:
    """By (model, persona): its PersonaScore, its units, the share of them without a score."""
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.model, unit.persona), []).append(unit)
    result: dict[tuple[str, str], tuple[float | None, int, float]] = {}
    for key, members in groups.items():
        by_task: dict[str, list[float | None]] = {}
        for unit in members:
            by_task.setdefault(unit.task, []).append(unit.mean)
        lost = sum(unit.mean is None for unit in members)
        result[key] = (persona_mean(by_task.values()), len(members), lost / len(members))
    return result


def _spread(
    data: ReportData, units: Sequence[Unit], axis: figures.Axis
) -> tuple[list[tuple[str, figures.Swarm]], list[PersonaLine]]:
    means = persona_means(units)
    swarms = []
    for series, scores in enumerate(data.models):
        values = [v for (m, _), (v, _, _) in means.items() if m == scores.model and v is not None]
        if values:
            swarms.append((scores.model, figures.swarm(series, values, axis)))
    people = dict.fromkeys(persona for _, persona in means)
    lines = [
        PersonaLine(
            persona,
            one_line(data.description(persona), 110),
            tuple(means.get((s.model, persona), (None, 0, 0.0)) for s in data.models),
        )
        for persona in people
    ]
    lines.sort(key=lambda p: min((c[0] for c in p.cells if c[0] is not None), default=9.0))
    return swarms, lines


def _coverage(data: ReportData, units: Sequence[Unit], language: Language) -> dict[str, Any]:
    asked = {(u.persona, u.question_id): u.environment for u in units}
    if not asked:
        asked = {(q.persona_id, q.id): q.environment for b in data.benchmarks for q in b.questions}
    counts = Counter(environment for environment in asked.values() if environment)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    present = {persona for persona, _ in asked}
    described = {
        p.id: p.description for b in data.benchmarks for p in b.personas if p.id in present
    }
    speaks = data.benchmarks[0].language if data.benchmarks else language
    drawn = figures.bars(ordered)
    return {
        "environments": drawn[:ENVIRONMENTS],
        "more_environments": drawn[ENVIRONMENTS:],
        "n_environments": len(ordered),
        "n_questions": len(asked),
        "n_nowhere": sum(environment is None for environment in asked.values()),
        "words": figures.bars(attribute_counts(described.values(), speaks)),
        "n_personas": len(present),
        "n_described": len(described),
    }


def _matrices(data: ReportData, units: Sequence[Unit]) -> list[figures.Matrix]:
    drawn = []
    for first, second in list(combinations(data.verdict_judges, 2))[:JUDGE_PAIRS]:
        pairs = [
            (given[first], given[second])
            for given in (
                {v.judge: v.score for v in unit.verdicts if v.repeat == 0 and v.score is not None}
                for unit in units
            )
            if first in given and second in given
        ]
        if (drawing := figures.matrix(first, second, pairs)) is not None:
            drawn.append(drawing)
    return drawn


@dataclass(frozen=True)
class PairedLine:
    """One difference; lift is in nats a token, so it has no place on the axis of points."""

    what: str
    estimate: Estimate
    row: figures.MarkRow | None


@dataclass(frozen=True)
class PairedGroup:
    """The differences between two models."""

    model: str
    other: str
    lines: tuple[PairedLine, ...]


def _paired(data: ReportData, words: Words) -> tuple[list[PairedGroup], figures.Axis]:
    points = [d.estimate for d in data.paired if d.what != LIFT]
    ends = [v for e in points for v in (e.mean, e.low, e.high) if v is not None]
    axis = figures.signed_axis(ends)
    groups: dict[tuple[str, str], list[PairedLine]] = {}
    for d in data.paired:
        row = None if d.what == LIFT else figures.mark_row("", [(0, d.estimate, "")], axis)
        groups.setdefault((d.model, d.other), []).append(
            PairedLine(words.known("tasks", d.what), d.estimate, row)
        )
    return [PairedGroup(*names, tuple(lines)) for names, lines in groups.items()], axis


def render(data: ReportData, language: Language = "en") -> str:
    """The page, encodable as UTF-8.

    It loads nothing, runs nothing, and its content policy lets nothing be loaded or run. Answers
    are shown for the worst and the most disputed units only; `data.results` names the rest.
    """
    words = Words(language)
    units = group_units(data.rows)
    axis = figures.score_axis()
    css, css_hash = style()
    swarms, personas = _spread(data, units, axis)
    paired, paired_axis = _paired(data, words)
    coverage = _coverage(data, units, language)
    worst = worst_units(units)
    last = worst[-1].mean if worst else None
    tied = sum(1 for u in units if u.mean is not None and last is not None and u.mean <= last)
    counted = [m.persona_score.n for m in data.models if m.persona_score.mean is not None]
    page = environment().get_template("report.html.j2")
    return clean(
        page.render(
            t=words,
            data=data,
            css=Markup(css),  # noqa: S704  (our own file)
            css_hash=css_hash,
            models=model_lines(data),
            judges=_judge_lines(data),
            trust=data.trust,
            tasks=ordered_tasks(data),
            axis=axis,
            task_rows=_task_rows(data, words, axis),
            swarms=swarms,
            personas=personas,
            units=units,
            worst=worst,
            n_tied=tied,
            n_scored=sum(u.mean is not None for u in units),
            disputed=disputed_units(units),
            matrices=_matrices(data, units),
            paired=paired,
            paired_axis=paired_axis,
            coverage=coverage,
            few=min([*counted, coverage["n_personas"]]),
            few_personas=FEW_PERSONAS,
            hashes=sorted({b.hash for b in data.benchmarks}),
            unfinished=[
                (run, m.status)
                for run, m in zip(data.runs, data.manifests, strict=False)
                if m.status != "done"
            ],
            answer_chars=ANSWER_CHARS,
            fold_chars=FOLD_CHARS,
            one_line=one_line,
            quote=shlex.quote,
            scene=_scene(data, language),
            scene_title=Words(language, "scenes")("h.plays"),
        )
    )


def _scene(data: ReportData, language: Language) -> Markup:
    """The script of a demo's scene; nothing where there is none."""
    if not data.plays:
        return Markup()
    from personae.reports.scenes.html import scripts_section  # it draws on this module

    return scripts_section(data.plays, Path(data.runs[0]) / PLAYS, language)


def write_html(data: ReportData, path: Path, language: Language = "en") -> None:
    """Write the page; a page that stood there before is replaced whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_atomically(path, render(data, language))
