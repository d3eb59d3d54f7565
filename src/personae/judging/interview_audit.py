"""The audit of a judge of interviews: does it tell a character's own answers from known worse ones?

As `personae.judging.audit` for single answers: the judge sees a character's own interview, and
beside it the same one with another character's answers, with its answers to other questions, with
an assistant's talk, with refusals, with plain falsehoods about the world, with things that nobody
can have lived through; and it sees the own one, and the one of refusals, with an order to give 7
after its last words. Same prompts and temperature as `personae interview`, same AUC rule, same
thresholds.

A group is scored on the metrics that must notice it (`GROUP_METRICS`), for they are not to notice
all (decided by the rubrics: a bare refusal crosses no bounds of knowledge, so HK is not asked).
Dialogues in which the character changes have groups of their own, on Trans; an audit vouches for
the metrics that its groups were scored on, and for no others (`covered`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import get_args

from personae.journal.flow import Watcher, each
from personae.judging.answers import Cause, LeftOut, normal
from personae.judging.audit import (
    LEAST_PAIRS,
    OWN,
    REPEAT,
    Words,
    chance_of,
    lot,
    shipped_texts,
)
from personae.judging.interview_metrics import METRICS, SEVEN, TRANSFER, metrics_for
from personae.judging.interviews import INTERVIEW_SAMPLING, InterviewCase, judge_rows
from personae.judging.metric_audit import Design, Found, audit_of, pairs_of
from personae.judging.refusal import is_refusal
from personae.records import Audit, Failure, Language, Model, Record, Sampling
from personae.records.benchmark import NotBlank
from personae.records.interview import Interview, InterviewKind
from personae.records.turns import in_turns

INTERVIEW_WORSE = (
    "other_character",
    "shuffled",
    "generic",
    "assistant_end",
    "refusal",
    "false_fact",
    "mixed_up",
)
INTERVIEW_ORDERS = {"order": OWN, "order_on_refusal": "refusal"}
TRANSFER_WORSE = ("swapped", "transfer_refusal")
TRANSFER_ORDERS = {"transfer_order": OWN, "transfer_order_on_refusal": "transfer_refusal"}
ORDERS = {**INTERVIEW_ORDERS, **TRANSFER_ORDERS}
"""The groups that hold an order to the judge, and the group that each is compared with."""

OF_INTERVIEWS = (*INTERVIEW_WORSE, *INTERVIEW_ORDERS)
OF_TRANSFERS = (*TRANSFER_WORSE, *TRANSFER_ORDERS)
GROUPS = (*OF_INTERVIEWS, *OF_TRANSFERS, REPEAT)
"""All that can be tried beside the own interviews, in the order of the report."""

_REFUSING = ("CB", "CU", "VK", "RK", "Rel", "Stab")

GROUP_METRICS: dict[str, tuple[str, ...]] = {
    "other_character": ("CB", "CU", "VK"),
    "shuffled": ("Rel",),
    "generic": ("CB", "CU"),
    "assistant_end": ("Stab",),
    "refusal": _REFUSING,
    "false_fact": ("RK",),
    "mixed_up": ("HK",),
    "order": SEVEN,
    "order_on_refusal": _REFUSING,
    **dict.fromkeys(OF_TRANSFERS, (TRANSFER,)),
}
"""By group, the metrics that must notice it. The own interviews and their repeats have all of
their kind."""

REPEATS = 2


@dataclass(frozen=True)
class InterviewAuditCase:
    """One interview to be judged as if it were the subject's.

    Attributes:
        subject: the own interview that it stands beside.
        case: what the judge is shown.
        variant: which of the shipped texts comes first, where there are several.
        same_question: for another character's answers, whether they answered these questions.
    """

    group: str
    subject: InterviewCase
    case: InterviewCase
    repeat: int = 0
    variant: int | None = None
    same_question: bool | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """What it is scored on."""
        return GROUP_METRICS.get(self.group, metrics_for(self.subject.interview.kind))


class InterviewAuditRow(Record):
    """One line of audit_rows.jsonl of an audit for interviews: one judge over one interview.

    Attributes:
        unit_id: the own interview that it stands beside.
        answers: what was judged, turn by turn.
        scores: by metric; null where the judge gave none, and `failures` says why.
        reasoning: by metric, the judge's steps.
        same_question: for another character's answers, whether they answered these questions.
    """

    judge: str
    group: str
    unit_id: str
    script_id: str
    kind: InterviewKind
    characters: tuple[NotBlank, ...]
    answers: tuple[str, ...]
    scores: dict[str, int | None]
    failures: dict[str, Failure] = {}
    reasoning: dict[str, str] = {}
    repeat: int = 0
    variant: int | None = None
    same_question: bool | None = None

    @property
    def cluster(self) -> str:
        """Interviews with one character are alike, and transfer dialogues of one script."""
        return self.script_id if self.kind == "transfer" else self.characters[0]


# Which interviews, and what stands beside them ---------------------------------------------------


def usable(cases: Sequence[InterviewCase], path: str) -> tuple[list[InterviewCase], list[LeftOut]]:
    """The interviews that can stand for their characters, and why the others cannot.

    One that lacks an answer is not judged, and one with a refusal among its answers cannot be told
    from refusals.
    """
    kept: list[InterviewCase] = []
    left: list[LeftOut] = []
    for case in cases:
        if case.failure is not None:
            left.append(LeftOut(path, case.interview.id, _cause(case.failure)))
        elif any(is_refusal(answer) for answer in answers_of(case)):
            left.append(LeftOut(path, case.interview.id, "refusal"))
        else:
            kept.append(case)
    return kept, left


def _cause(failure: Failure) -> Cause:
    if failure.cause == "no_transfer":
        return "one_role"
    of_answer = failure.cause.removeprefix("answer: ")
    return next((cause for cause in get_args(Cause) if cause == of_answer), "failed")


def parts_of(cases: Sequence[InterviewCase]) -> tuple[str, ...]:
    """The groups that an audit with these interviews tries: of interviews, of transfers, or both.

    Too few of one kind prove nothing on their own metrics, and must not keep a judge from being
    shown on the others; too few of both are tried all the same, and the audit says so.
    """
    counts = {False: 0, True: 0}
    for case in cases:
        counts[_is_transfer(case)] += 1
    least = LEAST_PAIRS if max(counts.values()) >= LEAST_PAIRS else 1
    parts = {False: OF_INTERVIEWS, True: OF_TRANSFERS}
    return tuple(chain(*(parts[kind] for kind, count in counts.items() if count >= least)))


def choose(cases: Sequence[InterviewCase], limit: int, seed: int = 0) -> list[InterviewCase]:
    """The own interviews to audit with, the same ones for the same seed.

    Transfer dialogues and interviews take turns; in these the characters, and in a character's its
    single questions and its longer interviews. Of a kind that `parts_of` does not try, there is
    none.
    """
    tried = parts_of(cases)
    queues: dict[bool, dict[str, dict[InterviewKind, list[InterviewCase]]]] = {False: {}, True: {}}
    for case in sorted(cases, key=lambda c: lot(seed, c.interview.id)):
        if (OF_TRANSFERS if _is_transfer(case) else OF_INTERVIEWS)[0] in tried:
            of_kind = queues[_is_transfer(case)].setdefault(_cluster(case), {})
            of_kind.setdefault(case.interview.kind, []).append(case)
    kinds = []
    for by_cluster in queues.values():
        clusters = sorted(by_cluster, key=lambda name: lot(seed, name))
        kinds.append(in_turns(_in_turns(by_cluster[name], seed, name) for name in clusters))
    return in_turns(kinds)[:limit]


def _in_turns(
    by_kind: Mapping[InterviewKind, list[InterviewCase]], seed: int, name: str
) -> list[InterviewCase]:
    """A character's interviews; with which kind it begins is chance, or all would with one."""
    return in_turns(by_kind[kind] for kind in sorted(by_kind, key=lambda k: lot(seed, name, k)))


