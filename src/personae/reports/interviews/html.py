"""The report of interviews as one self-contained HTML page, like the other reports."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from personae.interview.questions import INTERVIEWS
from personae.judging.interview_metrics import (
    DIMENSIONS,
    HIGHEST,
    LOWEST,
    METRICS,
    SEVEN,
    TRANSFER,
    load_interview_metric,
)
from personae.judging.interview_scores import (
    AVERAGE,
    InterviewDifference,
    InterviewScores,
    StabilityCurve,
    TemptingScores,
    TopicScores,
    TurnEstimate,
    Voice,
)
from personae.judging.trajectory_scores import JudgeAgreement
from personae.records import (
    AuditGroup,
    Estimate,
    Exchange,
    Failure,
    Interview,
    InterviewRow,
    Language,
)
from personae.records.files import write_atomically
from personae.records.turns import in_turns
from personae.reports import figures
from personae.reports.data import UsageLine
from personae.reports.gather import total_cost
from personae.reports.html import ANSWER_CHARS, FOLD_CHARS, estimate_text
from personae.reports.interviews import curves
from personae.reports.interviews.data import (
    InterviewsReport,
    Judge,
    voice_of,
)
from personae.reports.language import Words, clean, one_line
from personae.reports.page import environment, style

WORST = 20
WORST_SHOWN = 5
WORST_TRANSFER = 5
FEW_CHARACTERS = 10
SHOWN = 40
SHOWN_CHARS = 1_500_000
"""Of all answers side by side; the rest stands in the files."""
SHOWN_OPEN = 3
PLACES = 12
NOTES = 3
NAME_CHARS = 80
AVERAGES = (4, 5)
"""Colours and shapes of the two averages; the first ones are those of models and methods."""
MODES = ("single", "replayed", "live", "unknown")
SCALE = figures.Axis(
    LOWEST,
    HIGHEST,
    tuple(
        (round(100 * (score - LOWEST) / (HIGHEST - LOWEST), 3), str(score))
        for score in range(LOWEST, HIGHEST + 1)
    ),
)
TOPIC_CHARS = 200


@dataclass(frozen=True)
class JudgeLine:
    """A judge as the warning and the table of judges show it."""

    judge: Judge
    failed: tuple[AuditGroup, ...]
    counts: tuple[figures.Bar, ...]
    n_scored: int
    n_missing: int
    judges_itself: bool
    audit_command: str


@dataclass(frozen=True)
class Said:
    """One judge's word on one metric."""

    metric: str
    score: int | None
    turn_scores: tuple[int, ...]
    reason: str | None
    failure: Failure | None


@dataclass(frozen=True)
class Verdict:
    """What one judge said of an interview, the lowest score first, missing ones last."""

    judge: str
    repeat: int
    said: tuple[Said, ...]


@dataclass(frozen=True)
class Turn:
    """An exchange with what the judges gave it under Stab (the mean over them)."""

    number: int
    exchange: Exchange
    score: float | None


@dataclass(frozen=True)
class Answered:
    """An interview as it stands beside others of the same script.

    Attributes:
        value: the average of the seven metrics, or Trans; None where one of them is missing.
        metrics: the panel's score by metric; None is missing.
        file: where the whole of it stands.
    """

    series: int
    interview: Interview
    value: float | None
    metrics: tuple[tuple[str, float | None], ...]
    turns: tuple[Turn, ...]
    file: Path


@dataclass(frozen=True)
class SideBySide:
    """Everybody's answers to one script.

    Attributes:
        asked: the interviewer's words turn by turn where all were asked the same; None where each
            interview has its own.
    """

    anchor: str
    number: int
    answers: tuple[Answered, ...]
    asked: tuple[str | None, ...] | None
    size: int

    @property
    def first(self) -> Interview:
        """One of the interviews, for what they share."""
        return self.answers[0].interview

    @property
    def title(self) -> str:
        """A single question, else the topic."""
        if self.first.kind == "single":
            asked = next(iter(self.asked or ()), None)
            return asked or self.first.topic or self.first.script_id
        return self.first.topic or self.first.script_id

    @property
    def opens(self) -> str:
        """The interviewer's first words, where they are the same for all."""
        return "" if self.first.kind == "single" else next(iter(self.asked or ()), None) or ""


@dataclass(frozen=True)
class Card:
    """One of the worst interviews with all that was said of it."""

    answered: Answered
    value: float
    verdicts: tuple[Verdict, ...]
    anchor: str | None


