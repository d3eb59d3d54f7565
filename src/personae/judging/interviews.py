"""Judging interviews (Neeko, section 4.4 and appendix B.3): one metric a call, reasons first.

All calls over one interview begin with the same words (rules, profile, background, interview), and
those over one character's interviews share rules and profile, so that a server computes them once.
A judge is asked for its first metric alone and then for the others together: where replies are
served from a cache of prefixes, the prefix is there when they come.

An interview in which an answer could not be had or used is not judged: a score of what is left of
it would be another measure. Nor is a reply that the scale does not hold: it is missing, after one
repair by the client, and never moved into the scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from personae.errors import InputError
from personae.judging.interview_metrics import (
    PROMPT,
    STABILITY,
    TRANSFER_PROMPT,
    load_interview_metric,
    metrics_for,
)
from personae.judging.trajectories import Seat
from personae.prompts import render
from personae.prompts.interview_schemas import interview_rating_schema
from personae.records import Call, Failure, Model, Reply, Sampling
from personae.records.interview import Exchange, Interview, InterviewProfile, InterviewRow

INTERVIEW_SAMPLING = Sampling(temperature=0.0, max_tokens=2048)
"""Temperature 0, as other judges. The released code cuts judges off at 500 tokens and penalises
every number that is said again, and reads what it then cannot parse as 0."""


@dataclass(frozen=True)
class InterviewCase:
    """What a judge is shown of one interview.

    Attributes:
        profiles: of its characters, by name; none where `failure` says that nothing is shown.
        failure: why it is not to be judged.
    """

    interview: Interview
    profiles: tuple[InterviewProfile, ...]
    failure: Failure | None = None

    @property
    def location(self) -> str:
        """Where the character is."""
        return self.interview.location.strip()

    @property
    def status(self) -> str:
        """How it is there."""
        return self.interview.status.strip()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The turns, in order."""
        return self.interview.exchanges

    @property
    def metrics(self) -> tuple[str, ...]:
        """The keys of the metrics that it is judged on."""
        return metrics_for(self.interview.kind)

    def number(self, character: str) -> int:
        """Which of the profiles, from 1, is a character's.

        Raises:
            KeyError: none is.
        """
        for number, profile in enumerate(self.profiles, 1):
            if profile.name == character:
                return number
        raise KeyError(f"there is no profile of {character!r}")


def case_of(interview: Interview, profiles: Mapping[str, InterviewProfile]) -> InterviewCase:
    """An interview as judges are shown it, or why they are not.

    Args:
        profiles: by name; an interview with somebody who has none is not judged.
    """
    if (failure := _unjudged(interview, profiles)) is not None:
        return InterviewCase(interview, (), failure)
    names = sorted(interview.characters)
    return InterviewCase(interview, tuple(profiles[name] for name in names))


def cases_of(
    interviews: Iterable[Interview], profiles: Iterable[InterviewProfile]
) -> list[InterviewCase]:
    """Every interview as judges are shown it, in order.

    Raises:
        InputError: two profiles or two interviews of one name.
    """
    by_name: dict[str, InterviewProfile] = {}
    for profile in profiles:
        if by_name.setdefault(profile.name, profile) != profile:
            raise InputError(
                f"two profiles of {profile.name!r} that differ",
                mend="Give one card for each character",
            )
    cases = [case_of(interview, by_name) for interview in interviews]
    seen: set[str] = set()
    for case in cases:
        if case.interview.id in seen:
            raise InputError(
                f"two interviews have the id {case.interview.id!r}",
                mend="An interview's id names its script, model and method once",
            )
        seen.add(case.interview.id)
    return cases


def _unjudged(interview: Interview, profiles: Mapping[str, InterviewProfile]) -> Failure | None:
    failure = interview.failure
    if failure is not None:
        return Failure(cause=f"answer: {failure.cause}", detail=failure.detail)
    if interview.kind == "transfer" and len(interview.characters) < 2:
        return Failure(
            cause="no_transfer", detail="the character never changes, so nothing is transferred"
        )
    if lacking := [name for name in interview.characters if name not in profiles]:
        detail = f"nothing is known of {', '.join(lacking)} that an answer could be held against"
        return Failure(cause="no_profile", detail=detail)
    return None


