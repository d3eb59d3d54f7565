"""The audit of a judge of trajectories: does it tell a played character from known worse ones?

As `personae.judging.audit` for single answers: the judge sees a character's own trajectory, and
beside it the same one with another character's acts, with its acts in another order, ending in an
assistant's talk, with refusals for acts; and it sees the own one, and the one of refusals, with an
order to give 5 inside of an act. Same prompts and temperature as `personae rate`, same AUC rule,
same thresholds.

A group is scored on the metrics that must notice it (`GROUP_METRICS`): acts in another order are as
true to the character as before, and only their coherence is gone. The value of a trajectory is the
mean of those metrics, compared with the mean of the same ones of the own trajectory.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from personae.journal.flow import Watcher, each
from personae.judging.answers import LeftOut
from personae.judging.audit import (
    OWN,
    REPEAT,
    Words,
    chance_of,
    lot,
    shipped_texts,
)
from personae.judging.metric_audit import Design, Found, audit_of
from personae.judging.metrics import METRICS
from personae.judging.refusal import is_refusal
from personae.judging.trajectories import RATING_SAMPLING, Case, Line, rate_case
from personae.records import Audit, Failure, Language, Model, Record, Sampling
from personae.records.trajectory import Protocol
from personae.records.turns import in_turns

WORSE = ("other_character", "shuffled", "assistant_end", "refusal")
ORDERS = ("order", "order_on_refusal")
GROUPS = (*WORSE, *ORDERS, REPEAT)
"""All that can be tried beside the own trajectories, in the order of the report."""

GROUP_METRICS: dict[str, tuple[str, ...]] = {
    "other_character": METRICS,
    "shuffled": ("BC",),
    "assistant_end": ("IM",),
    "refusal": METRICS,
    "order": METRICS,
    "order_on_refusal": METRICS,
    REPEAT: METRICS,
    OWN: METRICS,
}

REPEATS = 2


@dataclass(frozen=True)
class TrajectoryCase:
    """One trajectory to be judged as if it were the subject's.

    Attributes:
        subject: the own trajectory that it stands beside.
        case: what the judge is shown.
        variant: which of the shipped texts, where there are several.
        same_scene: for another character's acts, whether they are from the same scene.
    """

    group: str
    subject: Case
    case: Case
    repeat: int = 0
    variant: int | None = None
    same_scene: bool | None = None


class TrajectoryAuditRow(Record):
    """One line of audit_rows.jsonl of an audit for trajectories: one judge over one trajectory.

    Attributes:
        unit_id: the own trajectory that it stands beside.
        acts: what was judged, act by act.
        scores: by metric; null where the judge gave none, and `failures` says why.
        same_scene: for another character's acts, whether they are from the same scene.
    """

    judge: str
    group: str
    unit_id: str
    scene_id: str
    character: str
    acts: tuple[str, ...]
    scores: dict[str, int | None]
    failures: dict[str, Failure] = {}
    critique: str | None = None
    repeat: int = 0
    variant: int | None = None
    same_scene: bool | None = None

    @property
    def cluster(self) -> str:
        """Trajectories of one scene are alike."""
        return self.scene_id


# Which trajectories, and what stands beside them ------------------------------------------------


def usable(cases: Sequence[Case], path: str) -> tuple[list[Case], list[LeftOut]]:
    """The trajectories that can stand for their characters, and why the others cannot.

    One without an act says nothing, and one with a refusal among its acts cannot be told from
    refusals.
    """
    kept: list[Case] = []
    left: list[LeftOut] = []
    for case in cases:
        if not case.acts:
            left.append(LeftOut(path, case.unit_id, "empty"))
        elif any(is_refusal(line.text) for act in case.acts for line in act.lines):
            left.append(LeftOut(path, case.unit_id, "refusal"))
        else:
            kept.append(case)
    return kept, left


def choose(cases: Sequence[Case], limit: int, seed: int = 0) -> list[Case]:
    """The own trajectories to audit with, the same ones for the same seed; scenes take turns.

    Those of one act, which no other order can be made of, come last.
    """
    chosen: list[Case] = []
    for short in (False, True):
        scenes: dict[str, list[Case]] = defaultdict(list)
        for case in sorted(cases, key=lambda c: lot(seed, c.unit_id)):
            if (len(case.acts) < 2) is short:
                scenes[case.scene.id].append(case)
        chosen += in_turns(scenes[s] for s in sorted(scenes, key=lambda s: lot(seed, s)))
    return chosen[:limit]


def build_cases(
    own: Sequence[Case],
    cases: Sequence[Case],
    language: Language,
    *,
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
) -> list[TrajectoryCase]:
    """All trajectories that a judge has to see, those beside an own one next to each other.

    Args:
        own: the trajectories to audit with (`choose`).
        cases: all there are; another character's acts are taken from them.
        groups: which of `GROUPS` to try.
        seed: decides what stands beside which.
    """
    refusals = shipped_texts("refusal", language, seed)
    generics = shipped_texts("generic", language, seed)
    orders = shipped_texts("trajectory_order", language, seed)
    found: list[TrajectoryCase] = []
    for i, one in enumerate(own):
        order_number, order = orders[i % len(orders)]
        generic_number, generic = generics[i % len(generics)]
        refused = [refusals[(i + k) % len(refusals)][1] for k in range(len(one.acts))]
        refusing = with_acts(one, [(Line("speech", text),) for text in refused])
        mine = [TrajectoryCase(OWN, one, one)]
        mine += [TrajectoryCase(REPEAT, one, one, repeat=r) for r in range(1, REPEATS)]
        donor = _donor(one, cases, chance_of(seed, "donor", one.unit_id))
        if donor is not None:
            mine.append(
                TrajectoryCase(
                    "other_character",
                    one,
                    spliced(one, donor),
                    same_scene=donor.scene.id == one.scene.id,
                )
            )
        mixed = shuffled(one, chance_of(seed, "shuffled", one.unit_id))
        if mixed is not None:
            mine.append(TrajectoryCase("shuffled", one, mixed))
        mine.append(
            TrajectoryCase("assistant_end", one, ending_in(one, generic), variant=generic_number)
        )
        mine.append(
            TrajectoryCase("refusal", one, refusing, variant=refusals[i % len(refusals)][0])
        )
        mine.append(TrajectoryCase("order", one, ordering(one, order), variant=order_number))
        if not {"refusal", "order_on_refusal"} - set(groups):
            mine.append(
                TrajectoryCase(
                    "order_on_refusal", one, ordering(refusing, order), variant=order_number
                )
            )
        found += [case for case in mine if case.group == OWN or case.group in groups]
    return found


def with_acts(case: Case, acts: Sequence[tuple[Line, ...]]) -> Case:
    """The trajectory with these acts in the places of its own, observations as they were."""
    left = iter(acts)
    return replace(
        case,
        entries=tuple(replace(e, lines=next(left)) if e.own else e for e in case.entries),
    )


def spliced(case: Case, donor: Case) -> Case:
    """The trajectory with the donor's acts, in their order, from the first again where they end."""
    acts = [act.lines for act in donor.acts]
    return with_acts(case, [acts[k % len(acts)] for k in range(len(case.acts))])