@dataclass(frozen=True)
class RoleCost:
    """What one role used."""

    role: str
    calls: int
    tokens_in: int | None
    tokens_out: int | None
    usd: float | None
    lines: tuple[UsageLine, ...]


@dataclass(frozen=True)
class VoiceLine:
    """A line of a table of scores, with its colour.

    Attributes:
        unanswered: interviews with one character that have no usable answer.
    """

    series: int
    scores: InterviewScores
    unanswered: int = 0

    def label(self, words: Words) -> str:
        """Model, method and mode in words."""
        return " · ".join(
            (
                self.scores.model,
                words(f"methods.{self.scores.method}"),
                words(f"modes.{self.scores.mode}"),
            )
        )


@dataclass(frozen=True)
class ModeLines:
    """The voices of one mode and language, which alone are compared.

    Attributes:
        rows: both averages of each, drawn.
    """

    mode: str
    lang: Language
    lines: tuple[VoiceLine, ...]
    rows: tuple[figures.MarkRow, ...]


@dataclass(frozen=True)
class Panel:
    """One voice's curve with all that is said of it."""

    series: int
    model: str
    method: str
    drift: Estimate
    turns: tuple[TurnEstimate, ...]
    curve: curves.Curve
    alt: str


@dataclass(frozen=True)
class PanelGroup:
    """Curves on one scale: those of one mode and language."""

    mode: str
    lang: Language
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Difference:
    """A difference on one metric, drawn on the axis of points."""

    what: str
    scripts: int
    estimate: Estimate
    row: figures.MarkRow


@dataclass(frozen=True)
class DifferenceGroup:
    """The differences between two voices of one mode and language.

    Attributes:
        averages: both averages, and Trans.
        metrics: the seven.
    """

    first: str
    second: str
    mode: str
    lang: Language
    averages: tuple[Difference, ...]
    metrics: tuple[Difference, ...]


@dataclass(frozen=True)
class Topic:
    """A topic with the voices that were asked about it."""

    name: str
    tempting: bool
    lines: tuple[VoiceLine, ...]


@dataclass(frozen=True)
class AgreementLine:
    """How far judges agree on one metric, or why that is not known."""

    name: str
    alpha: float | None
    low: float | None
    high: float | None
    units: int
    reason: str | None


def metric_name(key: str, language: Language) -> str:
    """The name of a metric, or the word for an average."""
    if key in METRICS:
        return load_interview_metric(key, language).name
    return Words(language, "interviews")(key)


def series_of(data: InterviewsReport) -> Mapping[tuple[str, str], int]:
    """A colour and shape for every model under every method, the same in all modes."""
    pairs = dict.fromkeys((voice.model, voice.method) for voice in data.voices)
    return {pair: i % figures.SERIES for i, pair in enumerate(pairs)}


def judge_lines(data: InterviewsReport) -> list[JudgeLine]:
    """The judges with what they gave."""
    given: dict[tuple[str, Language], Counter[int]] = defaultdict(Counter)
    missing: Counter[tuple[str, Language]] = Counter()
    for row in data.rows:
        if row.score is None:
            missing[row.judge, row.language] += 1
        else:
            given[row.judge, row.language][row.score] += 1
    asked = {m for manifest in data.manifests for m in manifest.models.get("model", ())}
    lines = []
    for judge in sorted(data.judges, key=lambda j: (j.model, j.lang)):
        counts = given[judge.model, judge.lang]
        lines.append(
            JudgeLine(
                judge,
                tuple(g for g in judge.audit.groups if g.passed is False) if judge.audit else (),
                figures.bars([(str(s), counts[s]) for s in range(LOWEST, HIGHEST + 1)])
                if counts
                else (),
                counts.total(),
                missing[judge.model, judge.lang],
                judge.model in asked,
                shlex.join(
                    (
                        *("personae", "audit", "--judge", judge.model),
                        *("--answers", str(judge.run), "--out", "AUDIT"),
                    )
                ),
            )
        )
    return lines


# Side by side ------------------------------------------------------------------------------------


def all_answered(data: InterviewsReport) -> dict[str, Answered]:
    """Every interview with its scores, by id."""
    series = series_of(data)
    found = {}
    for run in data.runs:
        for one in run.interviews:
            scores = data.scores_of.get(one.id, {})
            turns = data.turns_of.get(one.id, {})
            found[one.id] = Answered(
                series[one.model, one.method],
                one,
                scores.get(TRANSFER if one.kind == "transfer" else AVERAGE),
                tuple((key, scores[key]) for key in METRICS if key in scores),
                tuple(Turn(i, e, turns.get(i)) for i, e in enumerate(one.exchanges, 1)),
                run.run / INTERVIEWS,
            )
    return found