def build_cases(
    own: Sequence[InterviewCase],
    cases: Sequence[InterviewCase],
    language: Language,
    *,
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
) -> list[InterviewAuditCase]:
    """All interviews that a judge has to see, those beside an own one next to each other.

    Args:
        own: the interviews to audit with (`choose`).
        cases: all there are; another character's answers, and those to another question, are taken
            from them.
        groups: which of `GROUPS` to try.
        seed: decides what stands beside which.
    """
    texts, donors = _Texts(language, seed), _Donors(cases, seed)
    found: list[InterviewAuditCase] = []
    for i, one in enumerate(own):
        mine = [InterviewAuditCase(OWN, one, one)]
        mine += [InterviewAuditCase(REPEAT, one, one, repeat=r) for r in range(1, REPEATS)]
        mine += _transfer_cases(one, i, texts) if _is_transfer(one) else []
        mine += [] if _is_transfer(one) else _interview_cases(one, i, donors, texts)
        # An order under refusals says nothing without the refusals that it is compared with.
        found += [
            case
            for case in mine
            if case.group == OWN
            or (case.group in groups and ORDERS.get(case.group, OWN) in (OWN, *groups))
        ]
    return found


class _Texts:
    """The shipped texts of a language in an order of the seed's."""

    def __init__(self, language: Language, seed: int) -> None:
        self.language = language
        self._texts = {
            "refusal": shipped_texts("refusal", language, seed),
            "generic": shipped_texts("generic", language, seed),
            "false_fact": shipped_texts("false_fact", language, seed),
            "mixed_up": shipped_texts("mixed_up", language, seed),
            "order": shipped_texts("interview_order", language, seed),
        }

    def some(self, kind: str, first: int, count: int) -> list[str]:
        """So many texts in a row, from the first again where they end."""
        texts = self._texts[kind]
        return [texts[(first + k) % len(texts)][1] for k in range(count)]

    def number(self, kind: str, first: int) -> int:
        """The number of a text in its file."""
        return self._texts[kind][first % len(self._texts[kind])][0]

    def after(self, answer: str, text: str) -> str:
        """The answer, going on with a text."""
        return f"{answer.rstrip()}{'' if self.language == 'zh' else ' '}{text}"


