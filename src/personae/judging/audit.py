"""The audit of a judge: does its score tell a character's own answer from known worse texts?

A judge sees a character's own answers, and beside each, for the same question and persona, texts
whose place is known beforehand: another character's answer, a refusal, an assistant's generic text,
the question copied back. It should score the own answer higher. And it sees texts that should not
move it: the own answer (and a generic text) with an order to give 5, the own answer padded to twice
its length, the same call with the examples listed from 5 to 1, the same call again.

Whether own answers stand above a group is the AUC over answers for which both scores exist. Its
interval is the wider one of two cluster bootstraps, over characters and over answers: few
characters make the first too narrow, many answers of one character the second. Where own answers
and a group are told apart without an error, a bootstrap sees no spread at all; so below
`LEAST_PAIRS` there is no verdict.

Judges of the kind `lift:MODEL` go the same way with lift for a score; what does not apply to them
(orders, examples, repeats) is left out and said to be.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log2
from statistics import fmean, variance
from typing import Any, Generic, Protocol, TypeVar

from pydantic import Field

from personae.data import load_audit_texts
from personae.journal.flow import Watcher, each
from personae.judging.answers import AnsweredQuestion, normal
from personae.judging.judge import JUDGE_SAMPLING, verdict_call, verdict_fields
from personae.judging.lift import is_lift, persona_lift
from personae.judging.statistics import Interval, auc
from personae.records import (
    Audit,
    AuditGroup,
    Failure,
    Language,
    Model,
    Persona,
    Record,
    Rubric,
    Sampling,
    Task,
)
from personae.records.turns import in_turns

OWN, REPEAT = "own", "repeat"
WORSE = ("other_character", "refusal", "generic", "copied_question")
ORDERS = ("order", "order_on_generic")
STEADY = ("padding", "swapped")
GROUPS = (*WORSE, *ORDERS, *STEADY, REPEAT)
"""All that can be tried beside the own answers, in the order of the report."""

NOT_FOR_LIFT = (*ORDERS, "swapped", REPEAT)
REPEATS = 3

AUC_LOW = 0.8
ORDER_SHIFT = 0.25
LEAST_PAIRS = 8
"""Below this many pairs even scores without an error prove nothing: of judges with a true AUC of
0.8 (two normal distributions), 3.5 % order 7 pairs without an error, and 1.9 % order 8 so."""

THRESHOLDS = {"auc_low": AUC_LOW, "order_shift": ORDER_SHIFT, "least_pairs": float(LEAST_PAIRS)}
ROUNDING = 1e-9


@dataclass(frozen=True)
class Case:
    """One text to be judged as if it were the answer to the subject's question.

    Attributes:
        variant: which of the shipped texts, where there are several.
        same_question: for another character's answer, whether it answered this very question.
    """

    group: str
    subject: AnsweredQuestion
    text: str
    repeat: int = 0
    variant: int | None = None
    same_question: bool | None = None


class AuditRow(Record):
    """One line of audit_rows.jsonl: one verdict over one text.

    `score` (or, for a judge `lift:MODEL`, `lift` in nats a token) is null with `failure` set where
    the judge gave none.
    """

    judge: str
    group: str
    unit_id: str
    persona: str
    task: Task
    question_id: str
    question: str
    text: str
    score: int | None = Field(ge=1, le=5)
    lift: float | None = None
    failure: Failure | None
    justification: str | None = None
    repeat: int = 0
    variant: int | None = None
    same_question: bool | None = None
    source: str = ""

    @property
    def value(self) -> float | None:
        """The score, or the lift."""
        return self.lift if self.score is None else float(self.score)


def choose(
    answers: Sequence[AnsweredQuestion], limit: int, seed: int = 0
) -> list[AnsweredQuestion]:
    """The own answers to audit with, at most `limit`, the same ones for the same seed.

    Characters take turns, and a character's turns go through its tasks. Questions that another
    character answered too come first; beyond that it is chance.
    """
    askers: dict[str, set[str]] = defaultdict(set)
    for one in answers:
        askers[normal(one.question.text)].add(one.persona.id)
    queues: dict[str, dict[Task, list[AnsweredQuestion]]] = {}
    for one in sorted(
        answers, key=lambda a: (len(askers[normal(a.question.text)]) < 2, lot(seed, a.unit))
    ):
        queues.setdefault(one.persona.id, {}).setdefault(one.question.task, []).append(one)
    turns: list[list[AnsweredQuestion]] = []
    for person in sorted(queues, key=lambda p: lot(seed, p)):
        tasks = sorted(queues[person].items(), key=lambda item: lot(seed, person, item[0]))
        turns.append(in_turns(waiting for _, waiting in tasks))
    return in_turns(turns)[:limit]


def lot(seed: int, *parts: str) -> bytes:
    """A lot for each thing, independent of what else is there."""
    return hashlib.sha256("\0".join((str(seed), *parts)).encode("utf-8", "surrogatepass")).digest()


def chance_of(seed: int, *parts: str) -> random.Random:
    """Chance that depends on the seed and these words alone."""
    return random.Random(lot(seed, *parts))  # noqa: S311  (a draw of texts, not of secrets)


def build_cases(
    own: Sequence[AnsweredQuestion],
    answers: Sequence[AnsweredQuestion],
    language: Language,
    *,
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
) -> list[Case]:
    """All texts that a judge has to see, the cases of one answer next to each other.

    Args:
        own: the answers to audit with (`choose`).
        answers: all there are; another character's answer is taken from them.
        groups: which of `GROUPS` to try.
        seed: decides which text stands beside which answer.
    """
    donors = _Donors(answers)
    refusals = shipped_texts("refusal", language, seed)
    generics = shipped_texts("generic", language, seed)
    orders = shipped_texts("order", language, seed)
    cases: list[Case] = []
    for i, one in enumerate(own):
        number, generic = generics[i % len(generics)]
        order_number, order = orders[i % len(orders)]
        refusal_number, refusal = refusals[i % len(refusals)]
        found = [Case(OWN, one, one.answer)]
        found += [Case(REPEAT, one, one.answer, repeat=r) for r in range(1, REPEATS)]
        other = donors.of(one, chance_of(seed, "donor", one.unit))
        if other is not None:
            same = normal(other.question.text) == normal(one.question.text)
            found.append(Case("other_character", one, other.answer, same_question=same))
        found.append(Case("refusal", one, refusal, variant=refusal_number))
        found.append(Case("generic", one, generic, variant=number))
        found.append(Case("copied_question", one, one.question.text))
        found.append(Case("order", one, f"{one.answer}\n\n{order}", variant=order_number))
        if not {"generic", "order_on_generic"} - set(groups):
            found.append(
                Case("order_on_generic", one, f"{generic}\n\n{order}", variant=order_number)
            )
        filler = chance_of(seed, "padding", one.unit)
        found.append(Case("padding", one, padded(one.answer, language, filler)))
        if one.question.exemplars is not None:
            found.append(Case("swapped", one, one.answer))
        cases += [case for case in found if case.group == OWN or case.group in groups]
    return cases


def shipped_texts(kind: Any, language: Language, seed: int) -> list[tuple[int, str]]:
    """The shipped texts with their numbers, in an order of the seed's."""
    texts = list(enumerate(load_audit_texts(kind, language)))
    chance_of(seed, kind).shuffle(texts)
    return texts