def worst_of(found: Mapping[str, Answered], *, transfer: bool = False) -> list[Answered]:
    """The interviews with a score, the lowest first; by id among equals."""
    scored = [
        one
        for one in found.values()
        if one.value is not None and (one.interview.kind == "transfer") == transfer
    ]
    return sorted(scored, key=lambda one: (one.value, one.interview.id))


def side_by_side(
    data: InterviewsReport, found: Mapping[str, Answered], first: Sequence[Answered]
) -> tuple[list[SideBySide], int]:
    """The scripts that the page has room for, in their order, and how many there are in all.

    Those of the worst interviews have room first, then those that several voices have held, in
    turns from every kind and character.
    """
    scripts = list(data.by_script)
    queues: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for script, some in sorted(data.by_script.items(), key=lambda item: len(item[1]) < 2):
        queues[some[0].kind, some[0].characters, some[0].tempting].append(script)
    order = dict.fromkeys([*(one.interview.script_id for one in first), *in_turns(queues.values())])
    room = SHOWN_CHARS
    shown: dict[str, SideBySide] = {}
    number_of = {script: i for i, script in enumerate(scripts, 1)}
    for script in order:
        if len(shown) == SHOWN:
            break
        one = _side(number_of[script], [found[i.id] for i in data.by_script[script]])
        if one.size <= room:
            shown[script] = one
            room -= one.size
    return [shown[script] for script in scripts if script in shown], len(scripts)


def _side(number: int, answers: Sequence[Answered]) -> SideBySide:
    words: dict[int, dict[str, None]] = defaultdict(dict)
    for one in answers:
        for turn in one.turns:
            if turn.exchange.asked is not None:
                words[turn.number][turn.exchange.asked] = None
    asked = None
    if all(len(found) == 1 for found in words.values()):
        turns = max(len(one.turns) for one in answers)
        asked = tuple(next(iter(words.get(i + 1, ())), None) for i in range(turns))
    size = sum(
        len(e.asked or "") + len(e.answer or "") + sum(map(len, e.passages))
        for one in answers
        for e in one.interview.exchanges
    )
    return SideBySide(f"script-{number}", number, tuple(answers), asked, size)


def _verdicts(rows: Sequence[InterviewRow], language: Language) -> Iterator[Verdict]:
    for (judge, repeat), given in groupby(rows, key=lambda r: (r.judge, r.repeat)):
        own = sorted(given, key=lambda r: (r.score or HIGHEST + 1, METRICS.index(r.metric)))
        yield Verdict(
            judge,
            repeat,
            tuple(
                Said(
                    metric_name(r.metric, language), r.score, r.turn_scores, r.reasoning, r.failure
                )
                for r in own
            ),
        )


def _cards(
    data: InterviewsReport,
    found: Sequence[Answered],
    shown: Mapping[str, SideBySide],
    language: Language,
) -> list[Card]:
    return [
        Card(
            one,
            one.value,
            tuple(_verdicts(data.rows_of[one.interview.id], language)),
            side.anchor if (side := shown.get(one.interview.script_id)) else None,
        )
        for one in found
        if one.value is not None
    ]


def role_costs(data: InterviewsReport) -> list[RoleCost]:
    """The use by role, in the order in which a run needs them."""
    order = ("writer", "interviewer", "character", "judge")
    lines: dict[str, list[UsageLine]] = defaultdict(list)
    for line in data.usage:
        lines[line.role].append(line)
    ranked = sorted(lines, key=lambda role: (order.index(role) if role in order else 9, role))
    found = []
    for role in ranked:
        cost = total_cost(lines[role])
        found.append(
            RoleCost(
                role,
                sum(line.calls for line in lines[role]),
                cost.tokens_in,
                cost.tokens_out,
                cost.usd,
                tuple(lines[role]),
            )
        )
    return found


# Scores, curves, differences ---------------------------------------------------------------------


def voice_lines(data: InterviewsReport, scores: Iterable[Mapping[str, Any]]) -> list[VoiceLine]:
    """Scores with the colours of their models and methods."""
    series = series_of(data)
    lost = Counter(
        voice_of(one) for one in data.held if one.failure is not None and one.kind != "transfer"
    )
    found = [InterviewScores.from_dict(one) for one in scores]
    return [VoiceLine(series[one.model, one.method], one, lost[_voice(one)]) for one in found]