def interview_call(
    judge: str,
    case: InterviewCase,
    metric: str,
    *,
    sampling: Sampling = INTERVIEW_SAMPLING,
    repeat: int = 0,
    meta: Mapping[str, str | int] | None = None,
) -> Call:
    """The call that has one metric of an interview scored.

    Raises:
        ValueError: the interview is not to be judged (its `failure` is set), or not on this metric.
    """
    if case.failure is not None:
        raise ValueError(f"interview {case.interview.id!r}: {case.failure.cause}")
    if metric not in case.metrics:
        raise ValueError(f"a {case.interview.kind} interview is not judged on {metric}")
    of_turns = metric == STABILITY
    return Call(
        role="judge",
        model=judge,
        messages=render(
            TRANSFER_PROMPT if case.interview.kind == "transfer" else PROMPT,
            case.interview.language,
            case=case,
            metric=load_interview_metric(metric, case.interview.language),
            turn_scores=of_turns,
        ),
        sampling=sampling,
        reply_schema=interview_rating_schema(len(case.exchanges) if of_turns else None),
        repeat=repeat,
        meta={
            "interview": case.interview.id,
            "script": case.interview.script_id,
            "character": ", ".join(case.interview.characters),
            "metric": metric,
            **(meta or {}),
        },
    )


async def judge_rows(
    model: Model,
    seat: Seat,
    case: InterviewCase,
    *,
    metrics: Sequence[str] | None = None,
    sampling: Sampling = INTERVIEW_SAMPLING,
    meta: Mapping[str, str | int] | None = None,
) -> list[InterviewRow]:
    """The rows of one judge over one interview, one for each metric.

    Nothing is asked about an interview that is not to be judged; its rows say why.

    Args:
        seat: the judge's model id and the number of its repeat.
        metrics: default: all of the interview's kind.

    Raises:
        ValueError: a metric that the interview is not judged on.
    """
    judge, repeat = seat
    wanted = tuple(case.metrics if metrics is None else metrics)
    if unknown := [metric for metric in wanted if metric not in case.metrics]:
        raise ValueError(f"a {case.interview.kind} interview is not judged on {unknown[0]}")
    if case.failure is not None:
        return [_row(case, seat, metric, {"failure": case.failure}) for metric in wanted]

    async def judged(metric: str) -> InterviewRow:
        call = interview_call(judge, case, metric, sampling=sampling, repeat=repeat, meta=meta)
        return _row(case, seat, metric, _fields(await model.ask(call)))

    first = [await judged(metric) for metric in wanted[:1]]
    return [*first, *await asyncio.gather(*(judged(metric) for metric in wanted[1:]))]


def _fields(reply: Reply) -> dict[str, Any]:
    """What a row takes from a judge's reply: its scores and reasons, or the failure."""
    if not reply.ok:
        return {"failure": reply.failure}
    return {
        "score": int(reply.value["score"]),  # JSON's 3.0 is the integer 3
        "turn_scores": tuple(int(score) for score in reply.value.get("turn_scores", ())),
        "reasoning": reply.value["reasoning"],
    }


def _row(case: InterviewCase, seat: Seat, metric: str, found: dict[str, Any]) -> InterviewRow:
    interview = case.interview
    judge, repeat = seat
    return InterviewRow(
        interview_id=interview.id,
        script_id=interview.script_id,
        kind=interview.kind,
        mode=interview.mode,
        method=interview.method,
        model=interview.model,
        language=interview.language,
        characters=interview.characters,
        topic=interview.topic,
        topic_id=interview.topic_id,
        tempting=interview.tempting,
        turns=len(interview.exchanges),
        judge=judge,
        metric=metric,
        score=found.get("score"),
        failure=found.get("failure"),
        reasoning=found.get("reasoning"),
        turn_scores=found.get("turn_scores", ()),
        repeat=repeat,
    )
