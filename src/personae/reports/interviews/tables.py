"""The report of interviews for a terminal, and as CSV for whoever wants to count again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from personae.judging.interview_metrics import METRICS, SEVEN, TRANSFER, metrics_for
from personae.records import Estimate, InterviewRow, Language
from personae.reports.interviews.data import InterviewsReport
from personae.reports.interviews.html import (
    Answered,
    VoiceLine,
    all_answered,
    metric_name,
    role_costs,
    voice_lines,
    worst_of,
)
from personae.reports.language import Words, clean, one_line
from personae.reports.tables import STYLES, plain_table, write_table

if TYPE_CHECKING:
    from rich.console import Console

TERMINAL_WORST = 3
TERMINAL_DETAIL = 120


def _cell(words: Words, e: Estimate, *, signed: bool = False) -> str:
    missing = words("missing_short", share=words.share(e.missing))
    if e.mean is None:
        return f"{words('no_score')} ({missing})"
    if e.low is None or e.high is None:  # why, is told once below the tables
        return f"{words.signed(e.mean) if signed else words.number(e.mean)} ({missing})"
    mean = words.signed(e.mean) if signed else words.number(e.mean)
    return f"{mean} {words.interval(e, signed=signed)} ({missing})"


def print_interviews(data: InterviewsReport, console: Console, language: Language = "en") -> None:
    """Print the report's essence: the warning, the eight metrics, the worst, what is missing."""
    from rich.panel import Panel
    from rich.text import Text

    words = Words(language, "interviews")
    style = STYLES.get(data.trust, "cyan")
    told = [Text(words(f"trust.{data.trust}", n=len(data.judges)), style=f"bold {style}")]
    for judge in data.judges:
        state = words(f"state.{judge.state}")
        told.append(Text(f"{clean(judge.model)}: {state}", style=STYLES[judge.state]))
        if judge.lacking:
            names = words("list_comma").join(
                metric_name(key, words.language) for key in judge.lacking
            )
            told.append(Text(f"  {words('audit_lacks')} {names}"))
        if judge.audit is not None and judge.state == "failed":
            told.extend(Text(f"  {one_line(reason, 200)}") for reason in judge.audit.reasons)
    console.print(Panel(Text("\n").join(told), border_style=style))
    for key in data.caveats:
        console.print(Text(words(f"caveat.{key}"), style="yellow"))

    lines = voice_lines(data, data.interviews["models"])
    _print_scores([line for line in lines if line.scores.n_interviews], SEVEN, console, words)
    if of_transfer := [line for line in lines if line.scores.n_transfers]:
        console.print(Text(words("h.trans"), style="bold"))
        _print_scores(of_transfer, (TRANSFER,), console, words)
    shown = [e for line in lines for e in (*line.scores.metrics.values(), line.scores.average)]
    if any(e.mean is not None and e.low is None for e in shown):
        console.print(Text(f"{words('without_brackets')}{words('colon')}{words('no_interval')}"))
    _print_agreement(data, console, words)
    _print_worst(data, console, words)
    _print_missing(data, console, words)
    calls = data.calls
    console.print(
        Text(
            words(
                "calls_line",
                made=words.count(calls.made),
                reused=words.count(calls.reused),
                failed=words.count(calls.failed),
            )
        )
    )
    for cost in role_costs(data):
        console.print(
            Text(
                f"{words.known('roles', cost.role)}{words('colon')}{words('tokens_in_out')} "
                f"{words.count(cost.tokens_in)} / {words.count(cost.tokens_out)}, "
                f"{words('cost')} {words.usd(cost.usd)}"
            )
        )
    for note in data.notes:
        console.print(Text(clean(note)))