class _Donors:
    """Finds whose answers stand in the places of an interview's own.

    By the same model and method first, so that it is not the writer that differs; then to the same
    questions, then of an interview that has enough answers; among equals chance.
    """

    def __init__(self, cases: Sequence[InterviewCase], seed: int) -> None:
        self._seed = seed
        self._cases = sorted(
            (case for case in cases if not _is_transfer(case)), key=lambda c: c.interview.id
        )
        self._said = [frozenset(map(normal, answers_of(case))) for case in self._cases]
        self._asked = [_asked(case) for case in self._cases]

    def another_character(self, one: InterviewCase) -> InterviewCase | None:
        """Another character's interview."""
        mine = set(map(normal, answers_of(one)))
        return self._nearest(
            one,
            [
                n
                for n, case in enumerate(self._cases)
                if case.interview.characters != one.interview.characters
                and not mine & self._said[n]
            ],
            chance_of(self._seed, "donor", one.interview.id),
        )

    def shuffled(self, one: InterviewCase) -> list[str] | None:
        """The answers in another order; of a single question the character's answer to another."""
        chance = chance_of(self._seed, "shuffled", one.interview.id)
        answers = answers_of(one)
        if len(answers) > 1:
            return shuffled(answers, chance)
        asked, mine = set(_asked(one)), set(map(normal, answers))
        other = self._nearest(
            one,
            [
                n
                for n, case in enumerate(self._cases)
                if case.interview.characters == one.interview.characters
                and not asked & set(self._asked[n])
                and not mine & self._said[n]
            ],
            chance,
        )
        return None if other is None else answers_of(other)[:1]

    def _nearest(
        self, one: InterviewCase, able: Iterable[int], chance: random.Random
    ) -> InterviewCase | None:
        asked = _asked(one)
        near: dict[tuple[bool, bool, bool], list[InterviewCase]] = defaultdict(list)
        for n in able:
            other = self._cases[n]
            distance = (
                _system(other.interview) != _system(one.interview),
                self._asked[n] != asked,
                len(other.exchanges) < len(one.exchanges),
            )
            near[distance].append(other)
        return chance.choice(near[min(near)]) if near else None


