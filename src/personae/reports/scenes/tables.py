"""The report of plays for a terminal, and as CSV for whoever wants to count again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from personae.judging.metrics import METRICS
from personae.judging.trajectory_pairs import SceneDifference
from personae.judging.trajectory_scores import AVERAGE, JudgeAgreement, kind_of
from personae.records import Estimate, Language, RatingRow
from personae.reports.language import Words, clean, one_line
from personae.reports.scenes.data import PlaysReport
from personae.reports.scenes.html import metric_name, model_lines, scene_name
from personae.reports.tables import STYLES, plain_table, write_table
from personae.world.observe import acts_missing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TERMINAL_WORST = 3


def _cell(words: Words, e: Estimate, *, signed: bool = False) -> str:
    missing = words("missing_short", share=words.share(e.missing))
    if e.mean is None:
        return f"{words('no_score')} ({missing})"
    mean = words.signed(e.mean) if signed else words.number(e.mean)
    return f"{mean} {words.interval(e, signed=signed)} ({missing})"


def print_plays(data: PlaysReport, console: Console, language: Language = "en") -> None:
    """Print the report's essence: the warning, the scores, the worst trajectories, what failed."""
    from rich.panel import Panel
    from rich.text import Text

    words = Words(language, "scenes")
    judges = [judge for judge in data.judges if judge.kind == "characters"]
    style = STYLES.get(data.trust, "cyan")
    lines = [Text(words(f"trust.{data.warning}", n=len(judges)), style=f"bold {style}")]
    for judge in judges:
        state = words(f"state.{judge.state}")
        lines.append(Text(f"{clean(judge.model)}: {state}", style=STYLES[judge.state]))
        if judge.audit is not None and judge.state == "failed":
            lines.extend(Text(f"  {one_line(reason, 200)}") for reason in judge.audit.reasons)
    if data.trust == "unrated":
        lines.append(
            Text(f"{words('to_rate_here')} personae rate {data.runs[0].run} --judge MODEL")
        )
    console.print(Panel(Text("\n").join(lines), border_style=style))
    for key in data.caveats:
        console.print(Text(words(f"caveat.{key}"), style="yellow"))

    for title, scores, lost in (
        ("", data.models, "acts_missing_short"),
        (words("h.alone"), data.alone, "acts_missing_short"),
        (words("h.narrators"), data.narrators, "replies_missing"),
    ):
        if not scores:
            continue
        if title:
            console.print(Text(title, style="bold"))
        shown = model_lines(scores, words)
        at_once = max(1, (console.width - 24) // 38)
        for start in range(0, len(shown), at_once):
            part = shown[start : start + at_once]
            rows = [
                (
                    metric_name(key, language),
                    *(
                        _cell(words, m.scores.average if key == AVERAGE else m.scores.metrics[key])
                        for m in part
                    ),
                )
                for key in (AVERAGE, *scores[0].metrics)
            ]
            rows.append((words("scenes_n"), *(words.count(m.scores.n) for m in part)))
            rows.append((words(lost), *(words.share(m.scores.acts_missing) for m in part)))
            console.print(plain_table(["", *(m.label for m in part)], rows))
    _print_differences(data, console, words)
    _print_agreement(data, console, words)
    _print_worst(data, console, words)
    if data.lost:
        console.print(
            plain_table(
                [words(h) for h in ("step", "cause", "model", "times")],
                [
                    (words.known("steps", f.step), words.cause(f.cause), f.model, str(f.count))
                    for f in data.lost
                ],
                left=3,
            )
        )
    if not data.rows:
        console.print(_plays(data, words))
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
    for part, cost in data.scenes["cost"].items():
        console.print(
            Text(
                f"{words(f'parts.{part}')}{words('colon')}{words('tokens_in_out')} "
                f"{words.count(cost['tokens_in'])} / {words.count(cost['tokens_out'])}, "
                f"{words('cost')} {words.usd(cost['usd'])}"
            )
        )
    for note in data.notes:
        console.print(Text(clean(note)))


def _print_differences(data: PlaysReport, console: Console, words: Words) -> None:
    from rich.text import Text

    pairs: dict[tuple[str, str, str], list[SceneDifference]] = defaultdict(list)
    for one in data.differences:
        pairs[one.model, one.other, one.lang].append(one)
    for (model, other, _), lines in pairs.items():
        console.print(Text(clean(f"{model} − {other}"), style="bold"))
        console.print(
            plain_table(
                [words(h) for h in ("of_what", "mean", "scenes_n")],
                [
                    (
                        metric_name(d.metric, words.language),
                        _cell(words, d.estimate, signed=True),
                        str(d.estimate.n),
                    )
                    for d in lines
                ],
            )
        )


def _print_agreement(data: PlaysReport, console: Console, words: Words) -> None:
    from rich.text import Text

    found = [JudgeAgreement.from_dict(one) for one in data.scenes["agreement"]]
    of_all = next((one for one in found if one.metric == AVERAGE), None)
    if of_all is None or data.trust == "unrated":
        return
    agreed = of_all.agreement
    if agreed is None or agreed.alpha is None:
        reason = words.known("agreement_reason", of_all.reason or "")
        console.print(Text(clean(f"{words('no_agreement')} {reason}")))
        return
    interval = (
        words("no_interval")
        if agreed.low is None or agreed.high is None
        else f"[{words.number(agreed.low)}, {words.number(agreed.high)}]"
    )
    console.print(Text(f"{words('alpha')} {words.number(agreed.alpha)} {interval}"))


def _print_worst(data: PlaysReport, console: Console, words: Words) -> None:
    from rich.text import Text

    worst = data.worst()[:TERMINAL_WORST]
    if not worst:
        return
    names = {unit: scene_name(play)[0] for _, play, _, unit in data.trajectories()}
    room = max(40, console.width - 8)
    console.print(Text(words("h.worst"), style="bold"))
    for unit, value in worst:
        rows = data.rows_of[unit.unit_id]
        lowest = min(
            (r for r in rows if r.score is not None),
            key=lambda r: (r.score or 0, METRICS.index(r.metric)),
        )
        critique = next((r.critique for r in rows if r.critique), "")
        reason = lowest.justification or ""
        console.print(
            Text(
                f"{words.number(value)}  {one_line(rows[0].character or '', 40)} · "
                f"{one_line(names.get(unit.unit_id, unit.scene), 60)} · "
                f"{one_line(unit.model, 60)}\n"
                f"      {one_line(critique, room)}\n"
                f"      {lowest.score} {metric_name(lowest.metric, words.language)}"
                f"{words('colon') if reason else ''}{one_line(reason, room)}"
            ),
            no_wrap=True,
            overflow="ellipsis",
        )


def _plays(data: PlaysReport, words: Words) -> Table:
    """The plays that there are, where nothing else can be told of them."""
    return plain_table(
        [words(h) for h in ("scene", "rounds", "end", "replies_missing")],
        [
            (
                one_line(scene_name(play)[0], 60),
                str(play.rounds),
                words("end_stopped")
                if not play.complete
                else words("end_concluded" if play.concluded else "end_open"),
                str(sum(e.kind == "failure" for e in play.events)),
            )
            for _, play in data.plays
        ],
    )


# CSV --------------------------------------------------------------------------------------------


def write_plays_csv(data: PlaysReport, directory: Path) -> tuple[Path, Path, Path]:
    """Write `scores.csv`, `units.csv` and `events.csv` (UTF-8) and say where.

    `scores.csv`: a line per model, language, scene and metric (`average` too) with the mean over
    the scene's characters that have a score, how many those are, and how many have none.
    `units.csv`: a line per trajectory and metric, rated or not, with each judge's score, reason and
    failure; narrators' where they were rated. An empty cell is missing or was not asked.
    `events.csv`: a line per event of every play.

    Raises:
        OutputError: a file cannot be written.
    """
    scores, units, events = (directory / f"{n}.csv" for n in ("scores", "units", "events"))
    write_table(
        scores,
        ("model", "language", "scene", "origin", "alone", "metric", "mean", "scored", "missing"),
        _score_lines(data),
    )
    seats = sorted({(row.judge, row.repeat) for row in data.rows})
    names = [judge if not repeat else f"{judge} (repeat {repeat + 1})" for judge, repeat in seats]
    write_table(
        units,
        (
            *("unit_id", "run", "scene", "title", "origin", "language", "character", "model"),
            *("narrator", "alone", "acts_missing", "metric", "mean"),
            *(f"score: {name}" for name in names),
            *(f"reason: {name}" for name in names),
            *(f"failure: {name}" for name in names),
            *(f"critique: {name}" for name in names),
        ),
        _unit_lines(data, seats),
    )
    write_table(
        events,
        (
            *("run", "scene", "round", "turn", "kind", "actor", "text", "to", "manner"),
            *("perceived_by", "affected", "model", "failure", "detail"),
        ),
        _event_lines(data),
    )
    return scores, units, events


def _score_lines(data: PlaysReport) -> Iterator[tuple[object, ...]]:
    ratings = data.ratings
    for metric in (*ratings.keys, AVERAGE):
        values = ratings.of_panel(metric)
        groups: dict[tuple[str, str, str, str, bool], list[float | None]] = defaultdict(list)
        for unit in ratings.units:
            key = (unit.model, unit.lang, unit.scene, unit.origin, unit.alone)
            groups[key].append(values.get(unit))
        for (model, lang, scene, origin, alone), found in sorted(groups.items()):
            known = [v for v in found if v is not None]
            yield (
                *(model, lang, scene, origin, alone, metric),
                *(sum(known) / len(known) if known else None, len(known), len(found) - len(known)),
            )


def _unit_lines(
    data: PlaysReport, seats: Sequence[tuple[str, int]]
) -> Iterator[tuple[object, ...]]:
    by_metric = {key: data.ratings.of_panel(key) for key in data.ratings.keys}
    means = {(u.unit_id, key): v for key, some in by_metric.items() for u, v in some.items()}
    for run, play, name, unit in data.trajectories():
        given = {(r.metric, r.judge, r.repeat): r for r in data.rows_of.get(unit, ())}
        for metric in METRICS:
            found = [given.get((metric, *seat)) for seat in seats]
            yield (
                *(unit, str(run.run), play.scene.id, play.scene.title, play.scene.origin),
                *(play.language, name, play.models[name], play.narrator),
                *(len(play.scene.characters) == 1, acts_missing(play, name), metric),
                means.get((unit, metric)),
                *_cells(found),
            )
    told = {
        (u.unit_id, key): v
        for key in data.narrated.keys
        for u, v in data.narrated.of_panel(key).items()
    }
    run_of = {row.unit_id: one.run for one in data.runs for row in one.rows}
    for u in data.narrated.units:
        rows = [r for r in data.rows_of[u.unit_id] if kind_of(r) == "narrator"]
        given = {(r.metric, r.judge, r.repeat): r for r in rows}
        for metric in data.narrated.keys:
            yield (
                *(u.unit_id, str(run_of[u.unit_id]), u.scene, u.title, u.origin, u.lang),
                *(None, u.model, u.model, u.alone, u.acts_missing, metric),
                told.get((u.unit_id, metric)),
                *_cells([given.get((metric, *seat)) for seat in seats]),
            )


def _cells(found: Sequence[RatingRow | None]) -> Iterator[object]:
    for row in found:
        yield None if row is None else row.score
    for row in found:
        yield None if row is None else row.justification
    for row in found:
        yield None if row is None or row.failure is None else row.failure.cause
    for row in found:
        yield None if row is None else row.critique


def _event_lines(data: PlaysReport) -> Iterator[tuple[object, ...]]:
    for run, play in data.plays:
        for event in play.events:
            failure = event.failure
            yield (
                *(str(run.run), play.scene.id, event.round, event.turn, event.kind, event.actor),
                *(event.text, "; ".join(event.to), event.manner, "; ".join(event.perceived_by)),
                *(event.affected, event.model),
                *(None if failure is None else failure.cause, failure and failure.detail),
            )
