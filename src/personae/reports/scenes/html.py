"""The report of plays as one self-contained HTML page, like that of interviews."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from personae.judging.metrics import DIMENSIONS, MAXIMS, METRICS, Kind, load_metric
from personae.judging.trajectories import narrator_unit_id, unit_id
from personae.judging.trajectory_scores import (
    AVERAGE,
    Cronbach,
    Gap,
    JudgeAgreement,
    Ratings,
    TrajectoryScores,
    Unit,
    kind_of,
    scene_means,
)
from personae.play_stage import PLAYS
from personae.records import AuditGroup, Estimate, Failure, Language, Play, RatingRow
from personae.records.files import write_atomically
from personae.reports import figures
from personae.reports.html import ANSWER_CHARS, FOLD_CHARS, estimate_text
from personae.reports.language import Words, clean, one_line
from personae.reports.page import environment, style
from personae.reports.ratings import RatedRun
from personae.reports.scenes.data import Judge, PlaysReport
from personae.reports.scenes.script import Script, script_of

WORST = 20
WORST_SHOWN = 5
FEW_SCENES = 10
SCRIPTS = 60
SCRIPT_CHARS = 2_000_000
"""Of all scripts together; the rest of the plays are named, and stand in their files."""
SCRIPTS_OPEN = 2
LISTED = 500
NAME_CHARS = 80
EVENT_CHARS = 200
STATE_CHARS = 600
RECALLED_CHARS = 300


@dataclass(frozen=True)
class ModelLine:
    """A model in one language, with its colour and shape."""

    series: int
    label: str
    scores: TrajectoryScores


@dataclass(frozen=True)
class JudgeLine:
    """A judge as the warning and the table of judges show it."""

    judge: Judge
    failed: tuple[AuditGroup, ...]
    counts: tuple[figures.Bar, ...]
    n_scored: int
    n_missing: int
    rates_itself: bool
    audit_command: str


@dataclass(frozen=True)
class Said:
    """One judge's word on one metric of a trajectory."""

    metric: str
    score: int | None
    reason: str | None
    failure: Failure | None


@dataclass(frozen=True)
class Verdict:
    """One judge's critique of a trajectory and its scores, the lowest first, missing ones last."""

    judge: str
    repeat: int
    critique: str | None
    said: tuple[Said, ...]


@dataclass(frozen=True)
class Card:
    """A rated trajectory with all that was said of it.

    Attributes:
        metrics: the panel's score by name of metric; None is missing.
        anchor: where its script stands in the page; None where it does not.
    """

    unit: Unit
    value: float
    character: str | None
    scene: str
    event: str
    metrics: tuple[tuple[str, float | None], ...]
    verdicts: tuple[Verdict, ...]
    anchor: str | None


@dataclass(frozen=True)
class Listed:
    """A play in the table of contents.

    Attributes:
        value: the mean of its characters' averages; None where none has one.
        anchor: where its script stands; None where there was no room for it.
        file: where the whole play stands.
    """

    run: RatedRun
    play: Play
    title: str
    event: str
    value: float | None
    values: Mapping[str, float]
    failures: int
    file: Path
    anchor: str | None = None


@dataclass(frozen=True)
class Difference:
    """Two models' difference on one metric, drawn on the axis of points."""

    what: str
    estimate: Estimate
    row: figures.MarkRow


def metric_name(key: str, language: Language) -> str:
    """The name of a metric or maxim, or the word for the average of all."""
    if key == AVERAGE:
        return Words(language, "scenes")("average")
    return load_metric(key, language).name


def scene_name(play: Play) -> tuple[str, str]:
    """What a scene is called, and its event.

    Scenes of CharacterBox share a title, and every file restarts its numbers: they go by their id.
    """
    scene = play.scene
    title, event = one_line(scene.title, NAME_CHARS), one_line(scene.event, EVENT_CHARS)
    if title and not scene.id.startswith(f"{scene.title}/"):
        return title, event
    return one_line(scene.id, NAME_CHARS), event


def label_of(model: str, lang: Language, words: Words, *, languages: int) -> str:
    """A model's name, with the language where the report holds several."""
    return model if languages < 2 else f"{model} ({words(f'languages.{lang}')})"


def model_lines(scores: Sequence[TrajectoryScores], words: Words) -> list[ModelLine]:
    """Models in order, each with its colour."""
    languages = len({one.lang for one in scores})
    return [
        ModelLine(i % figures.SERIES, label_of(s.model, s.lang, words, languages=languages), s)
        for i, s in enumerate(scores)
    ]