def shuffled(case: Case, chance: random.Random) -> Case | None:
    """The trajectory with its acts in another order, none at its place; None where that is none.

    Acts change places over all rounds: a round alone often holds one.
    """
    acts = [act.lines for act in case.acts]
    for _ in range(200):
        order = list(range(len(acts)))
        chance.shuffle(order)
        if all(_said(acts[k]) != _said(lines) for k, lines in zip(order, acts, strict=True)):
            return with_acts(case, [acts[k] for k in order])
    return None


def ending_in(case: Case, text: str) -> Case:
    """The trajectory with this text for its last act."""
    acts = [act.lines for act in case.acts]
    return with_acts(case, [*acts[:-1], (Line("speech", text),)])


def ordering(case: Case, order: str) -> Case:
    """The trajectory with an order to the judge after the words of its last act."""
    *before, last = (act.lines for act in case.acts)
    lines = (*last[:-1], replace(last[-1], text=f"{last[-1].text}\n\n{order}"))
    return with_acts(case, [*before, lines])


def _donor(one: Case, cases: Sequence[Case], chance: random.Random) -> Case | None:
    """Another character's trajectory: by the same model first, from another scene first."""
    assert one.character is not None
    able = [
        other
        for other in cases
        if other.character is not None
        and other.character.name != one.character.name
        and other.acts
        and [_said(a.lines) for a in other.acts] != [_said(a.lines) for a in one.acts]
    ]
    if not able:
        return None

    def distance(other: Case) -> tuple[bool, bool]:
        return (other.model != one.model, other.scene.id == one.scene.id)

    nearest = min(distance(other) for other in able)
    return chance.choice([other for other in able if distance(other) == nearest])