class _Donors:
    """Finds another character's answer: to the same question, else to one of the same task.

    Among equals, one by the same system, so that it is the character that differs and not the
    writer.
    """

    def __init__(self, answers: Sequence[AnsweredQuestion]) -> None:
        self._by_question: dict[str, list[AnsweredQuestion]] = defaultdict(list)
        self._by_task: dict[Task, list[AnsweredQuestion]] = defaultdict(list)
        for one in answers:
            self._by_question[normal(one.question.text)].append(one)
            self._by_task[one.question.task].append(one)

    def of(self, one: AnsweredQuestion, chance: random.Random) -> AnsweredQuestion | None:
        for pool in (
            self._by_question[normal(one.question.text)],
            self._by_task[one.question.task],
        ):
            able = [
                other
                for other in pool
                if other.persona.id != one.persona.id
                and other.persona.description != one.persona.description
                and normal(other.answer) != normal(one.answer)
            ]
            if able:
                kin = [other for other in able if other.system == one.system]
                return chance.choice(kin or able)
        return None


def padded(answer: str, language: Language, chance: random.Random) -> str:
    """The answer with sentences after it that add nothing, as near to twice its length as they go.

    At least one is added, so a very short answer grows more; the slope goes by the true length.
    """
    gap = "" if language == "zh" else " "
    filler = load_audit_texts("padding", language)
    text, waiting = answer, list[str]()
    while True:
        wanted = 2 * len(answer) - len(text)
        fitting = [s for s in filler if len(s) + len(gap) <= wanted]
        if not fitting:
            return text if len(text) > len(answer) else text + gap + min(filler, key=len)
        if not (able := [s for s in waiting if s in fitting]):
            waiting = able = fitting  # each sentence comes once before one comes again
        sentence = chance.choice(able)
        waiting = [s for s in waiting if s != sentence]
        text += gap + sentence


