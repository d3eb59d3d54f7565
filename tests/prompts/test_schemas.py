"""Schemas of structured replies: what passes, what does not, and in which order."""

from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from personae.prompts.schemas import (
    environments_schema,
    exemplars_schema,
    personas_schema,
    questions_schema,
    verdict_schema,
)
from personae.records.call import ReplySchema

ALL = [
    verdict_schema(),
    environments_schema(["Zoo", "Bridge"], 2),
    questions_schema(2, ["Zoo", "Bridge"]),
    exemplars_schema(),
    personas_schema(2),
]


def accepts(schema: ReplySchema, value: object) -> bool:
    return bool(Draft202012Validator(schema.body).is_valid(value))


@pytest.mark.parametrize("schema", ALL, ids=lambda schema: schema.name)
def test_every_schema_is_valid_and_closes_its_objects(schema: ReplySchema) -> None:
    Draft202012Validator.check_schema(schema.body)

    def walk(node: dict[str, Any]) -> None:
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
            for child in node["properties"].values():
                walk(child)
        elif node.get("type") == "array":
            walk(node["items"])

    walk(schema.body)
    assert not accepts(schema, {})
    assert not accepts(schema, [])


def test_a_verdict_justifies_before_it_scores() -> None:
    assert list(verdict_schema().body["properties"]) == ["justification", "score"]


@pytest.mark.parametrize("score", [1, 2, 3, 4, 5])
def test_the_scores_are_the_whole_numbers_from_one_to_five(score: object) -> None:
    assert accepts(verdict_schema(), {"justification": "It fits.", "score": score})


@pytest.mark.parametrize("score", [0, 6, 10, -1, 4.5, "4", None, True])
def test_any_other_score_is_refused(score: object) -> None:
    assert not accepts(verdict_schema(), {"justification": "It fits.", "score": score})


def test_a_verdict_needs_a_justification_of_bounded_length() -> None:
    assert not accepts(verdict_schema(), {"score": 3})
    assert not accepts(verdict_schema(), {"justification": "", "score": 3})
    assert accepts(verdict_schema(), {"justification": "x" * 2000, "score": 3})
    assert not accepts(verdict_schema(), {"justification": "x" * 2001, "score": 3})


def test_an_environment_must_be_in_the_pool_and_chosen_once() -> None:
    schema = environments_schema(["Zoo", "Bridge", "Diner"], 2)
    assert accepts(schema, {"environments": ["Zoo"]})
    assert accepts(schema, {"environments": ["Diner", "Zoo"]})
    assert not accepts(schema, {"environments": []})
    assert not accepts(schema, {"environments": ["zoo"]})
    assert not accepts(schema, {"environments": ["Zoo", "Zoo"]})
    assert not accepts(schema, {"environments": ["Zoo", "Bridge", "Diner"]})


def test_questions_come_in_the_number_asked_for_each_with_its_environment() -> None:
    schema = questions_schema(2, ["Zoo", "Bridge"])
    one = {"environment": "Zoo", "question": "Why?"}
    assert accepts(schema, {"questions": [one, one]})
    assert not accepts(schema, {"questions": [one]})
    assert not accepts(schema, {"questions": [one, one, one]})
    assert not accepts(schema, {"questions": [one, {"environment": "Diner", "question": "Why?"}]})
    assert not accepts(schema, {"questions": [one, {"question": "Why?"}]})
    assert not accepts(schema, {"questions": [one, {"environment": "Zoo", "question": ""}]})


def test_exemplars_are_five_texts() -> None:
    five = {str(score): "text" for score in range(1, 6)}
    assert accepts(exemplars_schema(), five)
    assert not accepts(exemplars_schema(), {**five, "6": "text"})
    assert not accepts(exemplars_schema(), {k: v for k, v in five.items() if k != "3"})
    assert list(exemplars_schema().body["properties"]) == ["1", "2", "3", "4", "5"]


def test_personas_come_in_the_number_asked_for() -> None:
    assert accepts(personas_schema(1), {"personas": ["A keeper."]})
    assert not accepts(personas_schema(1), {"personas": []})


def test_a_schema_that_nothing_could_meet_is_refused() -> None:
    makers: list[Callable[[], ReplySchema]] = [
        lambda: environments_schema([], 1),
        lambda: environments_schema(["Zoo"], 0),
        lambda: questions_schema(0, ["Zoo"]),
        lambda: questions_schema(1, []),
        lambda: personas_schema(0),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=r"at least one|asked for"):
            make()