def _score_rows(
    lines: Sequence[ModelLine], keys: Sequence[str], words: Words, axis: figures.Axis
) -> list[figures.MarkRow]:
    def row(key: str) -> figures.MarkRow:
        found = [(m, m.scores.average if key == AVERAGE else m.scores.metrics[key]) for m in lines]
        return figures.mark_row(
            metric_name(key, words.language),
            [(m.series, e, estimate_text(words, e)) for m, e in found],
            axis,
        )

    return [row(key) for key in (AVERAGE, *keys)] if lines else []


def _gap_rows(
    gaps: Sequence[Gap], lines: Sequence[ModelLine], words: Words
) -> tuple[list[figures.MarkRow], figures.Axis]:
    """Extracted minus generated, the average first."""
    axis = figures.signed_axis([v for g in gaps for v in (g.value, g.low, g.high) if v is not None])
    by_key = {(g.metric, g.model, g.lang): g for g in gaps}
    rows = []
    for key in (AVERAGE, *METRICS):
        marks = []
        for m in lines:
            gap = by_key.get((key, m.scores.model, m.scores.lang))
            if gap is None:
                continue
            e = Estimate(mean=gap.value, low=gap.low, high=gap.high, n=0, missing=0)
            shown = words.signed(e.mean)
            if e.low is not None:
                shown += f" {words.interval(e, signed=True)}"
            marks.append((m.series, e, shown))
        if marks:
            rows.append(figures.mark_row(metric_name(key, words.language), marks, axis))
    return rows, axis


def _swarms(
    ratings: Ratings, lines: Sequence[ModelLine], axis: figures.Axis
) -> list[tuple[str, figures.Swarm]]:
    """Each model's scenes, a dot each."""
    values = ratings.of_panel(AVERAGE)
    found = []
    for line in lines:
        mine = [
            u
            for u in ratings.units
            if not u.alone and (u.model, u.lang) == (line.scores.model, line.scores.lang)
        ]
        if scenes := list(scene_means(mine, values).values()):
            found.append((line.label, figures.swarm(line.series, scenes, axis)))
    return found


def judge_lines(data: PlaysReport) -> list[JudgeLine]:
    """The judges, those of characters first, with what they gave."""
    given: dict[tuple[str, Kind, Language], Counter[int]] = {}
    missing: Counter[tuple[str, Kind, Language]] = Counter()
    for row in data.rows:
        key = (row.judge, kind_of(row), row.language)
        if row.score is None:
            missing[key] += 1
        else:
            given.setdefault(key, Counter())[row.score] += 1
    roles: dict[Kind, str] = {"characters": "character", "narrator": "narrator"}
    played = {
        kind: {m for manifest in data.manifests for m in manifest.models.get(role, ())}
        for kind, role in roles.items()
    }
    lines = []
    for judge in sorted(data.judges, key=lambda j: (j.kind, j.model, j.lang)):
        key = (judge.model, judge.kind, judge.lang)
        counts = given.get(key, Counter())
        lines.append(
            JudgeLine(
                judge,
                tuple(g for g in judge.audit.groups if g.passed is False) if judge.audit else (),
                figures.bars([(str(s), counts[s]) for s in range(1, 6)]) if counts else (),
                counts.total(),
                missing[key],
                judge.model in played[judge.kind],
                _audit_command(judge),
            )
        )
    return lines


def _audit_command(judge: Judge) -> str:
    answers = str(judge.run)
    return shlex.join(
        ["personae", "audit", "--judge", judge.model, "--answers", answers, "--out", "AUDIT"]
    )


def _verdicts(rows: Sequence[RatingRow], language: Language) -> Iterator[Verdict]:
    seats = groupby(
        sorted(rows, key=lambda r: (r.judge, r.repeat)), key=lambda r: (r.judge, r.repeat)
    )
    for (judge, repeat), given in seats:
        own = sorted(given, key=lambda r: (r.score or 9, (*METRICS, *MAXIMS).index(r.metric)))
        yield Verdict(
            judge,
            repeat,
            next((r.critique for r in own if r.critique is not None), None),
            tuple(
                Said(metric_name(r.metric, language), r.score, r.justification, r.failure)
                for r in own
            ),
        )


