"""The report for a terminal, and as CSV for whoever wants to count again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from personae.records import Estimate, Language
from personae.records.cells import csv_text
from personae.records.files import write_atomically
from personae.reports.data import ReportData, Unit, group_units
from personae.reports.html import ModelLine, model_lines, ordered_tasks, worst_units
from personae.reports.language import Words, clean, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLES = {"passed": "green", "failed": "red", "none": "yellow", "mixed": "yellow"}
_TERMINAL_WORST = 3


def _mean(words: Words, e: Estimate | None, *, signed: bool = False) -> str:
    """Mean, interval and missing rate in one cell; the missing rate is never left out."""
    if e is None:
        return "–"
    missing = words("missing_short", share=words.share(e.missing))
    if e.mean is None:
        return f"{words('no_score')} ({missing})"
    mean = words.signed(e.mean) if signed else words.number(e.mean)
    return f"{mean} {words.interval(e, signed=signed)} ({missing})"


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A table of plain text: nothing in a cell is read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(
            Text(clean(head)), justify="left" if i < left else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


def _scores(data: ReportData, words: Words, models: Sequence[ModelLine]) -> Table:
    """A column per model: names of models are long, and there are few of them."""
    rows: list[tuple[str, list[str]]] = [
        (words("persona_score"), [_mean(words, m.scores.persona_score) for m in models]),
        *(
            (words.known("tasks", t), [_mean(words, m.scores.tasks.get(t)) for m in models])
            for t in ordered_tasks(data)
        ),
        (words("personas"), [words.count(m.scores.persona_score.n) for m in models]),
        (words("answers"), [words.count(m.scores.n_answers) for m in models]),
        (words("refusals"), [words.share(m.scores.refusal_rate) for m in models]),
        (words("lift"), [_mean(words, m.scores.lift, signed=True) for m in models]),
        (
            words("tokens_in_out"),
            [f"{words.count(m.tokens_in)} / {words.count(m.tokens_out)}" for m in models],
        ),
        (words("cost"), [words.usd(m.usd) for m in models]),
        (words("time"), [words.duration(m.seconds) for m in models]),
    ]
    return plain_table(
        ["", *(m.scores.model for m in models)], [(name, *cells) for name, cells in rows]
    )


def print_report(data: ReportData, console: Console, language: Language = "en") -> None:
    """Print the report's essence: the warning, the scores, the worst answers, what failed."""
    from rich.panel import Panel
    from rich.text import Text

    words = Words(language)
    style = STYLES.get(data.trust, "cyan")
    lines = [Text(words(f"trust.{data.trust}", n=len(data.verdict_judges)), style=f"bold {style}")]
    for judge in data.verdict_judges:
        state = data.judge_state(judge)
        lines.append(Text(f"{clean(judge)}: {words(f'state.{state}')}", style=STYLES[state]))
        if (audit := data.audits.get(judge)) is not None and state == "failed":
            lines.extend(Text(f"  {one_line(reason, 200)}") for reason in audit.reasons)
    console.print(Panel(Text("\n").join(lines), border_style=style))

    lines_of_models = model_lines(data)
    at_once = max(1, (console.width - 24) // 38)
    for start in range(0, len(lines_of_models), at_once):
        console.print(_scores(data, words, lines_of_models[start : start + at_once]))
    if any(scores.lift is not None for scores in data.models):
        console.print(Text(words("lift_is")))
    if data.paired:
        console.print(
            plain_table(
                [words("difference"), words("of_what"), words("mean"), words("personas")],
                [
                    (
                        f"{d.model} − {d.other}",
                        words.known("tasks", d.what),
                        _mean(words, d.estimate, signed=True),
                        str(d.estimate.n),
                    )
                    for d in data.paired
                ],
                left=2,
            )
        )
    if (agreed := data.agreement) is not None and agreed.alpha is not None:
        interval = (
            words("no_interval")
            if agreed.low is None or agreed.high is None
            else f"[{words.number(agreed.low)}, {words.number(agreed.high)}]"
        )
        over = words("over_answers", n=words.count(agreed.units))
        console.print(Text(f"{words('alpha')} {words.number(agreed.alpha)} {interval} {over}"))
    elif data.agreement_reason:
        reason = words.known("agreement_reason", data.agreement_reason)
        console.print(Text(clean(f"{words('no_agreement')} {reason}")))
    if worst := worst_units(group_units(data.rows), _TERMINAL_WORST):
        console.print(Text(words("h.worst"), style="bold"))
        room = max(40, console.width - 8)
        for unit in worst:
            console.print(
                Text(
                    f"{words.number(unit.mean)}  {words.known('tasks', unit.task)} · "
                    f"{one_line(unit.model, 60)}\n"
                    f"      {one_line(unit.question, room)}\n"
                    f"      {one_line(unit.answer or words('no_answer'), room)}"
                ),
                no_wrap=True,
                overflow="ellipsis",
            )
    if data.failures:
        console.print(
            plain_table(
                [words(h) for h in ("cause", "role", "model", "calls")],
                [
                    (words.cause(f.cause), words.known("roles", f.role), f.model, str(f.count))
                    for f in data.failures
                ],
                left=3,
            )
        )
    for shortfall in data.shortfalls:
        console.print(
            Text(
                f"{one_line(shortfall.what)}: {words('wanted')} {shortfall.wanted}, "
                f"{words('got')} {shortfall.got}. {one_line(shortfall.cause)}"
            )
        )
    calls = data.calls
    console.print(
        Text(
            words(
                "calls_line",
                made=words.count(calls.made),
                reused=words.count(calls.reused),
                failed=words.count(calls.failed),
            )
            + f" {words('cost')}: {words.usd(data.cost.usd)}."
            + f" {words('wall_time')}: {words.duration(data.wall_seconds)}."
        )
    )
    for note in data.notes:
        console.print(Text(clean(note)))


def write_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file whose every text is clean.

    Raises:
        OutputError: it cannot be written.
    """
    cleaned = ([clean(c) if isinstance(c, str) else c for c in row] for row in rows)
    write_atomically(path, csv_text([clean(name) for name in head], cleaned))


def _average(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def write_csv(data: ReportData, directory: Path) -> tuple[Path, Path]:
    """Write `scores.csv` and `units.csv` (UTF-8) and say where.

    `scores.csv`: a line per model, persona and task with the mean over its scored answers, how
    many there are, how many have no score, how many are refusals, and the mean lift (nats a
    token). `units.csv`: a line per answer with each judge's score and failure; an empty cell is
    missing or not asked.

    Raises:
        InputError: a file cannot be written.

    """
    units = group_units(data.rows)
    groups: dict[tuple[str, str, str], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.model, unit.persona, unit.task), []).append(unit)
    scores, each = directory / "scores.csv", directory / "units.csv"
    write_table(
        scores,
        ("model", "persona", "task", "mean", "scored", "missing", "refusals", "lift"),
        (
            (
                *key,
                _average(u.mean for u in members),
                sum(u.mean is not None for u in members),
                sum(u.mean is None for u in members),
                sum(u.refusal is True for u in members),
                _average(u.lift for u in members),
            )
            for key, members in groups.items()
        ),
    )
    asked = sorted(
        {(v.judge, v.repeat) for unit in units for v in unit.verdicts},
        key=lambda seat: (data.judges.index(seat[0]), seat[1]),
    )
    lifts = [j for j in data.judges if j not in data.verdict_judges]
    names = [judge if not repeat else f"{judge} (repeat {repeat + 1})" for judge, repeat in asked]
    write_table(
        each,
        (
            *("unit_id", "model", "persona", "task", "question_id", "environment"),
            *("question", "answer", "refusal", "mean"),
            *(f"score: {name}" for name in names),
            *(f"failure: {name}" for name in names),
            *(f"lift: {judge}" for judge in lifts),
        ),
        (_unit_cells(unit, asked, lifts) for unit in units),
    )
    return scores, each


def _unit_cells(
    unit: Unit, asked: Sequence[tuple[str, int]], lifts: Sequence[str]
) -> tuple[object, ...]:
    given = {(v.judge, v.repeat): v for v in unit.verdicts}
    lifted = {judge: value for judge, value, _ in unit.lifts}
    found = [given.get(seat) for seat in asked]
    return (
        *(unit.unit_id, unit.model, unit.persona, str(unit.task), unit.question_id),
        *(unit.environment, unit.question, unit.answer, unit.refusal, unit.mean),
        *(None if v is None else v.score for v in found),
        *(None if v is None or v.failure is None else v.failure.cause for v in found),
        *(lifted.get(judge) for judge in lifts),
    )
