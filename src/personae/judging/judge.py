"""A judge of single answers: rubric in, justification and score out (PersonaGym, section 3)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from personae.prompts import render
from personae.prompts.schemas import verdict_schema
from personae.records import (
    Call,
    Language,
    Persona,
    Question,
    Reply,
    Rubric,
    Sampling,
    Task,
    TokenLogprob,
)

JUDGE_SAMPLING = Sampling(temperature=0.0, max_tokens=2048, logprobs=10)
"""Temperature 0 (section 4, "Evaluator Models"); log-probabilities where they are offered."""

MOST_LOST_MASS = 0.5
_SCORE = re.compile(r'"score"\s*:\s*([1-5])')


def verdict_call(
    judge: str,
    rubrics: Mapping[Task, Rubric],
    persona: Persona,
    question: Question,
    answer: str,
    *,
    language: Language,
    sampling: Sampling = JUDGE_SAMPLING,
    exemplars: bool = True,
    descending: bool = False,
    repeat: int = 0,
    meta: Mapping[str, str | int] | None = None,
) -> Call:
    """The call that has one answer judged.

    Args:
        exemplars: show the question's exemplars, where it has them.
        descending: list the exemplars from 5 to 1 (an audit's stand-in for swapped order).
    """
    return Call(
        role="judge",
        model=judge,
        messages=render(
            "judge",
            language,
            rubric=rubrics[question.task],
            persona=persona.description,
            question=question.text,
            exemplars=question.exemplars if exemplars else None,
            descending=descending,
            response=answer,
        ),
        sampling=sampling,
        reply_schema=verdict_schema(),
        repeat=repeat,
        meta={
            "persona": persona.id,
            "task": question.task.value,
            "metric": question.task.value,
            "question": question.id,
            **(meta or {}),
        },
    )


def verdict_fields(reply: Reply) -> dict[str, Any]:
    """What a row takes from a judge's reply: score and justification, or the failure."""
    if not reply.ok:
        return {"failure": reply.failure}
    return {
        "score": int(reply.value["score"]),  # JSON's 3.0 is the integer 3
        "justification": reply.value.get("justification"),
    }


def expected_score(reply: Reply) -> float | None:
    """The score that the judge's probabilities expect, from 1 to 5; None where not offered.

    The token that is the digit behind the key `score` is found in the reply; a justification, which
    may hold digits too, may stand before or after it. The probabilities of the digits 1 to 5 at its
    place are scaled to sum to one. When they hold less than half of the mass, or the digit shares
    its token with other characters, there is no honest expectation.
    """
    if reply.logprobs is None or not reply.ok or not isinstance(reply.value, dict):
        return None
    given = int(reply.value["score"])
    token = _digit(reply.logprobs)
    if token is None or token.token.strip() != str(given):
        return None
    mass: dict[int, float] = {}
    for text, logprob in token.top:
        if text.strip() in ("1", "2", "3", "4", "5"):
            score = int(text.strip())
            mass[score] = mass.get(score, 0.0) + math.exp(logprob)
    total = sum(mass.values())
    if total < MOST_LOST_MASS or given not in mass:
        return None
    return min(5.0, max(1.0, sum(score * p for score, p in mass.items()) / total))


def _digit(tokens: Sequence[TokenLogprob]) -> TokenLogprob | None:
    """The token in which the value of the key `score` begins.

    Quotation marks inside of the justification are escaped, so only the key matches; the last
    match, as thinking may stand before the reply.
    """
    matches = list(_SCORE.finditer("".join(t.token for t in tokens)))
    if not matches:
        return None
    place = matches[-1].start(1)
    for token in tokens:
        if place < len(token.token):
            return token
        place -= len(token.token)
    return None