def _cards(
    data: PlaysReport,
    found: Sequence[tuple[Unit, float]],
    ratings: Ratings,
    listed: Mapping[str, Listed],
    language: Language,
) -> list[Card]:
    by_metric = {key: ratings.of_panel(key) for key in ratings.keys}
    cards = []
    for unit, value in found:
        rows = data.rows_of[unit.unit_id]
        play = listed.get(unit.unit_id)
        cards.append(
            Card(
                unit,
                value,
                rows[0].character,
                unit.scene if play is None else play.title,
                "" if play is None else play.event,
                tuple(
                    (metric_name(key, language), values.get(unit))
                    for key, values in by_metric.items()
                ),
                tuple(_verdicts(rows, language)),
                None if play is None else play.anchor,
            )
        )
    return cards


def _listed(data: PlaysReport) -> tuple[list[Listed], list[tuple[Listed, Script]]]:
    """All plays, and the scripts that the page has room for.

    The wanted ones, or those of the worst trajectories and then the first; shown in their order.
    """
    entries: list[Listed] = []
    for run, play in data.plays:
        units = {name: unit_id(play, name) for name in play.models}
        values = {name: data.averages[u] for name, u in units.items() if u in data.averages}
        entries.append(
            Listed(
                run,
                play,
                *scene_name(play),
                sum(values.values()) / len(values) if values else None,
                values,
                sum(e.kind == "failure" for e in play.events),
                run.run / PLAYS,
            )
        )
    lowest = [i for i, e in enumerate(entries) if e.values]
    lowest.sort(key=lambda i: min(entries[i].values.values()))
    order = dict.fromkeys([*lowest[:WORST], *range(len(entries))])
    if data.wanted:
        order = dict.fromkeys(i for i in order if entries[i].play.scene.id in data.wanted)
    room = SCRIPT_CHARS
    scripts: dict[int, Script] = {}
    for i in order:
        if len(scripts) == SCRIPTS:
            break
        script = script_of(entries[i].play, entries[i].run.name)
        if script.size <= room:
            scripts[i] = script
            room -= script.size
    shown = [
        replace(e, anchor=f"play-{i + 1}") if i in scripts else e for i, e in enumerate(entries)
    ]
    return shown, [(shown[i], scripts[i]) for i in sorted(scripts)]


def _differences(
    data: PlaysReport, words: Words
) -> tuple[list[tuple[str, str, list[Difference]]], figures.Axis]:
    languages = len({d.lang for d in data.differences})
    ends = [
        v
        for d in data.differences
        for v in (d.estimate.mean, d.estimate.low, d.estimate.high)
        if v is not None
    ]
    axis = figures.signed_axis(ends)
    groups: dict[tuple[str, str], list[Difference]] = {}
    for d in data.differences:
        pair = (
            label_of(d.model, d.lang, words, languages=languages),
            label_of(d.other, d.lang, words, languages=languages),
        )
        groups.setdefault(pair, []).append(
            Difference(
                metric_name(d.metric, words.language),
                d.estimate,
                figures.mark_row("", [(0, d.estimate, "")], axis),
            )
        )
    return [(*pair, lines) for pair, lines in groups.items()], axis


