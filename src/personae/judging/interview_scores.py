"""From verdicts on interviews to scores (Neeko, section 5): metrics, averages, turns, differences.

What happens where a verdict is missing is said at every step (as `personae.judging.scores`,
decision 0010):

- A *unit* is one interview. A judge's score of a unit on a metric is the mean of its repeats that
  gave one. The unit's score is the mean over all judges that were asked about it on this metric,
  and exists only if each of them gave one; otherwise it is *missing*. Its average is the mean of
  its seven metrics, its average without stability that of the other six; each exists only if all of
  its metrics do. Trans is of other interviews, and in neither.
- A model's score is the mean over its characters, each the mean of its interviews that have one;
  the interval resamples characters. A transfer dialogue has several characters, and scripts stand
  in their place.
- Single questions, live, replayed and published multi-turn interviews are never pooled, nor are
  methods or languages.

The paper averages over interviews, and its code counts a verdict that it cannot read as 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

from pydantic import Field

from personae.errors import InputError
from personae.judging.interview_metrics import METRICS, SEVEN, STABILITY, TRANSFER
from personae.judging.scores import panel_mean
from personae.judging.statistics import cluster_bootstrap
from personae.judging.trajectory_scores import JudgeAgreement, agreement_on, averages_of
from personae.records import Estimate, InterviewRow, Language, Record
from personae.records.interview import InterviewMode, Method

AVERAGE = "average"
WITHOUT_STAB = "average_without_stab"

_PARTS = {AVERAGE: SEVEN, WITHOUT_STAB: tuple(m for m in SEVEN if m != STABILITY)}
_WHATS = (*METRICS, AVERAGE, WITHOUT_STAB)


class Voice(Record):
    """Whose interviews are scored together: who played, by which method, asked in which way."""

    model: str
    method: Method
    mode: InterviewMode
    lang: Language


class InterviewScores(Voice):
    """The scores of one voice.

    Attributes:
        metrics: all eight; a mean of None where nothing was scored. Each mean is over characters
            (Trans: over scripts), `n` those that enter, `missing` the share of its interviews
            without a score; 0 where no interview is judged on the metric.
        average: of the seven, over interviews that have all of them.
        average_without_stab: of the six beside Stab, over interviews that have all of those.
        n_interviews: interviews with one character.
        n_transfers: dialogues in which the character changes.
        answers_missing: share (0 to 1) of both that could not be judged, since a turn could not be
            had or used.
    """

    metrics: dict[str, Estimate]
    average: Estimate
    average_without_stab: Estimate
    n_interviews: int = Field(ge=0)
    n_transfers: int = Field(ge=0)
    answers_missing: float = Field(ge=0, le=1)


class InterviewCharacterScores(InterviewScores):
    """The scores of one character as one voice played it; means and intervals are over scripts."""

    character: str


class TopicScores(InterviewScores):
    """The scores of one voice on one topic.

    Attributes:
        topic_id: empty where the scripts number none.
        topic: its words; empty where interviews of one number differ in them.
        tempting: whether its questions mean to draw the character out of its role.
    """

    topic_id: str
    topic: str
    tempting: bool


class TemptingScores(InterviewScores):
    """The scores of one voice on the questions that tempt it out of its role, or on the others."""

    tempting: bool


class TurnEstimate(Estimate):
    """How well one turn (from 1) is in character.

    `n` counts characters, `missing` is the share of the interviews that have the turn.
    """

    turn: int = Field(ge=1)


class StabilityCurve(Voice):
    """How well each turn is in character, over interviews of more than one turn.

    Attributes:
        turns: in order. Each mean is built as that of a metric, from the interviews that have the
            turn; where interviews differ in length, later turns are of fewer.
        drift: last turn minus first turn of each interview; below 0 the character fades.
    """

    turns: tuple[TurnEstimate, ...]
    drift: Estimate


class InterviewDifference(Record):
    """Scores of one model and method minus those of another, on the same scripts.

    Attributes:
        what: a metric, `average` or `average_without_stab`.
        scripts: those of which both have a score.
        estimate: the mean over characters of the mean over their scripts; `missing` is the share of
            the scripts that both held, judged by the same judges, where either has no score.
    """

    model: str
    method: Method
    other_model: str
    other_method: Method
    mode: InterviewMode
    lang: Language
    what: str
    scripts: int = Field(ge=0)
    estimate: Estimate


class Unit(NamedTuple):
    """One interview and where it belongs."""

    interview: str
    model: str
    method: Method
    mode: InterviewMode
    lang: Language
    script: str
    transfer: bool
    characters: tuple[str, ...]
    topic_id: str
    topic: str
    tempting: bool
    turns: int

    @property
    def voice(self) -> dict[str, Any]:
        """The fields of `Voice`."""
        return {"model": self.model, "method": self.method, "mode": self.mode, "lang": self.lang}

    @property
    def cluster(self) -> str:
        """What it has in common with units that are alike; intervals resample it."""
        return self.script if self.transfer else self.characters[0]


Values: TypeAlias = Mapping[Unit, float]


class Verdicts:
    """The rows by interview, metric and judge, checked once.

    Args:
        rows: of several runs too, when their interview ids are told apart.

    Attributes:
        judges: all of them, sorted.
        units: the interviews, sorted.
        unanswered: those that could not be judged, since a turn could not be had or used.

    Raises:
        InputError: two rows hold the same verdict, or one interview id names two interviews.
    """

    def __init__(self, rows: Iterable[InterviewRow]) -> None:
        # Sorted, so that neither the order of the rows nor a resumed run moves the last digit.
        ordered = sorted(rows, key=lambda r: (r.interview_id, r.metric, r.judge, r.repeat))
        named: dict[str, Unit] = {}
        given: dict[tuple[Unit, str, str], list[int]] = defaultdict(list)
        turns: dict[tuple[Unit, str], list[tuple[int, ...]]] = defaultdict(list)
        asked: dict[tuple[Unit, str], dict[str, None]] = defaultdict(dict)
        unanswered: set[Unit] = set()
        seen: set[tuple[str, str, str, int]] = set()
        for row in ordered:
            verdict = (row.interview_id, row.metric, row.judge, row.repeat)
            if verdict in seen:
                raise InputError(
                    f"judge {row.judge!r} has two rows for interview {row.interview_id!r}, metric "
                    f"{row.metric}, repeat {row.repeat}",
                    mend="Score the rows of each run once",
                )
            seen.add(verdict)
            unit = _unit(row)
            if named.setdefault(row.interview_id, unit) != unit:
                raise InputError(f"interview id {row.interview_id!r} names two interviews")
            asked[unit, row.metric][row.judge] = None
            if row.score is not None:
                given[unit, row.metric, row.judge].append(row.score)
                if row.metric == STABILITY:
                    turns[unit, row.judge].append(row.turn_scores)
            elif row.failure is not None and row.failure.cause.startswith("answer: "):
                unanswered.add(unit)
        self.units = tuple(sorted(named.values()))
        self.judges = tuple(sorted({r.judge for r in ordered}))
        self.unanswered = frozenset(unanswered)
        self._asked = {key: tuple(judges) for key, judges in asked.items()}
        self._given = {key: _mean(scores) for key, scores in given.items()}
        self._turns = turns

    def asked(self, judge: str) -> frozenset[Unit]:
        """The interviews that a judge was asked about."""
        return frozenset(unit for (unit, _), judges in self._asked.items() if judge in judges)

    def asked_of(self, unit: Unit, what: str) -> tuple[tuple[str, ...], ...]:
        """Who was asked about an interview, on a metric or on each of an average's."""
        return tuple(self._asked.get((unit, metric), ()) for metric in _PARTS.get(what, (what,)))

    def of_judge(self, judge: str, what: str) -> dict[Unit, float]:
        """What one judge gave: on a metric, or an average of what it gave."""
        if what in _PARTS:
            return averages_of([self.of_judge(judge, metric) for metric in _PARTS[what]])
        return {
            unit: self._given[unit, what, judge]
            for unit in self.units
            if (unit, what, judge) in self._given
        }

    def of_panel(self, what: str) -> dict[Unit, float]:
        """The mean over the judges that were asked about a unit, where each of them scored it."""
        if what in _PARTS:
            return averages_of([self.of_panel(metric) for metric in _PARTS[what]])
        return self._panel(
            what, lambda unit, judge: self._given.get((unit, what, judge)), self.units
        )

    @cached_property
    def panel(self) -> dict[str, dict[Unit, float]]:
        """`of_panel` of every metric and of both averages."""
        return {what: self.of_panel(what) for what in _WHATS}

    def of_turn(self, turn: int) -> dict[Unit, float]:
        """The panel's score of one turn (from 1), of the interviews that have it."""

        def score(unit: Unit, judge: str) -> float | None:
            given = self._turns.get((unit, judge), ())
            # A row of another origin than a judge of ours may hold no scores of turns.
            known = [scores[turn - 1] for scores in given if len(scores) == unit.turns]
            return _mean(known) if known else None

        return self._panel(STABILITY, score, [u for u in self.units if u.turns >= turn])

    def _panel(
        self, metric: str, score: Callable[[Unit, str], float | None], units: Iterable[Unit]
    ) -> dict[Unit, float]:
        found = {}
        for unit in units:
            judges = self._asked.get((unit, metric), ())
            given = {j: v for j in judges if (v := score(unit, j)) is not None}
            if (mean := panel_mean(given, judges)) is not None:
                found[unit] = mean
        return found