def by_mode(
    lines: Sequence[VoiceLine], words: Words, axis: figures.Axis = SCALE
) -> list[ModeLines]:
    """The lines by mode and language, single questions first."""
    groups: dict[tuple[str, Language], list[VoiceLine]] = defaultdict(list)
    for line in lines:
        groups[line.scores.mode, line.scores.lang].append(line)
    return [
        ModeLines(
            mode,
            lang,
            tuple(some),
            tuple(
                figures.mark_row(
                    f"{line.scores.model} · {words(f'methods.{line.scores.method}')}",
                    [
                        (series, e, estimate_text(words, e))
                        for series, e in zip(
                            AVERAGES,
                            (line.scores.average, line.scores.average_without_stab),
                            strict=True,
                        )
                    ],
                    axis,
                )
                for line in some
            ),
        )
        for (mode, lang), some in sorted(groups.items(), key=lambda g: (MODES.index(g[0][0]), g[0]))
    ]


def curve_groups(data: InterviewsReport, words: Words) -> list[PanelGroup]:
    """The stability curves by mode and language, each with the others' lines behind it."""
    series = series_of(data)
    groups: dict[tuple[str, Language], list[StabilityCurve]] = defaultdict(list)
    for one in map(StabilityCurve.from_dict, data.interviews["curves"]):
        if any(turn.mean is not None for turn in one.turns):
            groups[one.mode, one.lang].append(one)
    found = []
    for (mode, lang), some in sorted(groups.items(), key=lambda g: (MODES.index(g[0][0]), g[0])):
        last = max(turn.turn for one in some for turn in one.turns)
        drawn = [curves.curve({turn.turn: turn for turn in one.turns}, last) for one in some]
        panels = tuple(
            Panel(
                series[one.model, one.method],
                one.model,
                one.method,
                one.drift,
                one.turns,
                replace(
                    mine,
                    ghosts=tuple(line for other in drawn if other is not mine
                                 for line in other.lines),
                ),
                words(
                    "curve_alt",
                    who=f"{one.model}, {words(f'methods.{one.method}')}",
                    mode=words(f"modes.{mode}"),
                    n=len(one.turns),
                )
                + words("colon")
                + words("list_comma").join(
                    words.number(turn.mean) if turn.mean is not None else words("no_score")
                    for turn in one.turns
                ),
            )
            for one, mine in zip(some, drawn, strict=True)
        )  # fmt: skip
        found.append(PanelGroup(mode, lang, panels))
    return found


def _differences(
    data: InterviewsReport, words: Words
) -> tuple[list[DifferenceGroup], figures.Axis]:
    found = [InterviewDifference.from_dict(one) for one in data.interviews["paired"]]
    axis = figures.signed_axis(
        [
            v
            for d in found
            for v in (d.estimate.mean, d.estimate.low, d.estimate.high)
            if v is not None
        ]
    )
    groups: dict[tuple[str, str, str, Language], tuple[list[Difference], list[Difference]]]
    groups = defaultdict(lambda: ([], []))
    for d in found:
        pair = (
            f"{d.model} · {words(f'methods.{d.method}')}",
            f"{d.other_model} · {words(f'methods.{d.other_method}')}",
        )
        groups[(*pair, d.mode, d.lang)][d.what in SEVEN].append(
            Difference(
                metric_name(d.what, words.language),
                d.scripts,
                d.estimate,
                figures.mark_row("", [(0, d.estimate, "")], axis),
            )
        )
    return [
        DifferenceGroup(*key, tuple(averages), tuple(metrics))
        for key, (averages, metrics) in groups.items()
    ], axis


def _topics(data: InterviewsReport) -> list[Topic]:
    """The topics in order, those that tempt after the others."""
    series = series_of(data)
    groups: dict[tuple[bool, str, str], list[TopicScores]] = defaultdict(list)
    for one in map(TopicScores.from_dict, data.interviews["topics"]):
        if one.n_interviews:
            groups[one.tempting, one.topic_id, one.topic].append(one)
    return [
        Topic(
            topic or number,
            tempting,
            tuple(VoiceLine(series[one.model, one.method], one) for one in some),
        )
        for (tempting, number, topic), some in sorted(groups.items(), key=lambda pair: pair[0])
    ]


def _agreement(data: InterviewsReport, language: Language) -> list[AgreementLine]:
    found = []
    for one in map(JudgeAgreement.from_dict, data.interviews["agreement"]):
        agreed = one.agreement
        found.append(
            AgreementLine(
                metric_name(one.metric, language),
                agreed.alpha if agreed else None,
                agreed.low if agreed else None,
                agreed.high if agreed else None,
                agreed.units if agreed else 0,
                one.reason,
            )
        )
    return found