def render_plays(data: PlaysReport, language: Language = "en") -> str:
    """The page, encodable as UTF-8.

    It loads nothing and runs nothing, as the page of interviews. Scripts stand in it as far as
    there is room (`SCRIPTS`, `SCRIPT_CHARS`); the page names the file of the rest.
    """
    words = Words(language, "scenes")
    axis = figures.score_axis()
    css, css_hash = style()
    lines = model_lines(data.models, words)
    alone = model_lines(data.alone, words)
    narrators = model_lines(data.narrators, words)
    gaps = [Gap.from_dict(one) for one in data.scenes["gap"]]
    gap_rows, gap_axis = _gap_rows(gaps, lines, words)
    listed, scripts = _listed(data)
    differences, difference_axis = _differences(data, words)
    by_unit = _by_unit(data, listed)
    worst, worst_alone = data.worst(), data.worst(alone=True)
    narrated = sorted(
        data.narrated.of_panel(AVERAGE).items(), key=lambda pair: (pair[1], pair[0].unit_id)
    )
    last = worst[:WORST][-1][1] if worst else None
    counted = [m.scores.average.n for m in lines if m.scores.average.mean is not None]
    page = environment().get_template("scenes.html.j2")
    return clean(
        page.render(
            t=words,
            data=data,
            css=Markup(css),  # noqa: S704  (our own file)
            css_hash=css_hash,
            metrics=METRICS,
            maxims=MAXIMS,
            dimensions=DIMENSIONS,
            name_of=lambda key: metric_name(key, language),
            means_of=lambda key: load_metric(key, language).description,
            models=lines,
            trust=data.trust,
            judges=judge_lines(data),
            axis=axis,
            score_rows=_score_rows(lines, METRICS, words, axis),
            gaps={(g.model, g.lang): g for g in gaps if g.metric == AVERAGE},
            gap_rows=gap_rows,
            gap_axis=gap_axis,
            swarms=_swarms(data.ratings, lines, axis),
            differences=differences,
            difference_axis=difference_axis,
            agreement=[JudgeAgreement.from_dict(one) for one in data.scenes["agreement"]],
            cronbach=[Cronbach.from_dict(one) for one in data.scenes["cronbach"]],
            by_judge=sorted(
                (
                    (judge, TrajectoryScores.from_dict(one))
                    for judge, found in data.scenes["by_judge"].items()
                    for one in found
                ),
                key=lambda pair: (pair[1].model, pair[1].lang, pair[0]),
            ),
            narrators=narrators,
            narrator_rows=_score_rows(narrators, MAXIMS, words, axis),
            worst_narrated=_cards(data, narrated[:3], data.narrated, by_unit, language),
            alone=alone,
            alone_rows=_score_rows(alone, METRICS, words, axis),
            worst_alone=_cards(data, worst_alone[:3], data.ratings, by_unit, language),
            worst=_cards(data, worst[:WORST], data.ratings, by_unit, language),
            n_scored=len(worst),
            n_tied=sum(1 for _, v in worst if last is not None and v <= last),
            listed=listed,
            scripts=scripts,
            several_runs=len(data.runs) > 1,
            languages=len({play.language for _, play in data.plays}),
            n_characters=len({(p.scene.id, n) for _, p in data.plays for n in p.models}),
            n_scenes=len({p.scene.id for _, p in data.plays}),
            n_models=len({m for _, p in data.plays for m in p.models.values()}),
            missing={(m.kind, m.model, m.lang): m for m in data.missing},
            few=min(counted, default=0),
            few_scenes=FEW_SCENES,
            unfinished=list(_unfinished(data)),
            open_scripts=SCRIPTS_OPEN,
            worst_shown=WORST_SHOWN,
            most_listed=LISTED,
            quote=lambda path: shlex.quote(str(path)),
            **_ways_of_showing(),
        )
    )


def _ways_of_showing() -> dict[str, Any]:
    """What every template with a script in it needs."""
    return {
        "answer_chars": ANSWER_CHARS,
        "fold_chars": FOLD_CHARS,
        "name": lambda text: one_line(str(text), NAME_CHARS),
        "state_chars": STATE_CHARS,
        "recalled_chars": RECALLED_CHARS,
        "one_line": one_line,
    }


def _unfinished(data: PlaysReport) -> Iterator[tuple[Path, str]]:
    """The runs and ratings that did not come to their end, with their status."""
    for one, manifest in zip(data.runs, data.manifests, strict=True):
        for folder, was in ((one.run, manifest), *one.ratings.items()):
            if was.status != "done":
                yield folder, was.status


def _by_unit(data: PlaysReport, listed: Sequence[Listed]) -> dict[str, Listed]:
    """The play of every unit id, characters and narrators."""
    return {
        unit: entry
        for entry in listed
        for unit in (
            *(unit_id(entry.play, name) for name in entry.play.models),
            narrator_unit_id(entry.play),
        )
    }


def scripts_section(plays: Sequence[Play], file: Path, language: Language) -> Markup:
    """The scripts of plays as a section of another page (the demo's), without ratings."""
    entries = []
    for number, play in enumerate(plays, 1):
        title, event = scene_name(play)
        shown = {"anchor": f"play-{number}", "title": title, "event": event, "file": file}
        entries.append(({**shown, "value": None, "values": {}}, script_of(play)))
    section = environment().get_template("scripts.html.j2")
    return Markup(  # noqa: S704  (a template of ours, which escapes)
        section.render(
            t=Words(language, "scenes"),
            scripts=entries,
            several_runs=False,
            **_ways_of_showing(),
        )
    )


def write_plays_html(data: PlaysReport, path: Path, language: Language = "en") -> None:
    """Write the page; one that stood there before is replaced whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_atomically(path, render_plays(data, language))
