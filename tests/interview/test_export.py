"""Plain lists of questions say what the benchmark says, and no cell is a formula."""

import csv
import json
from pathlib import Path

import pytest

from personae.errors import OutputError
from personae.interview.export import (
    COLUMNS,
    describe,
    export_csv,
    export_jsonl,
)
from personae.records import Benchmark, Persona, Question, Rubric, Shortfall, Task
from personae.records.cells import plain_cell

FIVE = ("one", "two\nlines", "=3", "'=4", "五")
BENCHMARK = Benchmark(
    language="zh",
    made_by={"questions": "scripted:x.py"},
    shortfalls=(Shortfall(what="EA questions", wanted=3, got=2, cause="it repeated itself"),),
    rubrics=(Rubric(task=Task.TOXICITY_CONTROL, description="d", criteria=("a",) * 5),),
    personas=(
        Persona(id="a", description='A cook, who says "hm"'),
        Persona(id="b", description="@SUM(A1) 面包师"),
    ),
    questions=(
        Question(
            id="a/EA/01",
            persona_id="a",
            task=Task.EXPECTED_ACTION,
            environment="Kitchen",
            text="=HYPERLINK(\"http://x\"; 'go')",
            exemplars=FIVE,
        ),
        Question(
            id="a/EA/02", persona_id="a", task=Task.EXPECTED_ACTION, environment="Kitchen", text="Q"
        ),
        Question(id="b/TC/01", persona_id="b", task=Task.TOXICITY_CONTROL, text="为什么？"),
    ),
)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_jsonl_holds_every_question_exactly(tmp_path: Path) -> None:
    export_jsonl(BENCHMARK, tmp_path / "q.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text("utf-8").splitlines()]
    assert [tuple(row) for row in rows] == [COLUMNS] * 3
    assert rows[0] == {
        "persona": 'A cook, who says "hm"',
        "task": "Expected Action",
        "environment": "Kitchen",
        "question": "=HYPERLINK(\"http://x\"; 'go')",
        "exemplar_1": "one",
        "exemplar_2": "two\nlines",
        "exemplar_3": "=3",
        "exemplar_4": "'=4",
        "exemplar_5": "五",
        "question_id": "a/EA/01",
        "persona_id": "a",
    }
    assert rows[2]["question"] == "为什么？"


def test_what_is_unknown_is_null_in_jsonl_and_empty_in_csv(tmp_path: Path) -> None:
    export_jsonl(BENCHMARK, tmp_path / "q.jsonl")
    export_csv(BENCHMARK, tmp_path / "q.csv")
    row = json.loads((tmp_path / "q.jsonl").read_text("utf-8").splitlines()[2])
    assert row["environment"] is None
    assert {row[f"exemplar_{n}"] for n in range(1, 6)} == {None}
    cells = read_csv(tmp_path / "q.csv")[2]
    assert cells["environment"] == ""
    assert {cells[f"exemplar_{n}"] for n in range(1, 6)} == {""}


def test_csv_holds_the_same_texts_once_the_apostrophes_are_off(tmp_path: Path) -> None:
    export_jsonl(BENCHMARK, tmp_path / "q.jsonl")
    export_csv(BENCHMARK, tmp_path / "q.csv")
    plain = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text("utf-8").splitlines()]
    cells = read_csv(tmp_path / "q.csv")
    assert [{k: plain_cell(v) or None for k, v in row.items()} for row in cells] == plain


def test_no_csv_cell_starts_like_a_formula(tmp_path: Path) -> None:
    export_csv(BENCHMARK, tmp_path / "q.csv")
    cells = [cell for row in read_csv(tmp_path / "q.csv") for cell in row.values()]
    assert "'=3" in cells
    assert "''=4" in cells
    assert "'@SUM(A1) 面包师" in cells
    assert not [c for c in cells if c.lstrip()[:1] in tuple("=+-@")]


def test_excel_is_told_that_the_csv_is_utf8(tmp_path: Path) -> None:
    export_csv(BENCHMARK, tmp_path / "q.csv")
    assert (tmp_path / "q.csv").read_bytes().startswith(b"\xef\xbb\xbfpersona,task,")


def test_an_export_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "q.csv").mkdir()
    with pytest.raises(OutputError, match=r"q\.csv: cannot be written"):
        export_csv(BENCHMARK, tmp_path / "q.csv")


def test_a_benchmark_is_described_by_the_keys_of_the_contract() -> None:
    document = describe(BENCHMARK)
    assert document["personas"] == 2
    assert document["questions"] == 3
    assert document["tasks"] == {"Expected Action": 2, "Toxicity Control": 1}
    assert document["exemplars"] == 1
    assert document["hash"] == BENCHMARK.hash
    assert document["language"] == "zh"
    assert document["environments"] == 1
    assert document["rubrics"]["Toxicity Control"] == "custom"
    assert document["rubrics"]["Expected Action"] == "shipped"
    assert document["shortfalls"][0]["got"] == 2
    assert json.loads(json.dumps(document)) == document


def test_environments_that_the_source_does_not_state_are_unknown_not_zero() -> None:
    questions = tuple(q.model_copy(update={"environment": None}) for q in BENCHMARK.questions)
    assert describe(BENCHMARK.model_copy(update={"questions": questions}))["environments"] is None
    assert describe(Benchmark())["tasks"] == {}