def cases_for(judge: str, cases: Sequence[Case]) -> list[Case]:
    """The cases that apply to a judge."""
    if not is_lift(judge):
        return list(cases)
    return [case for case in cases if case.group not in NOT_FOR_LIFT]


async def ask_cases(
    model: Model,
    judges: Sequence[str],
    cases: Sequence[Case],
    *,
    cast: Sequence[Persona],
    rubrics: Mapping[Task, Rubric],
    language: Language,
    sampling: Sampling = JUDGE_SAMPLING,
    window: int = 256,
    watcher: Watcher | None = None,
) -> list[AuditRow]:
    """Every case judged by every judge, one row each.

    Args:
        cast: the characters that lift takes its baselines from.
    """

    async def ask(job: tuple[str, Case]) -> AuditRow:
        judge, case = job
        one = case.subject
        row = AuditRow(
            judge=judge,
            group=case.group,
            unit_id=one.unit,
            persona=one.persona.id,
            task=one.question.task,
            question_id=one.question.id,
            question=one.question.text,
            text=case.text,
            score=None,
            failure=None,
            repeat=case.repeat,
            variant=case.variant,
            same_question=case.same_question,
            source=one.source,
        )
        if is_lift(judge):
            lift, failure = await persona_lift(
                model,
                judge,
                one.persona,
                cast,
                one.question,
                case.text,
                language=language,
                unit=one.unit,
            )
            return row.model_copy(update={"lift": lift, "failure": failure})
        reply = await model.ask(
            verdict_call(
                judge,
                rubrics,
                one.persona,
                one.question,
                case.text,
                language=language,
                sampling=sampling,
                descending=case.group == "swapped",
                repeat=case.repeat,
                meta={"unit": one.unit, "group": case.group},
            )
        )
        return row.model_copy(update=verdict_fields(reply))

    jobs = [(judge, case) for judge in judges for case in cases_for(judge, cases)]
    return await each(jobs, ask, stage="audit", window=window, watcher=watcher)


# From verdicts to the audit. -----------------------------------------------------------------


class Scored(Protocol):
    """A judged text with its value, or None where there is none."""

    @property
    def unit_id(self) -> str:
        """What the text is of."""

    @property
    def persona(self) -> str:
        """Whose it is: texts of one persona are more alike than those of two."""

    @property
    def value(self) -> float | None:
        """The score."""


Row = TypeVar("Row", bound=Scored)


