"""Interviews and rows as small as a test needs them."""

from collections.abc import Sequence

from personae.records import Language
from personae.records.call import Failure
from personae.records.interview import (
    Exchange,
    Interview,
    InterviewKind,
    InterviewMode,
    InterviewProfile,
    InterviewRow,
    Method,
)

PROFILES = (
    InterviewProfile(name="Ada", text="A ferrywoman on the Orle. She hums when she lies."),
    InterviewProfile(name="Bede", text="A miller who counts everything twice."),
)


def an_interview(
    *answers: str | None,
    characters: Sequence[str] = ("Ada",),
    kind: InterviewKind | None = None,
    script: str = "s1",
    model: str = "m",
    method: Method = "prompt",
    language: Language = "en",
    location: str = "On the ferry",
    status: str = "Ada is at ease.",
) -> Interview:
    """An interview with these answers; None is one that could not be had."""
    kind = kind or ("single" if len(answers) == 1 else "multi")
    return Interview(
        id=f"{script}@{model}#{method}",
        script_id=script,
        kind=kind,
        mode="single" if kind == "single" else "replayed",
        method=method,
        model=model,
        language=language,
        topic="values and preferences",
        topic_id="topic-3",
        location=location,
        status=status,
        exchanges=tuple(
            Exchange(
                character=characters[i % len(characters)],
                asked=f"Question {i + 1}?",
                answer=answer,
                failure=Failure(cause="timeout", detail="no reply") if answer is None else None,
            )
            for i, answer in enumerate(answers)
        ),
    )


def a_row(
    metric: str,
    score: int | None,
    *,
    script: str = "s1",
    characters: Sequence[str] = ("Ada",),
    model: str = "m",
    method: Method = "prompt",
    kind: InterviewKind = "multi",
    mode: InterviewMode = "replayed",
    language: Language = "en",
    judge: str = "j",
    cause: str = "malformed",
    turn_scores: Sequence[int] = (),
    turns: int = 2,
    topic_id: str = "",
    topic: str = "",
    tempting: bool = False,
    repeat: int = 0,
) -> InterviewRow:
    """A judge's row; a score of None is missing by `cause`."""
    return InterviewRow(
        interview_id=f"{script}@{model}#{method}",
        script_id=script,
        kind=kind,
        mode=mode,
        method=method,
        model=model,
        language=language,
        characters=tuple(characters),
        topic=topic,
        topic_id=topic_id,
        tempting=tempting,
        turns=turns,
        judge=judge,
        metric=metric,
        score=score,
        failure=Failure(cause=cause) if score is None else None,
        turn_scores=tuple(turn_scores),
        repeat=repeat,
    )