def _by_judge(data: InterviewsReport) -> list[tuple[str, VoiceLine]]:
    """Each judge's own scores, voices together; none where there is one judge."""
    if len(data.interviews["by_judge"]) < 2:
        return []
    found = [
        (judge, line)
        for judge, scores in data.interviews["by_judge"].items()
        for line in voice_lines(data, scores)
    ]
    order = {voice: i for i, voice in enumerate(data.voices)}
    return sorted(found, key=lambda pair: (order[_voice(pair[1].scores)], pair[0]))


def _voice(scores: InterviewScores) -> Voice:
    return Voice(model=scores.model, method=scores.method, mode=scores.mode, lang=scores.lang)


# The page ----------------------------------------------------------------------------------------


def render_interviews(data: InterviewsReport, language: Language = "en") -> str:
    """The page, encodable as UTF-8.

    It loads nothing and runs nothing, as the other pages. Answers stand in it as far as there is
    room (`SHOWN`, `SHOWN_CHARS`); the page names the file of the rest.
    """
    words = Words(language, "interviews")
    css, css_hash = style()
    series = series_of(data)
    found = all_answered(data)
    lines = voice_lines(data, data.interviews["models"])
    of_seven = [line for line in lines if line.scores.n_interviews]
    worst, worst_transfer = worst_of(found), worst_of(found, transfer=True)
    sides, n_scripts = side_by_side(data, found, [*worst[:WORST], *worst_transfer[:WORST_TRANSFER]])
    anchors = {side.first.script_id: side for side in sides}
    differences, difference_axis = _differences(data, words)
    last = worst[:WORST][-1].value if worst else None
    counted = [e.n for line in of_seven for e in line.scores.metrics.values() if e.mean is not None]
    page = environment().get_template("interviews.html.j2")
    return clean(
        page.render(
            t=words,
            data=data,
            css=Markup(css),  # noqa: S704  (our own file)
            css_hash=css_hash,
            trust=data.trust,
            judges=judge_lines(data),
            languages=len({voice.lang for voice in data.voices}),
            n_voices=len({(voice.model, voice.method) for voice in data.voices}),
            n_characters=len({name for one in data.held for name in one.characters}),
            lines=lines,
            of_seven=by_mode(of_seven, words),
            of_transfer=by_mode([line for line in lines if line.scores.n_transfers], words),
            axis=SCALE,
            curve_groups=curve_groups(data, words),
            curve_grid=curves.grid(),
            curve_height=curves.HEIGHT,
            sides=sides,
            n_scripts=n_scripts,
            side_open=SHOWN_OPEN,
            worst=_cards(data, worst[:WORST], anchors, language),
            worst_shown=WORST_SHOWN,
            worst_transfer=_cards(data, worst_transfer[:WORST_TRANSFER], anchors, language),
            n_scored=len(worst),
            n_tied=sum(
                one.value is not None and last is not None and one.value <= last for one in worst
            ),
            differences=differences,
            difference_axis=difference_axis,
            topics=_topics(data),
            tempting=by_mode(
                [
                    VoiceLine(series[one.model, one.method], one)
                    for one in map(TemptingScores.from_dict, data.interviews["tempting"])
                ],
                words,
            ),
            agreement=_agreement(data, language),
            by_judge=_by_judge(data),
            costs=role_costs(data),
            unfinished=[
                (one.run, one.manifest.status) for one in data.runs if one.manifest.status != "done"
            ],
            few=min(counted, default=0),
            few_characters=FEW_CHARACTERS,
            seven=SEVEN,
            averages=AVERAGES,
            all_metrics=METRICS,
            dimensions=DIMENSIONS,
            scale=range(LOWEST, HIGHEST + 1),
            methods=dict.fromkeys(voice.method for voice in data.voices),
            modes=dict.fromkeys(voice.mode for voice in data.voices),
            name_of=lambda key: metric_name(key, language),
            means_of=lambda key: load_interview_metric(key, language).description,
            name=lambda text: one_line(str(text), NAME_CHARS),
            topic_chars=TOPIC_CHARS,
            most_places=PLACES,
            most_notes=NOTES,
            answer_chars=ANSWER_CHARS,
            fold_chars=FOLD_CHARS,
            one_line=one_line,
            quote=lambda path: shlex.quote(str(path)),
        )
    )


def write_interviews_html(data: InterviewsReport, path: Path, language: Language = "en") -> None:
    """Write the page; one that stood there before is replaced whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_atomically(path, render_interviews(data, language))
