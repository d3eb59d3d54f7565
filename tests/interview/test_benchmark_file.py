"""The benchmark file: what was written comes back, and an edit does not go unnoticed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from personae.errors import InputError
from personae.interview.benchmark_file import dump_benchmark, read_benchmark, write_benchmark
from personae.records import Benchmark, Persona, Question, Task
from tests.records.strategies import benchmark

SMALL = Benchmark(
    made_by={"questions": "scripted:x"},
    personas=(Persona(id="a", description="A cook"),),
    questions=(
        Question(
            id="a/EA/01",
            persona_id="a",
            task=Task.EXPECTED_ACTION,
            text="What now?",
            exemplars=("1", "2", "3", "4", "5"),
        ),
    ),
)


def edited(tmp_path: Path, edit: Callable[[list[dict[str, Any]]], object]) -> Path:
    """The file of `SMALL` after an edit of its lines."""
    lines = [json.loads(line) for line in dump_benchmark(SMALL)]
    edit(lines)
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@settings(max_examples=40)
@given(benchmark)
def test_every_benchmark_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, made: Benchmark
) -> None:
    path = tmp_path_factory.getbasetemp() / "benchmark.jsonl"
    write_benchmark(made, path)
    assert read_benchmark(path) == made


def test_the_file_is_a_header_then_a_line_a_persona_then_a_line_a_question() -> None:
    lines = [json.loads(line) for line in dump_benchmark(SMALL)]
    assert [line["record"] for line in lines] == ["benchmark", "persona", "question"]
    assert lines[0]["format"] == 1
    assert lines[0]["content_hash"] == SMALL.hash


def test_chinese_stands_readable_in_the_file() -> None:
    made = SMALL.model_copy(update={"personas": (Persona(id="a", description="面包师"),)})
    assert "面包师" in "".join(dump_benchmark(made))


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[1].update(description="A chef"),
        lambda lines: lines[2].update(text="What then?"),
        lambda lines: lines[2].update(environment="Kitchen"),
        lambda lines: lines[2]["exemplars"].reverse(),
        lambda lines: lines[2].update(exemplars=None),
        lambda lines: lines[0].update(language="zh"),
        lambda lines: lines.pop(2),
    ],
)
def test_an_edit_that_changes_scores_is_noticed(
    tmp_path: Path, edit: Callable[[list[dict[str, Any]]], object]
) -> None:
    path = edited(tmp_path, edit)
    with pytest.raises(InputError, match=r"line 1: .* edited or damaged.* delete .content_hash"):
        read_benchmark(path)


def test_an_edit_that_is_meant_is_read_once_the_hash_is_gone(tmp_path: Path) -> None:
    def edit(lines: list[dict[str, Any]]) -> None:
        lines[2].update(text="What then?")
        del lines[0]["content_hash"]

    made = read_benchmark(edited(tmp_path, edit))
    assert made.questions[0].text == "What then?"
    assert made.hash != SMALL.hash


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda lines: lines.clear(), "the file is empty"),
        (lambda lines: lines.pop(0), "line 1: not a benchmark file"),
        (lambda lines: lines.reverse(), "line 1: not a benchmark file"),
        (lambda lines: lines[0].update(format=2), "line 1: this version reads benchmark format 1"),
        (lambda lines: lines[0].pop("format"), "line 1: this version reads benchmark format 1"),
        (lambda lines: lines[0].update(surprise=1), "surprise: Extra inputs are not permitted"),
        (lambda lines: lines[0].update(language="fr"), "not a valid benchmark: language"),
        (lambda lines: lines[1].update(record="person"), "line 2: unknown record 'person'"),
        (lambda lines: lines[1].pop("record"), "line 2: unknown record None"),
        (lambda lines: lines[1].update(id=""), "line 2: not a valid Persona: id"),
        (lambda lines: lines[2].update(task="Kindness"), "line 3: not a valid Question: task"),
        (lambda lines: lines[2]["exemplars"].pop(), "line 3: not a valid Question: exemplars"),
        (lambda lines: lines[2].pop("text"), "line 3: not a valid Question: text: Field required"),
        (lambda lines: lines[2].update(persona_id="b"), "'a/EA/01' belongs to no persona"),
        (lambda lines: lines.append(lines[2]), "question id 'a/EA/01' stands twice"),
        (lambda lines: lines.append(lines[0]), "line 4: unknown record 'benchmark'"),
    ],
)
def test_a_file_that_is_no_benchmark_says_where_and_why(
    tmp_path: Path, edit: Callable[[list[dict[str, Any]]], object], what: str
) -> None:
    path = edited(tmp_path, edit)
    with pytest.raises(InputError, match=what) as caught:
        read_benchmark(path)
    assert str(caught.value).startswith(str(path))


def test_binary_noise_and_an_absent_file_are_input_errors(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    for name in ("noise", "absent"):
        with pytest.raises(InputError, match=name):
            read_benchmark(tmp_path / name)


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text("".join(dump_benchmark(SMALL))[:-20])
    with pytest.raises(InputError, match="line 3: not JSON"):
        read_benchmark(path)
