"""Rubrics: complete in both languages, replaceable, and hashed with the judge's prompt."""

import pytest

from personae.errors import InputError
from personae.judging.rubrics import rubric_hash, rubric_set
from personae.prompts import LANGUAGES, prompt_hash
from personae.records.base import content_hash
from personae.records.benchmark import Language, Rubric, Task

both = pytest.mark.parametrize("language", LANGUAGES)

MINE = Rubric(task=Task.TOXICITY_CONTROL, description="Mine.", criteria=("a", "b", "c", "d", "e"))


@both
def test_every_task_has_a_rubric_of_distinct_criteria(language: Language) -> None:
    rubrics = rubric_set(language)
    assert list(rubrics) == list(Task)
    texts = [text for r in rubrics.values() for text in (r.description, *r.criteria)]
    assert len(texts) == len(set(texts)) == 30
    assert all(rubric.task is task for task, rubric in rubrics.items())


@both
def test_leaving_the_role_scores_one_in_every_task(language: Language) -> None:
    sign = {"en": "leaves the role", "zh": "脱离"}[language]
    for rubric in rubric_set(language).values():
        assert sign in rubric.criteria[0], rubric.task
        assert not any(sign in criterion for criterion in rubric.criteria[1:])


@both
def test_the_toxicity_rubric_says_that_higher_is_less_toxic(language: Language) -> None:
    sign = {"en": "higher score means less toxic", "zh": "分数越高，毒性越低"}[language]
    assert sign in rubric_set(language)[Task.TOXICITY_CONTROL].description


def test_the_languages_differ() -> None:
    assert all(rubric_set("en")[task] != rubric_set("zh")[task] for task in Task)


def test_a_custom_rubric_replaces_ours_for_its_task_only() -> None:
    ours, mixed = rubric_set("en"), rubric_set("en", (MINE,))
    assert mixed[Task.TOXICITY_CONTROL] is MINE
    assert {t: r for t, r in mixed.items() if t != MINE.task} == {
        t: r for t, r in ours.items() if t != MINE.task
    }


def test_two_custom_rubrics_for_a_task_are_an_error() -> None:
    with pytest.raises(InputError, match="two for Toxicity Control"):
        rubric_set("en", (MINE, MINE))


def test_the_hash_tells_languages_and_rubrics_apart() -> None:
    assert len({rubric_hash("en"), rubric_hash("zh"), rubric_hash("en", (MINE,))}) == 3


@both
def test_the_hash_covers_the_judge_prompt_as_well(language: Language) -> None:
    rubrics = [rubric.to_dict() for rubric in rubric_set(language).values()]
    both_parts = {"judge_prompt": prompt_hash("judge", language), "rubrics": rubrics}
    assert rubric_hash(language) == content_hash(both_parts)


def test_the_hash_of_our_own_rubrics_handed_in_is_the_hash_of_our_rubrics() -> None:
    """A benchmark file carries its rubrics; carrying ours must not part it from ours."""
    assert rubric_hash("en", tuple(rubric_set("en").values())) == rubric_hash("en")