def _unit(row: InterviewRow) -> Unit:
    return Unit(
        interview=row.interview_id,
        model=row.model,
        method=row.method,
        mode=row.mode,
        lang=row.language,
        script=row.script_id,
        transfer=row.kind == "transfer",
        characters=row.characters,
        topic_id=row.topic_id,
        topic=row.topic,
        tempting=row.tempting,
        turns=row.turns,
    )


# Scores -----------------------------------------------------------------------------------------


def score_interviews(
    verdicts: Verdicts, *, judge: str | None = None, seed: int = 0
) -> list[InterviewScores]:
    """The scores of every model by method, mode and language, sorted.

    Args:
        judge: this one's scores, of the interviews that it was asked about; None is the panel's.
        seed: of the bootstrap.
    """
    values: Mapping[str, Values] = verdicts.panel
    units = verdicts.units
    if judge is not None:
        values = {what: verdicts.of_judge(judge, what) for what in _WHATS}
        asked = verdicts.asked(judge)
        units = tuple(unit for unit in units if unit in asked)
    return [
        InterviewScores(**some[0].voice, **_scored(verdicts, some, values, seed))
        for some in _grouped(units, _voice_key)
    ]


def score_interview_characters(
    verdicts: Verdicts, *, seed: int = 0
) -> list[InterviewCharacterScores]:
    """The scores of every character by voice, sorted; transfer dialogues are of several."""
    alone = [unit for unit in verdicts.units if not unit.transfer]
    return [
        InterviewCharacterScores(
            character=some[0].characters[0],
            **some[0].voice,
            **_scored(verdicts, some, verdicts.panel, seed, cluster=lambda unit: unit.script),
        )
        for some in _grouped(alone, lambda u: (u.characters[0], *_voice_key(u)))
    ]


