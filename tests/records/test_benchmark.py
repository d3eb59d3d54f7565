"""Characters, questions, rubrics and the benchmark: what they accept and what their hash covers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import InputError
from personae.records import Benchmark, Persona, Question, Rubric, Shortfall, Task
from tests.records.strategies import benchmark

FIVE = ("1", "2", "3", "4", "5")
SMALL = Benchmark(
    personas=(Persona(id="a", description="A cook"), Persona(id="b", description="A diver")),
    questions=(
        Question(id="a/EA/01", persona_id="a", task=Task.EXPECTED_ACTION, text="Q?"),
        Question(id="b/TC/01", persona_id="b", task=Task.TOXICITY_CONTROL, text="R?"),
    ),
)


def changed(**fields: Any) -> Benchmark:
    """`SMALL` with other fields, validated."""
    return Benchmark.from_dict({**SMALL.to_dict(), **fields})


@pytest.mark.parametrize("task", Task)
def test_a_task_is_known_by_its_name_its_letters_and_its_slug(task: Task) -> None:
    for name in (task.value, task.value.upper(), task.short, task.short.lower(), task.slug,
                 f"  {task.value} "):  # fmt: skip
        assert Task.parse(name) is task


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000"])
def test_a_character_a_question_and_a_rubric_say_something(blank: str) -> None:
    for record in (
        Persona(id="a", description="A cook"),
        Question(id="q", persona_id="a", task=Task.EXPECTED_ACTION, text="Q?"),
        Rubric(task=Task.EXPECTED_ACTION, description="d", criteria=FIVE),
    ):
        field = "text" if isinstance(record, Question) else "description"
        with pytest.raises(InputError, match=field):
            type(record).from_dict({**record.to_dict(), field: blank})


def test_the_letters_are_those_of_the_papers_table() -> None:
    assert sorted(task.short for task in Task) == ["AJ", "EA", "LH", "PC", "TC"]


def test_the_public_data_call_toxicity_control_toxicity() -> None:
    assert Task.parse("Toxicity") is Task.TOXICITY_CONTROL


@pytest.mark.parametrize("name", ["", "T", "Toxic", "Action", "Expected  Action", "任务"])
def test_a_name_of_no_task_is_refused_with_the_five_names(name: str) -> None:
    with pytest.raises(ValueError, match="the tasks are Expected Action, Toxicity Control"):
        Task.parse(name)


@pytest.mark.parametrize("field", ["id", "description"])
def test_a_character_without_id_or_description_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: String should have at least 1 character"):
        Persona.from_dict({"id": "a", "description": "A cook", field: ""})


@pytest.mark.parametrize("exemplars", [[], ["a"] * 4, ["a"] * 6, ["a", "b", "c", "d", 5], "abcde"])
def test_a_question_has_five_exemplars_or_none(exemplars: Any) -> None:
    question = SMALL.questions[0].to_dict()
    assert question["exemplars"] is None
    with pytest.raises(InputError, match="exemplars"):
        Question.from_dict({**question, "exemplars": exemplars})


def test_a_rubric_has_five_criteria() -> None:
    whole = {"task": "Expected Action", "description": "d", "criteria": list(FIVE)}
    assert Rubric.from_dict(whole).criteria == FIVE
    for criteria in (FIVE[:4], (*FIVE, "6"), None):
        with pytest.raises(InputError, match="criteria"):
            Rubric.from_dict({**whole, "criteria": criteria})


def test_a_shortfall_counts_from_zero() -> None:
    with pytest.raises(InputError, match="got: Input should be greater than or equal to 0"):
        Shortfall.from_dict({"what": "x", "wanted": 1, "got": -1})


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"personas": [SMALL.personas[0].to_dict()] * 2, "questions": []}, "persona id 'a'"),
        ({"questions": [SMALL.questions[0].to_dict()] * 2}, "question id 'a/EA/01' stands twice"),
        ({"personas": [SMALL.personas[0].to_dict()]}, "'b/TC/01' belongs to no persona"),
        ({"rubrics": [{"task": "Expected Action", "description": "d", "criteria": FIVE}] * 2},
         "a task has two rubrics"),
        ({"language": "fr"}, "language"),
    ],
)  # fmt: skip
def test_a_benchmark_that_contradicts_itself_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        changed(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"language": "zh"},
        {"rubrics": [{"task": "Expected Action", "description": "d", "criteria": FIVE}]},
        {"personas": [{**SMALL.personas[0].to_dict(), "description": "A cook."},
                      SMALL.personas[1].to_dict()]},
        {"questions": [{**SMALL.questions[0].to_dict(), "text": "Q"}]},
        {"questions": [{**SMALL.questions[0].to_dict(), "exemplars": FIVE}]},
        {"questions": [{**SMALL.questions[0].to_dict(), "environment": "Bar"}]},
        {"questions": []},
    ],
)  # fmt: skip
def test_whatever_decides_scores_changes_the_hash(fields: dict[str, Any]) -> None:
    assert changed(**fields).hash != SMALL.hash


@pytest.mark.parametrize(
    "fields",
    [
        {"made_by": {"questions": "x"}},
        {"made_from": ["x"]},
        {"environments": {"a": ["Bar"]}},
        {"shortfalls": [{"what": "x", "wanted": 1, "got": 0}]},
    ],
)
def test_where_it_comes_from_does_not_change_the_hash(fields: dict[str, Any]) -> None:
    assert changed(**fields).hash == SMALL.hash


@settings(max_examples=40)
@given(benchmark)
def test_a_hash_is_64_hex_digits_and_survives_the_json(made: Benchmark) -> None:
    assert len(made.hash) == 64
    assert int(made.hash, 16) >= 0
    assert Benchmark.model_validate_json(made.to_json()).hash == made.hash


@pytest.mark.parametrize("deep", [False, True])
def test_a_copy_counts_its_own_hash_and_having_counted_one_changes_nothing_else(deep: bool) -> None:
    fresh, counted = SMALL.model_copy(), SMALL.model_copy()
    assert counted.hash == SMALL.hash
    assert counted == fresh
    assert counted.to_json() == fresh.to_json()
    fewer = counted.model_copy(update={"questions": SMALL.questions[:1]}, deep=deep)
    assert fewer.hash == changed(questions=[SMALL.questions[0].to_dict()]).hash != SMALL.hash
    assert (
        counted.model_copy(update={"environments": {"a": ("Lab",)}}, deep=deep).hash == SMALL.hash
    )


@settings(max_examples=40)
@given(benchmark)
def test_a_benchmark_has_exemplars_when_every_question_has(made: Benchmark) -> None:
    lacking = [q for q in made.questions if q.exemplars is None]
    assert made.has_exemplars == (len(made.questions) > 0 and not lacking)


@given(st.lists(st.sampled_from("ab"), min_size=3, max_size=3))
def test_three_personas_of_two_ids_never_make_a_benchmark(ids: list[str]) -> None:
    people = [{"id": i, "description": "x"} for i in ids]
    with pytest.raises(InputError, match="stands twice"):
        Benchmark.from_dict({"personas": people})
