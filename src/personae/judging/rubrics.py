"""The rubrics: how each of the five tasks is described and scored (PersonaGym, section 3).

A rubric is a task description and a criterion for each score from 1 to 5; the texts are our own,
in `prompts/LANGUAGE/rubrics/*.toml`. `docs/rubrics.md` says what they hold and where they part
from the paper's.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from personae.errors import InputError
from personae.prompts import prompt_hash
from personae.records.base import content_hash
from personae.records.benchmark import Language, Rubric, Task


def rubric_set(language: Language, custom: tuple[Rubric, ...] = ()) -> dict[Task, Rubric]:
    """A rubric for each task, in the order of the tasks; custom ones replace ours.

    Raises:
        InputError: two custom rubrics are for the same task.

    """
    mine: dict[Task, Rubric] = {}
    for rubric in custom:
        if rubric.task in mine:
            raise InputError(
                f"the custom rubrics hold two for {rubric.task}", mend="Leave one per task."
            )
        mine[rubric.task] = rubric
    return {task: mine.get(task) or _shipped(task, language) for task in Task}


def rubric_hash(language: Language, custom: tuple[Rubric, ...] = ()) -> str:
    """SHA-256 (64 hex digits) over all that a judge is told beside the case: rubrics and prompt.

    Audits of judges are found by it (with judge and language): a judge that passed under other
    words has not passed under these.

    Raises:
        InputError: as `rubric_set`.

    """
    rubrics = rubric_set(language, custom)
    return content_hash(
        {
            "judge_prompt": prompt_hash("judge", language),
            "rubrics": [rubric.to_dict() for rubric in rubrics.values()],
        }
    )


@cache
def _shipped(task: Task, language: Language) -> Rubric:
    file = files("personae.prompts").joinpath(language, "rubrics", f"{task.slug}.toml")
    content = tomllib.loads(file.read_text("utf-8"))
    criteria = content.pop("criteria")
    return Rubric.from_dict(
        {
            "task": task,
            "criteria": tuple(criteria.pop(str(score)) for score in range(1, 6)),
            **content,
        },
        path=str(file),
    )