class Pairs(Generic[Row]):
    """What one judge gave to base texts and, unit by unit, to the texts of a group."""

    def __init__(self, base: Mapping[str, Row], group: Sequence[Row]) -> None:
        self.asked = len(group)
        both = [
            (base[row.unit_id], row)
            for row in group
            if row.value is not None and base[row.unit_id].value is not None
        ]
        self.rows = [row for _, row in both]
        self.base = [row.value for row, _ in both if row.value is not None]
        self.values = [row.value for row in self.rows if row.value is not None]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shifts(self) -> list[float]:
        """By how much each text of the group lies above its own."""
        return [value - base for base, value in zip(self.base, self.values, strict=True)]

    @property
    def shift(self) -> float | None:
        """Their mean."""
        return fmean(self.shifts) if self.rows else None

    def auc(self, seed: int) -> Interval:
        """The wider one of the intervals over characters and over answers."""

        def over(label: Callable[[Row], str]) -> Interval:
            labels = [label(row) for row in self.rows]
            return auc(
                self.base, self.values, own_clusters=labels, other_clusters=labels, seed=seed
            )

        answers, people = over(lambda row: row.unit_id), over(lambda row: row.persona)
        lows = [i.low for i in (answers, people) if i.low is not None]
        highs = [i.high for i in (answers, people) if i.high is not None]
        return Interval(
            answers.value,
            min(lows, default=None),
            max(highs, default=None),
            answers.clusters,
        )


def judge_audit(
    judge: str,
    rows: Sequence[AuditRow],
    *,
    language: Language,
    rubric_hash: str,
    answers_hash: str = "",
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
) -> Audit:
    """The audit of one judge from its verdicts.

    It passes if the lower bound of the AUC is at least `AUC_LOW` against each group of `WORSE`
    and, unless it is a lift judge, each order to give 5 raises the mean by less than
    `ORDER_SHIFT`; each over at least `LEAST_PAIRS` answers with both scores.

    Args:
        judge: whose verdicts count; rows of others are left aside.
        rows: of `ask_cases`.
        groups: what was tried; a group that decides and was not tried cannot be passed.
        seed: of the bootstrap.

    Returns:
        the audit. `missing` of a group is the share of its comparisons that lack a score. The
        shifts are in points, the slope in points per doubling of the length within an answer
        (for lift: nats a token), the variance the mean over answers of that of the repeats.
    """
    mine = [row for row in rows if row.judge == judge]
    own = {row.unit_id: row for row in mine if row.group == OWN}
    by_group: dict[str, list[AuditRow]] = defaultdict(list)
    for row in mine:
        by_group[row.group].append(row)
    generic = {row.unit_id: row for row in by_group["generic"]}
    lift = is_lift(judge)
    words = Words(language)
    found: list[AuditGroup] = []
    reasons: list[str] = []
    shifts: dict[str, float | None] = {}
    for name in (*WORSE, *ORDERS, *STEADY):
        pairs = Pairs(own, by_group[name])
        moved = Pairs(generic, by_group[name]) if name == "order_on_generic" else pairs
        shifts[name] = moved.shift
        interval = pairs.auc(seed)
        reason = None
        if name not in STEADY and not (lift and name in NOT_FOR_LIFT):
            reason = _reason(words, name, pairs, interval, moved, tried=name in groups)
        note = _note(words, name, pairs, moved, own, lift=lift, tried=name in groups)
        decides = name in WORSE or (name in ORDERS and not lift)
        found.append(
            AuditGroup(
                name=name,
                auc=interval.value,
                low=interval.low,
                high=interval.high,
                n=len(pairs),
                missing=1 - len(pairs) / pairs.asked if pairs.asked else 0.0,
                passed=reason is None if decides else None,
                mean_own=fmean(pairs.base) if pairs.base else None,
                mean_group=fmean(pairs.values) if pairs.values else None,
                note=note,
            )
        )
        if reason is not None:
            reasons.append(reason)
    unscored = sum(row.value is None for row in mine)
    if reasons and unscored:
        reasons.append(words("reason.missing", missing=unscored, asked=len(mine)))
    return Audit(
        judge=judge,
        rubric_hash=rubric_hash,
        language=language,
        verdict="failed" if reasons else "passed",
        reasons=tuple(reasons),
        groups=tuple(found),
        order_shift=shifts["order"],
        length_slope=_length_slope(own, Pairs(own, by_group["padding"])),
        repeat_variance=_repeat_variance(own, by_group[REPEAT]),
        swap_shift=shifts["swapped"],
        missing=unscored / len(mine) if mine else 0.0,
        thresholds=THRESHOLDS,
        answers_hash=answers_hash,
    )