def score_topics(verdicts: Verdicts, *, seed: int = 0) -> list[TopicScores]:
    """The scores of every voice by topic, tempting ones apart, sorted.

    Topics go by their number, else by their words. One that a single script has is not of others
    (a live interviewer's topic may be its first question) and is left out.
    """
    groups = _grouped(
        [u for u in verdicts.units if u.topic_id or u.topic],
        lambda u: (*_voice_key(u), u.topic_id or u.topic, u.tempting),
    )
    found = []
    for some in groups:
        if len({unit.script for unit in some}) < 2:
            continue
        topics = {unit.topic for unit in some}
        found.append(
            TopicScores(
                topic_id=some[0].topic_id,
                topic=topics.pop() if len(topics) == 1 else "",
                tempting=some[0].tempting,
                **some[0].voice,
                **_scored(verdicts, some, verdicts.panel, seed),
            )
        )
    return found


def score_tempting(verdicts: Verdicts, *, seed: int = 0) -> list[TemptingScores]:
    """The scores on tempting questions and on the others, of the voices that were asked both."""
    asked: dict[tuple[str, ...], set[bool]] = defaultdict(set)
    for unit in verdicts.units:
        asked[_voice_key(unit)].add(unit.tempting)
    return [
        TemptingScores(
            tempting=some[0].tempting,
            **some[0].voice,
            **_scored(verdicts, some, verdicts.panel, seed),
        )
        for some in _grouped(verdicts.units, lambda u: (*_voice_key(u), u.tempting))
        if len(asked[_voice_key(some[0])]) == 2
    ]