def _interview_cases(
    one: InterviewCase, i: int, donors: _Donors, texts: _Texts
) -> list[InterviewAuditCase]:
    answers = answers_of(one)
    late = late_turns(len(answers))
    kept, end = answers[: len(answers) - late], answers[len(answers) - late :]
    found = []
    donor = donors.another_character(one)
    if donor is not None:
        theirs = answers_of(donor)
        found.append(
            InterviewAuditCase(
                "other_character",
                one,
                with_answers(one, [theirs[k % len(theirs)] for k in range(len(answers))]),
                same_question=_asked(donor) == _asked(one),
            )
        )
    mixed = donors.shuffled(one)
    if mixed is not None:
        found.append(InterviewAuditCase("shuffled", one, with_answers(one, mixed)))

    def beside(group: str, kind: str, changed: Callable[[Sequence[str]], Sequence[str]]) -> None:
        case = with_answers(one, changed(texts.some(kind, i, len(answers))))
        found.append(InterviewAuditCase(group, one, case, variant=texts.number(kind, i)))

    beside("generic", "generic", lambda some: some)
    beside("assistant_end", "generic", lambda some: [*kept, *some[:late]])
    beside("refusal", "refusal", lambda some: some)
    for group in ("false_fact", "mixed_up"):
        beside(
            group,
            group,
            lambda some: [*kept, *map(texts.after, end, some)],
        )
    beside("order", "order", lambda some: ordering(answers, some[0]))
    refusals = texts.some("refusal", i, len(answers))
    beside("order_on_refusal", "order", lambda some: ordering(refusals, some[0]))
    return found


def _transfer_cases(one: InterviewCase, i: int, texts: _Texts) -> list[InterviewAuditCase]:
    answers = answers_of(one)
    refusals = texts.some("refusal", i, len(answers))
    (order,) = texts.some("order", i, 1)
    number = texts.number("order", i)

    def beside(group: str, changed: Sequence[str], variant: int | None = None) -> None:
        found.append(InterviewAuditCase(group, one, with_answers(one, changed), variant=variant))

    found: list[InterviewAuditCase] = []
    beside("swapped", swapped(one))
    beside("transfer_refusal", refusals, texts.number("refusal", i))
    beside("transfer_order", ordering(answers, order), number)
    beside("transfer_order_on_refusal", ordering(refusals, order), number)
    return found


def answers_of(case: InterviewCase) -> list[str]:
    """The characters' words, turn by turn."""
    return [one.answer or "" for one in case.exchanges]


def with_answers(case: InterviewCase, answers: Sequence[str]) -> InterviewCase:
    """The interview with these answers, one a turn, and all else as it was."""
    exchanges = tuple(
        one.model_copy(update={"answer": answer})
        for one, answer in zip(case.exchanges, answers, strict=True)
    )
    interview = case.interview.model_copy(update={"exchanges": exchanges})
    return InterviewCase(interview, case.profiles)