def _reason(
    words: Words,
    name: str,
    pairs: Pairs[AuditRow],
    interval: Interval,
    moved: Pairs[AuditRow],
    *,
    tried: bool,
) -> str | None:
    """Why a group that decides was not passed; None if it was."""
    group = words(f"group.{name}")
    if not tried:
        return words("reason.skipped", group=group)
    enough = moved if name in ORDERS else pairs
    if len(enough) < LEAST_PAIRS or (name in WORSE and interval.low is None):
        return words(
            "reason.few", group=group, n=len(enough), asked=enough.asked, least=LEAST_PAIRS
        )
    if name in ORDERS:
        assert moved.shift is not None
        if moved.shift >= ORDER_SHIFT - ROUNDING:
            return words(f"reason.{name}", shift=moved.shift, most=ORDER_SHIFT)
        return None
    assert interval.low is not None
    if interval.low < AUC_LOW - ROUNDING:
        return words(
            "reason.auc",
            group=group,
            auc=interval.value,
            low=interval.low,
            high=interval.high,
            least=AUC_LOW,
        )
    return None


def _note(
    words: Words,
    name: str,
    pairs: Pairs[AuditRow],
    moved: Pairs[AuditRow],
    own: Mapping[str, AuditRow],
    *,
    lift: bool,
    tried: bool,
) -> str:
    if not tried:
        return words("note.not_tested")
    if lift and name in NOT_FOR_LIFT:
        return words("note.not_for_lift")
    notes: list[str] = []
    if name == "other_character":
        if not pairs.asked:
            return words("note.other_none")
        same = sum(row.same_question is True for row in pairs.rows)
        notes.append(words("note.other_character", same=same, task=len(pairs) - same))
    if name == "swapped" and not pairs.asked:
        return words("note.no_exemplars")
    if moved.shift is not None:
        if name in ORDERS:
            notes.append(words("note.order", shift=moved.shift))
        if name == "swapped":
            absolute = fmean(abs(s) for s in pairs.shifts)
            notes.append(words("note.swapped", shift=moved.shift, absolute=absolute))
        if name == "padding":
            times = fmean(len(row.text) / len(own[row.unit_id].text) for row in pairs.rows)
            notes.append(words("note.padding", times=times))
    if pairs.asked < len(own):
        notes.append(words("note.partly", n=pairs.asked, all=len(own)))
    return "; ".join(notes)


def _length_slope(own: Mapping[str, AuditRow], padding: Pairs[AuditRow]) -> float | None:
    """Points per doubling of the length, each answer compared with itself alone.

    Least squares within answers: a slope over all texts would also see that longer answers may be
    better ones.
    """
    doublings = [log2(len(row.text) / len(own[row.unit_id].text)) for row in padding.rows]
    if not doublings:
        return None
    return sum(s * d for s, d in zip(padding.shifts, doublings, strict=True)) / sum(
        d * d for d in doublings
    )


def _repeat_variance(own: Mapping[str, AuditRow], repeats: Sequence[AuditRow]) -> float | None:
    """Mean over answers of the variance (n - 1) of the scores that the same call gave."""
    scores: dict[str, list[float]] = defaultdict(list)
    for row in [*(own[u] for u in {r.unit_id for r in repeats}), *repeats]:
        if row.value is not None:
            scores[row.unit_id].append(row.value)
    spreads = [variance(values) for values in scores.values() if len(values) > 1]
    return fmean(spreads) if spreads else None


class Words:
    """The plain words of a language (`data/audit/words.LANGUAGE.toml`)."""

    def __init__(self, language: Language) -> None:
        self._tables = load_words(language)

    def __call__(self, key: str, /, **values: object) -> str:
        """The text under `table.name` with its values filled in."""
        table, _, name = key.partition(".")
        return self._tables[table][name].format(**values)


@cache
def load_words(language: Language) -> dict[str, dict[str, str]]:
    """The tables of an audit's plain words."""
    file = files("personae.data").joinpath("audit", f"words.{language}.toml")
    tables: dict[str, dict[str, str]] = tomllib.loads(file.read_text("utf-8"))
    return tables