def _print_scores(
    lines: Sequence[VoiceLine], keys: Sequence[str], console: Console, words: Words
) -> None:
    """A column a voice: names of models are long, and there are few of them."""
    at_once = max(1, (console.width - 24) // 38)
    for start in range(0, len(lines), at_once):
        part = lines[start : start + at_once]
        rows = [
            (
                f"{metric_name(key, words.language)} ({key})",
                *(_cell(words, line.scores.metrics[key]) for line in part),
            )
            for key in keys
        ]
        if keys == SEVEN:
            rows += [
                (words("average"), *(_cell(words, line.scores.average) for line in part)),
                (
                    words("average_without_stab"),
                    *(_cell(words, line.scores.average_without_stab) for line in part),
                ),
                (words("interviews_n"), *(words.count(line.scores.n_interviews) for line in part)),
                (
                    words("answers_missing"),
                    *(words.share(line.scores.answers_missing) for line in part),
                ),
            ]
        console.print(plain_table(["", *(line.label(words) for line in part)], rows))


def _print_agreement(data: InterviewsReport, console: Console, words: Words) -> None:
    from rich.text import Text

    if data.trust == "unjudged":
        return
    agreed = data.agreement
    if agreed is None or agreed.alpha is None:
        reason = words.known("agreement_reason", data.agreement_reason or "")
        console.print(Text(clean(f"{words('no_agreement')} {reason}")))
        return
    interval = (
        words("no_interval")
        if agreed.low is None or agreed.high is None
        else f"[{words.number(agreed.low)}, {words.number(agreed.high)}]"
    )
    console.print(Text(f"{words('alpha')} {words.number(agreed.alpha)} {interval}"))


def _print_worst(data: InterviewsReport, console: Console, words: Words) -> None:
    from rich.text import Text

    found = worst_of(all_answered(data))[:TERMINAL_WORST]
    if not found:
        return
    room = max(40, console.width - 8)
    console.print(Text(words("h.worst"), style="bold"))
    for one in found:
        console.print(
            Text("\n".join(_worst_lines(one, data.rows_of[one.interview.id], words, room))),
            no_wrap=True,
            overflow="ellipsis",
        )


def _worst_lines(
    one: Answered, rows: Sequence[InterviewRow], words: Words, room: int
) -> Iterator[str]:
    held = one.interview
    people = words("list_comma").join(one_line(name, 40) for name in held.characters)
    yield (
        f"{words.number(one.value)}  {people} · {one_line(held.model, 60)} · "
        f"{words(f'methods.{held.method}')} · {words(f'modes.{held.mode}')}"
    )
    last = held.exchanges[-1]
    yield f"      {one_line(last.asked or words('no_question'), room)}"
    yield f"      {one_line(last.answer or words('no_answer'), room)}"
    lowest = min(
        (row for row in rows if row.score is not None),
        key=lambda row: (row.score or 0, METRICS.index(row.metric)),
    )
    reason = lowest.reasoning or words("no_reason")
    yield (
        f"      {lowest.score} {metric_name(lowest.metric, words.language)}{words('colon')}"
        f"{one_line(reason, room)}"
    )


def _print_missing(data: InterviewsReport, console: Console, words: Words) -> None:
    if data.left_out:
        console.print(
            plain_table(
                [words(h) for h in ("cause", "model", "method", "mode", "interviews_n")],
                [
                    (
                        _told(words.cause(one.cause), one.example),
                        one.voice.model,
                        words(f"methods.{one.voice.method}"),
                        words(f"modes.{one.voice.mode}"),
                        words(
                            "left_out_share",
                            n=words.count(one.interviews),
                            of=words.count(one.of),
                        ),
                    )
                    for one in data.left_out
                ],
                left=4,
            )
        )
    if data.unscored:
        console.print(
            plain_table(
                [words(h) for h in ("cause", "judge", "metric", "times")],
                [
                    (
                        _told(words.cause(one.cause), one.example),
                        one.judge,
                        metric_name(one.metric, words.language),
                        words.count(one.count),
                    )
                    for one in data.unscored
                ],
                left=3,
            )
        )


def _told(cause: str, example: str) -> str:
    """A cause, and what was said of one that it befell."""
    return f"{cause} ({one_line(example, TERMINAL_DETAIL)})" if example else cause


# CSV --------------------------------------------------------------------------------------------


def write_interviews_csv(data: InterviewsReport, directory: Path) -> tuple[Path, Path, Path]:
    """Write `scores.csv`, `units.csv` and `turns.csv` (UTF-8) and say where.

    `scores.csv`: a line per model, method, mode, language, kind, characters and metric with the
    mean over the interviews that have a score, how many those are, and how many have none.
    `units.csv`: a line per interview and metric, judged or not, with each judge's score, reason,
    failure and scores by turn. An empty cell is missing or was not asked.
    `turns.csv`: a line per turn of every interview.

    Raises:
        OutputError: a file cannot be written.
    """
    scores, units, turns = (directory / f"{n}.csv" for n in ("scores", "units", "turns"))
    write_table(
        scores,
        (
            *("model", "method", "mode", "language", "kind", "characters", "metric"),
            *("mean", "scored", "missing"),
        ),
        _score_lines(data),
    )
    seats = sorted({(row.judge, row.repeat) for row in data.rows})
    names = [judge if not repeat else f"{judge} (repeat {repeat + 1})" for judge, repeat in seats]
    write_table(
        units,
        (
            *("interview_id", "run", "script_id", "kind", "mode", "method", "model", "language"),
            *("characters", "topic", "tempting", "turns", "metric", "mean"),
            *(f"score: {name}" for name in names),
            *(f"reason: {name}" for name in names),
            *(f"failure: {name}" for name in names),
            *(f"turn scores: {name}" for name in names),
        ),
        _unit_lines(data, seats),
    )
    write_table(
        turns,
        (
            *("interview_id", "run", "script_id", "turn", "character", "asked", "answer"),
            *("failure", "detail", "passages", "in_character"),
        ),
        _turn_lines(data),
    )
    return scores, units, turns


def _score_lines(data: InterviewsReport) -> Iterator[tuple[object, ...]]:
    groups: dict[tuple[object, ...], list[float | None]] = defaultdict(list)
    for one in data.held:
        given = data.scores_of.get(one.id, {})
        if not given:
            continue
        for metric in metrics_for(one.kind):
            people = "; ".join(one.characters)
            groups[one.model, one.method, one.mode, one.language, one.kind, people, metric].append(
                given.get(metric)
            )
    for key, found in groups.items():
        known = [v for v in found if v is not None]
        mean = sum(known) / len(known) if known else None
        yield (*key, mean, len(known), len(found) - len(known))


def _unit_lines(
    data: InterviewsReport, seats: Sequence[tuple[str, int]]
) -> Iterator[tuple[object, ...]]:
    for run in data.runs:
        for one in run.interviews:
            rows = data.rows_of.get(one.id, ())
            given = {(row.metric, row.judge, row.repeat): row for row in rows}
            means = data.scores_of.get(one.id, {})
            for metric in metrics_for(one.kind):
                found = [given.get((metric, *seat)) for seat in seats]
                yield (
                    *(one.id, str(run.run), one.script_id, one.kind, one.mode, one.method),
                    *(one.model, one.language, "; ".join(one.characters), one.topic, one.tempting),
                    *(len(one.exchanges), metric, means.get(metric)),
                    *(row and row.score for row in found),
                    *(row and row.reasoning for row in found),
                    *(row and row.failure and row.failure.cause for row in found),
                    *(row and " ".join(map(str, row.turn_scores)) for row in found),
                )


def _turn_lines(data: InterviewsReport) -> Iterator[tuple[object, ...]]:
    found = all_answered(data)
    for run in data.runs:
        for one in run.interviews:
            for turn in found[one.id].turns:
                e = turn.exchange
                yield (
                    *(one.id, str(run.run), one.script_id, turn.number, e.character),
                    *(e.asked, e.answer),
                    *(e.failure and e.failure.cause, e.failure and e.failure.detail),
                    *("\n\n".join(e.passages), turn.score),
                )
