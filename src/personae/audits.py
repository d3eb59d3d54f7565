"""`personae audit`: which audit the given answers ask for (single answers, plays, interviews)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from personae.audit_stage import Audited, audit_judges
from personae.errors import InputError
from personae.interview_audit_stage import audit_interviews, is_interview
from personae.trajectory_audit_stage import audit_trajectories, is_play

Kind: TypeAlias = Literal["answers", "plays", "interviews"]


def kind_of(paths: Sequence[Path]) -> Kind:
    """What all of the paths hold.

    Raises:
        InputError: not all hold the same.
    """
    found: dict[Kind, Path] = {}
    for path in paths:
        kind: Kind = "plays" if is_play(path) else "interviews" if is_interview(path) else "answers"
        found.setdefault(kind, path)
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise InputError(
            f"{first} holds {one} and {second} holds {other}, and a judge is audited for one of "
            "them",
            mend="Audit them one after the other",
        )
    return next(iter(found), "answers")


async def audit_any(
    answers: Sequence[Path], judges: Sequence[str], out: Path, **arguments: Any
) -> Audited[Any]:
    """`audit_trajectories` of plays, `audit_interviews` of interviews, else `audit_judges`.

    Raises:
        InputError: the paths do not all hold the same; else as the three.
    """
    kind = kind_of(answers)
    if kind == "plays":
        return await audit_trajectories(answers, judges, out, **arguments)
    if kind == "interviews":
        return await audit_interviews(answers, judges, out, **arguments)
    return await audit_judges(answers, judges, out, **arguments)