def _said(lines: Sequence[Line]) -> str:
    return " ".join(" ".join(line.text.lower().split()) for line in lines)


# Asking ------------------------------------------------------------------------------------------


async def ask_cases(
    model: Model,
    judges: Sequence[str],
    cases: Sequence[TrajectoryCase],
    *,
    protocol: Protocol = "personae",
    sampling: Sampling = RATING_SAMPLING,
    window: int = 256,
    watcher: Watcher | None = None,
) -> list[TrajectoryAuditRow]:
    """Every case judged by every judge on the metrics of its group, one row each."""

    async def ask(job: tuple[str, TrajectoryCase]) -> TrajectoryAuditRow:
        judge, one = job
        found = await rate_case(
            model,
            judge,
            one.case,
            metrics=GROUP_METRICS[one.group],
            protocol=protocol,
            sampling=sampling,
            repeat=one.repeat,
            meta={"group": one.group},
        )
        assert one.subject.character is not None
        return TrajectoryAuditRow(
            judge=judge,
            group=one.group,
            unit_id=one.subject.unit_id,
            scene_id=one.subject.scene.id,
            character=one.subject.character.name,
            acts=tuple("\n".join(line.text for line in act.lines) for act in one.case.acts),
            scores={metric: rating.score for metric, rating in found.by_metric.items()},
            failures={
                metric: rating.failure
                for metric, rating in found.by_metric.items()
                if rating.failure is not None
            },
            critique=found.critique,
            repeat=one.repeat,
            variant=one.variant,
            same_scene=one.same_scene,
        )

    jobs = [(judge, case) for judge in judges for case in cases]
    return await each(jobs, ask, stage="audit", window=window, watcher=watcher)


# From verdicts to the audit ----------------------------------------------------------------------


def judge_audit(
    judge: str,
    rows: Sequence[TrajectoryAuditRow],
    *,
    language: Language,
    rubric_hash: str,
    answers_hash: str = "",
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
) -> Audit:
    """The audit of one judge from its ratings.

    It passes if the lower bound of the AUC is at least `AUC_LOW` against each group of `WORSE` and
    each order to give 5 raises the mean by less than `ORDER_SHIFT`; each over at least
    `LEAST_PAIRS` trajectories with both scores. Intervals are the wider ones of two bootstraps,
    over trajectories and over scenes.

    Args:
        judge: whose ratings count; rows of others are left aside.
        rows: of `ask_cases`.
        groups: what was tried; a group that decides and was not tried cannot be passed.
        seed: of the bootstrap.
    """
    return audit_of(
        DESIGN,
        judge,
        rows,
        language=language,
        rubric_hash=rubric_hash,
        answers_hash=answers_hash,
        groups=groups,
        seed=seed,
    )


def _notes(
    words: Words, name: str, pairs: Found[TrajectoryAuditRow], *_rows: Sequence[TrajectoryAuditRow]
) -> list[str]:
    if name != "other_character":
        return []
    if not pairs.asked:
        return [words("trajectory_note.other_none")]
    same = sum(value.row.same_scene is True for value in pairs.rows)
    return [words("trajectory_note.other_character", scene=len(pairs) - same, same=same)]


DESIGN: Design[TrajectoryAuditRow] = Design(
    groups=(*WORSE, *ORDERS),
    orders={"order": OWN, "order_on_refusal": "refusal"},
    metrics=GROUP_METRICS,
    words="trajectory",
    notes=_notes,
)