def _voice_key(unit: Unit) -> tuple[str, ...]:
    return unit.model, unit.method, unit.mode, unit.lang


def _grouped(units: Iterable[Unit], key: Callable[[Unit], tuple[Any, ...]]) -> list[list[Unit]]:
    """The units by key, sorted by it; units keep their order."""
    groups: dict[tuple[Any, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        groups[key(unit)].append(unit)
    return [some for _, some in sorted(groups.items())]


def _scored(
    verdicts: Verdicts,
    units: Sequence[Unit],
    values: Mapping[str, Values],
    seed: int,
    cluster: Callable[[Unit], Hashable] = lambda unit: unit.cluster,
) -> dict[str, Any]:
    estimates = {
        what: _estimate(_judged_on(what, units), values[what], seed, cluster) for what in _WHATS
    }
    transfers = sum(unit.transfer for unit in units)
    return {
        "metrics": {metric: estimates[metric] for metric in METRICS},
        AVERAGE: estimates[AVERAGE],
        WITHOUT_STAB: estimates[WITHOUT_STAB],
        "n_interviews": len(units) - transfers,
        "n_transfers": transfers,
        "answers_missing": sum(unit in verdicts.unanswered for unit in units) / len(units),
    }


def _judged_on(what: str, units: Iterable[Unit]) -> list[Unit]:
    return [unit for unit in units if unit.transfer == (what == TRANSFER)]


def _estimate(
    units: Sequence[Unit],
    values: Values,
    seed: int,
    cluster: Callable[[Unit], Hashable] = lambda unit: unit.cluster,
) -> Estimate:
    known = [unit for unit in units if unit in values]
    interval = cluster_bootstrap(
        [values[unit] for unit in known], [cluster(unit) for unit in known], seed=seed
    )
    return Estimate(
        mean=interval.value,
        low=interval.low,
        high=interval.high,
        n=interval.clusters,
        missing=(len(units) - len(known)) / len(units) if units else 0,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# Turns ------------------------------------------------------------------------------------------


def stability_curves(verdicts: Verdicts, *, seed: int = 0) -> list[StabilityCurve]:
    """The curve of every voice that has interviews of more than one turn, sorted."""
    long = [unit for unit in verdicts.units if not unit.transfer and unit.turns > 1]
    of_turn = {
        turn: verdicts.of_turn(turn)
        for turn in range(1, max((u.turns for u in long), default=0) + 1)
    }
    found = []
    for units in _grouped(long, _voice_key):
        turns = []
        for turn in range(1, max(unit.turns for unit in units) + 1):
            have = [unit for unit in units if unit.turns >= turn]
            turns.append(TurnEstimate(turn=turn, **_estimate(have, of_turn[turn], seed).to_dict()))
        # A unit has all of its turns scored or none.
        drift = {u: of_turn[u.turns][u] - of_turn[1][u] for u in units if u in of_turn[1]}
        found.append(
            StabilityCurve(
                **units[0].voice, turns=tuple(turns), drift=_estimate(units, drift, seed)
            )
        )
    return found


# Between judges, between models and methods -----------------------------------------------------


def interview_agreement(
    verdicts: Verdicts, *, weights_of: Callable[[str], str] = str, seed: int = 0
) -> list[JudgeAgreement]:
    """Ordinal Krippendorff alpha between the models that judged: per metric, and on the averages.

    As `scores.judge_agreement`: repeats of one model, and judges of the same weights, are one
    rater. Intervals resample characters (Trans: scripts). A metric that no interview is judged on
    is left out.
    """
    raters: dict[str, list[str]] = defaultdict(list)
    for judge in verdicts.judges:
        raters[weights_of(judge)].append(judge)
    on = {what: _judged_on(what, verdicts.units) for what in _WHATS}
    return [
        agreement_on(
            what,
            {judge: verdicts.of_judge(judge, what) for judge in verdicts.judges},
            {unit: unit.cluster for unit in units},
            list(raters.values()),
            nothing="no interview has scores of two judges",
            seed=seed,
        )
        for what, units in on.items()
        if units
    ]


def interview_differences(verdicts: Verdicts, *, seed: int = 0) -> list[InterviewDifference]:
    """Every two methods of one model, and every two models under one method, on the same scripts.

    Within one mode and language, on scripts of which the same judges were asked. Averages first,
    then the metrics that both were judged on.
    """
    held: dict[tuple[InterviewMode, Language], dict[tuple[str, Method], dict[str, list[Unit]]]] = (
        defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )
    for unit in verdicts.units:
        held[unit.mode, unit.lang][unit.model, unit.method][unit.script].append(unit)
    found = []
    for (mode, lang), systems in sorted(held.items()):
        for one, other in combinations(sorted(systems), 2):
            if one[0] != other[0] and one[1] != other[1]:
                continue
            mine, theirs = systems[one], systems[other]
            both = sorted(mine.keys() & theirs.keys())
            for what in (AVERAGE, WITHOUT_STAB, *METRICS):
                scripts = [
                    s
                    for s in both
                    if mine[s][0].transfer == (what == TRANSFER)
                    # A mild panel less a severe one would be a difference of the panels.
                    and len({verdicts.asked_of(u, what) for u in (*mine[s], *theirs[s])}) == 1
                ]
                if not scripts:
                    continue
                gaps = {
                    mine[script][0]: a - b
                    for script in scripts
                    if (a := _script_mean(mine[script], verdicts.panel[what])) is not None
                    and (b := _script_mean(theirs[script], verdicts.panel[what])) is not None
                }
                found.append(
                    InterviewDifference(
                        model=one[0],
                        method=one[1],
                        other_model=other[0],
                        other_method=other[1],
                        mode=mode,
                        lang=lang,
                        what=what,
                        scripts=len(gaps),
                        estimate=_estimate([mine[s][0] for s in scripts], gaps, seed),
                    )
                )
    return found


def _script_mean(units: Sequence[Unit], values: Values) -> float | None:
    """Of what one voice gave to a script, which an imported file may hold several times."""
    known = [values[unit] for unit in units if unit in values]
    return _mean(known) if known else None


def interviews_document(
    rows: Iterable[InterviewRow], *, weights_of: Callable[[str], str] = str, seed: int = 0
) -> dict[str, Any]:
    """All scores of the rows as plain JSON values: what `report --json` gives as `interviews`.

    `models` is the contract of issue D4; more stands beside it.

    Raises:
        InputError: as `Verdicts`.
    """
    verdicts = Verdicts(rows)

    def documents(records: Iterable[Record]) -> list[dict[str, Any]]:
        return [record.to_dict() for record in records]

    return {
        "models": documents(score_interviews(verdicts, seed=seed)),
        "characters": documents(score_interview_characters(verdicts, seed=seed)),
        "topics": documents(score_topics(verdicts, seed=seed)),
        "tempting": documents(score_tempting(verdicts, seed=seed)),
        "curves": documents(stability_curves(verdicts, seed=seed)),
        "by_judge": {
            judge: documents(score_interviews(verdicts, judge=judge, seed=seed))
            for judge in verdicts.judges
        },
        "agreement": documents(interview_agreement(verdicts, weights_of=weights_of, seed=seed)),
        "paired": documents(interview_differences(verdicts, seed=seed)),
    }