def late_turns(turns: int) -> int:
    """How many turns make up the end of an interview: half of them, rounded down, at least one."""
    return max(1, turns // 2)


def ordering(answers: Sequence[str], order: str) -> list[str]:
    """The answers with an order to the judge after the words of the last one."""
    return [*answers[:-1], f"{answers[-1]}\n\n{order}"]


def shuffled(answers: Sequence[str], chance: random.Random) -> list[str] | None:
    """The answers in another order, none at its place; None where there is none such."""
    for _ in range(200):
        order = list(range(len(answers)))
        chance.shuffle(order)
        if all(normal(answers[k]) != normal(a) for k, a in zip(order, answers, strict=True)):
            return [answers[k] for k in order]
    return None


def swapped(case: InterviewCase) -> list[str]:
    """Each character's turns answered with the words of the one that comes after it.

    In order of first appearance, the last one's with those of the first; from the first again where
    they end.
    """
    said: dict[str, list[str]] = defaultdict(list)
    for one in case.exchanges:
        said[one.character].append(one.answer or "")
    names = list(said)
    after = dict(zip(names, [*names[1:], names[0]], strict=True))
    taken: dict[str, int] = defaultdict(int)
    answers = []
    for one in case.exchanges:
        theirs = said[after[one.character]]
        answers.append(theirs[taken[one.character] % len(theirs)])
        taken[one.character] += 1
    return answers


def _system(interview: Interview) -> tuple[str, str]:
    return interview.model, interview.method


def _asked(case: InterviewCase) -> list[str]:
    return [normal(one.asked or "") for one in case.exchanges]


def _is_transfer(case: InterviewCase) -> bool:
    return case.interview.kind == "transfer"


def _cluster(case: InterviewCase) -> str:
    interview = case.interview
    return interview.script_id if _is_transfer(case) else interview.characters[0]


# Asking ------------------------------------------------------------------------------------------


async def ask_cases(
    model: Model,
    judges: Sequence[str],
    cases: Sequence[InterviewAuditCase],
    *,
    sampling: Sampling = INTERVIEW_SAMPLING,
    window: int = 256,
    watcher: Watcher | None = None,
) -> list[InterviewAuditRow]:
    """Every case judged by every judge on the metrics of its group, one row each."""

    async def ask(job: tuple[str, InterviewAuditCase]) -> InterviewAuditRow:
        judge, one = job
        found = await judge_rows(
            model,
            (judge, one.repeat),
            one.case,
            metrics=one.metrics,
            sampling=sampling,
            meta={"group": one.group},
        )
        subject = one.subject.interview
        return InterviewAuditRow(
            judge=judge,
            group=one.group,
            unit_id=subject.id,
            script_id=subject.script_id,
            kind=subject.kind,
            characters=subject.characters,
            answers=tuple(answers_of(one.case)),
            scores={row.metric: row.score for row in found},
            failures={row.metric: row.failure for row in found if row.failure is not None},
            reasoning={row.metric: row.reasoning for row in found if row.reasoning is not None},
            repeat=one.repeat,
            variant=one.variant,
            same_question=one.same_question,
        )

    jobs = [(judge, case) for judge in judges for case in cases]
    return await each(jobs, ask, stage="audit", window=window, watcher=watcher)


# From verdicts to the audit ----------------------------------------------------------------------


def judge_audit(
    judge: str,
    rows: Sequence[InterviewAuditRow],
    *,
    language: Language,
    rubric_hash: str,
    answers_hash: str = "",
    groups: Sequence[str] = GROUPS,
    parts: Sequence[str] = OF_INTERVIEWS,
    seed: int = 0,
) -> Audit:
    """The audit of one judge from its scores; see `metric_audit.audit_of` for what it takes.

    Args:
        judge: whose scores count; rows of others are left aside.
        rows: of `ask_cases`.
        groups: what was tried; one of `parts` that was not tried cannot be passed.
        parts: the groups that decide (`parts_of`).
        seed: of the bootstrap.
    """
    design: Design[InterviewAuditRow] = Design(
        groups=tuple(parts),
        orders=ORDERS,
        metrics=GROUP_METRICS,
        words="interview",
        notes=_notes,
    )
    return audit_of(
        design,
        judge,
        rows,
        language=language,
        rubric_hash=rubric_hash,
        answers_hash=answers_hash,
        groups=groups,
        seed=seed,
    )


def covered(audit: Audit) -> tuple[str, ...]:
    """The metrics that an audit of a judge of interviews speaks of, in the paper's order.

    Audits under one rubric hash may have been made with interviews, with transfer dialogues, or
    with both; one that was made without the latter says nothing of Trans.
    """
    tried = {metric for group in audit.groups for metric in GROUP_METRICS.get(group.name, ())}
    return tuple(metric for metric in METRICS if metric in tried)


def _notes(
    words: Words,
    name: str,
    pairs: Found[InterviewAuditRow],
    own: Sequence[InterviewAuditRow],
    group: Sequence[InterviewAuditRow],
) -> list[str]:
    notes = []
    if name == "other_character":
        if not pairs.asked:
            return [words("interview_note.other_none")]
        same = sum(value.row.same_question is True for value in pairs.rows)
        notes.append(words("interview_note.other_character", same=same, other=len(pairs) - same))
    if name not in ORDERS and len(GROUP_METRICS[name]) > 1:
        # The mean of several metrics may hide one that notices nothing.
        by_metric = {m: pairs_of(own, group, (m,)).auc(0).value for m in GROUP_METRICS[name]}
        given = [
            f"{metric} {value:.2f}" for metric, value in by_metric.items() if value is not None
        ]
        if given:
            notes.append(words("interview_note.each", each=", ".join(given)))
    return notes
