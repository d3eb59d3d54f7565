"""The schemas in docs/formats say what the code writes and reads, no more and no less."""

import csv
import json
import re
import runpy
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from personae.cli import main
from personae.data import demo_file, load_environments
from personae.interview.benchmark_file import dump_benchmark, read_benchmark
from personae.interview.export import describe, export_jsonl
from personae.interview.personas import read_personas
from personae.models.prices import load_prices
from personae.records import Benchmark, Record
from personae.reports.data import ReportData
from personae.reports.document import report_document
from tests.conftest import ROOT
from tests.records import cast_strategies, strategies

FORMATS = ROOT / "docs" / "formats"
NAMES = sorted(path.name.removesuffix(".schema.json") for path in FORMATS.glob("*.schema.json"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = re.compile(
    r"<!-- schema: (?P<name>\w+)(?P<lines>, by line)? -->\n```json\n(?P<body>.*?)```", re.DOTALL
)

every = pytest.mark.parametrize("name", NAMES)


@cache
def schema(name: str) -> dict[str, Any]:
    value = json.loads((FORMATS / f"{name}.schema.json").read_text("utf-8"))
    assert isinstance(value, dict)
    return value


@cache
def validator(name: str) -> Any:
    return Draft202012Validator(schema(name))


def check(name: str, *values: Any) -> None:
    assert values
    for value in values:
        validator(name).validate(value)


def parsed(jsonl: str) -> list[Any]:
    # Not splitlines(): JSON leaves U+0085 and U+2028 inside of a string, where they end no line.
    return [json.loads(line) for line in jsonl.split("\n") if line]


def lines(path: Path) -> list[Any]:
    return parsed(path.read_text("utf-8"))


# The schemas themselves ------------------------------------------------------------------------


def test_the_schemas_are_what_the_tool_writes_now() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "make_formats.py"))
    made = tool["schemas"]()
    assert sorted(made) == NAMES, "run tools/make_formats.py"
    for name, value in made.items():
        assert schema(name) == value, f"{name}: run tools/make_formats.py"


@every
def test_every_schema_is_valid_and_says_what_it_is_about(name: str) -> None:
    value = schema(name)
    Draft202012Validator.check_schema(value)
    assert value["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert value["title"]
    assert value["description"]
    assert "$id" not in value


@every
def test_every_schema_stands_in_the_readme(name: str) -> None:
    assert f"({name}.schema.json)" in (FORMATS / "README.md").read_text("utf-8")


@every
def test_no_schema_takes_just_anything(name: str) -> None:
    anything: list[Any] = [None, 7, "text", {}, [], {"surprise": 1}]
    for value in anything:
        if not (name == "audits" and value == []):  # a folder whose audits are none
            with pytest.raises(ValidationError):
                check(name, value)


# Records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("results", strategies.result_row),
        ("manifest", strategies.manifest),
        ("audits", st.lists(strategies.audit, max_size=3)),
        ("cast", cast_strategies.manifests()),
        ("cast_rows", cast_strategies.row),
        ("cast_route", cast_strategies.routed),
        ("cast_answers", cast_strategies.answer),
    ],
)
@settings(max_examples=30)
@given(data=st.data())
def test_whatever_a_record_allows_its_schema_allows(
    name: str, records: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    made = data.draw(records)
    value = [r.to_dict() for r in made] if isinstance(made, list) else made.to_dict()
    check(name, json.loads(json.dumps(value)))


@settings(max_examples=30)
@given(strategies.benchmark)
def test_every_line_of_every_benchmark_meets_the_schema(made: Benchmark) -> None:
    check("benchmark", *parsed("".join(dump_benchmark(made))))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("results", {"score": 6}), ("results", {"score": 0}), ("results", {"score": "4"}),
        ("results", {"task": "Toxicity"}), ("results", {"surprise": 1}),
        ("results", {"failure": {}}), ("results", {"answer": 7}),
        ("cast", {"rank": 0}), ("cast", {"mode": "both"}), ("cast", {"surprise": 1}),
        ("cast_route", {"decision": "perhaps"}), ("cast_route", {"confidence": 2}),
        ("cast_outcome", {"padding": 2}), ("cast_history", {"tokens": -1}),
        ("cast_answers", {"question": " "}), ("cast_export", {"to": "onnx"}),
        ("manifest", {"status": "lost"}), ("manifest", {"format": 2}), ("manifest", {"seed": "x"}),
    ],
)  # fmt: skip
def test_what_a_record_refuses_its_schema_refuses(name: str, line: dict[str, Any]) -> None:
    good = next(e for n, e in examples() if n == name)
    check(name, good)
    with pytest.raises(ValidationError):
        check(name, {**good, **line})


def test_every_estimate_model_score_and_audit_of_a_report_meets_the_schema() -> None:
    @settings(max_examples=20)
    @given(
        st.lists(strategies.model_scores, max_size=2),
        st.none() | strategies.agreement,
        st.lists(strategies.paired, max_size=2),
        st.dictionaries(strategies.text, st.none() | strategies.audit, max_size=2),
        st.lists(strategies.shortfall, max_size=2),
    )
    def checked(models: Any, agreement: Any, paired: Any, audits: Any, shortfalls: Any) -> None:
        data = ReportData(
            models=tuple(models), agreement=agreement, paired=tuple(paired), audits=audits,
            shortfalls=tuple(shortfalls),
        )  # fmt: skip
        check("report", json.loads(json.dumps(report_document(data))))

    checked()


# Examples --------------------------------------------------------------------------------------


def examples() -> Iterable[tuple[str, Any]]:
    for page in PAGES:
        for found in EXAMPLE.finditer(page.read_text("utf-8")):
            body = found["body"]
            for part in body.splitlines() if found["lines"] else [body]:
                yield found["name"], json.loads(part)


def test_every_example_in_the_documents_meets_its_schema() -> None:
    for name, value in examples():
        check(name, value)


def test_the_documents_hold_an_example_of_every_file() -> None:
    # Too long to read in a page.
    documents = {"report", "agree", "audit", "rate", "play", "dry_run"} | {
        "audit_rows", "play_audit_rows", "interview_audit_rows", "cast_train", "cast_add", "cast_addition",
    }  # fmt: skip
    assert {name for name, _ in examples()} == set(NAMES) - documents


def test_no_example_is_marked_in_a_way_that_is_not_found() -> None:
    marks = sum(page.read_text("utf-8").count("<!-- schema:") for page in PAGES)
    assert marks == sum(len(EXAMPLE.findall(page.read_text("utf-8"))) for page in PAGES)


def test_the_examples_are_read_by_the_code(tmp_path: Path) -> None:
    found: dict[str, list[Any]] = {}
    for name, value in examples():
        found.setdefault(name, []).append(value)
    for name in ("benchmark", "personas"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, found[name])))
    benchmark = read_benchmark(tmp_path / "benchmark.jsonl")
    assert describe(benchmark) == found["bench_show"][0]
    export_jsonl(benchmark, tmp_path / "questions.jsonl")
    assert lines(tmp_path / "questions.jsonl") == found["questions"]
    assert len(read_personas(tmp_path / "personas.jsonl")) == 2
    (tmp_path / "prices.json").write_text(json.dumps(found["prices"][0]))
    price = load_prices(tmp_path / "prices.json")("openai/gpt-4o")
    assert price is not None
    assert price.of_tokens(1_000_000, 0) == 2.5


# Shipped files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_shipped_files_meet_their_schemas(language: Any) -> None:
    check("environments", list(load_environments(language)))
    check("prices", json.loads(files("personae.models").joinpath("prices.json").read_text("utf-8")))
    with demo_file("demo_benchmark.jsonl") as path:
        check("benchmark", *lines(path))


# Files of a run --------------------------------------------------------------------------------

SCRIPT = """
import hashlib

def reply(call):
    schema, meta = call["schema"], call["meta"]
    if call["kind"] == "score":
        return {"logprobs": [-1.0, -2.0]}
    if schema is None:
        return f"Well, as to {meta['question']}, I would take my time."
    wanted = schema["properties"]
    if "environments" in wanted:
        return {"environments": wanted["environments"]["items"]["enum"][:2]}
    if "questions" in wanted:
        place = wanted["questions"]["items"]["properties"]["environment"]["enum"][0]
        words = hashlib.sha256(repr(sorted(meta.items())).encode()).hexdigest()
        texts = [words[i::7] + " " + words[i::5] + "?" for i in range(wanted["questions"]["maxItems"])]
        return {"questions": [{"environment": place, "question": t} for t in texts]}
    if "5" in wanted:
        return {n: f"example of {n}" for n in wanted}
    if meta.get("task") == "Linguistic Habits":
        return "no verdict at all"
    return {"justification": "because", "score": 1 + len(call["messages"][-1]["content"]) % 5}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a benchmark, a run on it, and an audit, all made by the commands."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "people.txt").write_text("A cook from Lyon\nA diver from Osaka\n")
    script = f"scripted:{folder / 'script.py'}"
    bench, out = str(folder / "b.jsonl"), str(folder / "run")
    for command in (
        ["bench", "build", "--personas", str(folder / "people.txt"), "--examiner", script,
         "--exemplars", script, "--questions", "2", "--out", bench],
        ["eval", bench, "--model", script, "--judge", script, f"lift:{script}", "--out", out],
        ["audit", "--judge", script, "--answers", out, "--limit", "4",
         "--out", str(folder / "audit")],
    ):  # fmt: skip
        assert main(command) == 0, command
    return folder


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    """The document that a command prints."""
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_files_of_a_run_meet_their_schemas(run: Path) -> None:
    check("benchmark", *lines(run / "b.jsonl"))
    check("benchmark", *lines(run / "run" / "benchmark.jsonl"))
    rows = lines(run / "run" / "results.jsonl")
    check("results", *rows)
    assert {row["score"] is None for row in rows} == {True, False}
    assert {row["failure"] is None for row in rows} == {True, False}
    for manifest in run.rglob("manifest.json"):
        check("manifest", json.loads(manifest.read_text("utf-8")))
    assert len(list(run.rglob("manifest.json"))) == 3


def test_the_files_of_an_audit_meet_their_schemas(run: Path) -> None:
    check("audits", json.loads((run / "audit" / "audits.json").read_text("utf-8")))
    check("audit_rows", *lines(run / "audit" / "audit_rows.jsonl"))


def test_the_document_of_bench_show_meets_its_schema(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = printed(capsys, "bench", "show", str(run / "b.jsonl"))
    check("bench_show", document)
    assert document["questions"] == document["exemplars"] == 20
    for key in ("personas", "questions", "tasks", "exemplars"):
        with pytest.raises(ValidationError):
            check("bench_show", {k: v for k, v in document.items() if k != key})


def test_the_document_of_a_report_meets_its_schema(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = printed(
        capsys, "report", str(run / "run"), "--audit", str(run / "audit"),
        "--out", str(run / "page.html"),
    )  # fmt: skip
    check("report", document)
    check("report", {**document, "more": "may stand beside"})
    for key in ("models", "judges", "agreement", "calls", "cost"):
        with pytest.raises(ValidationError):
            check("report", {k: v for k, v in document.items() if k != key})
    for key in ("mean", "low", "high", "n", "missing"):
        damaged = json.loads(json.dumps(document))
        del damaged["models"][0]["persona_score"][key]
        with pytest.raises(ValidationError):
            check("report", damaged)


def test_the_document_of_a_dry_run_meets_its_schema(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"scripted:{run / 'script.py'}"
    document = printed(
        capsys, "eval", str(run / "b.jsonl"), "--model", script, "--judge", script,
        "--dry-run", "--out", str(run / "dry"),
    )  # fmt: skip
    check("dry_run", document)


def test_ratings_and_the_document_of_agreement_meet_their_schemas(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [r for r in lines(run / "run" / "results.jsonl") if r["score"] is not None]
    path = run / "ratings.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["unit_id", "rater", "metric", "score"])
        writer.writerows([r["unit_id"], "kim", r["task"], 1 + i % 5] for i, r in enumerate(rows))
    with path.open(newline="") as file:
        check("ratings", *csv.DictReader(file))
    check("agree", printed(capsys, "agree", str(run / "run"), "--human", str(path)))


def test_exported_questions_meet_their_schema(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "bench", "show", str(run / "b.jsonl"), "--export", str(run / "q.jsonl"))
    check("questions", *lines(run / "q.jsonl"))
    assert len(lines(run / "q.jsonl")) == 20


def test_a_public_question_file_meets_its_schema(shared_data: Any) -> None:
    folder = shared_data("personagym", "questions", "benchmark-v1")
    check("personagym", *(json.loads(p.read_text("utf-8")) for p in sorted(folder.iterdir())[:20]))
    environments = json.loads(shared_data("personagym", "environments.json").read_text("utf-8"))
    check("environments", environments)


def test_every_record_class_has_a_docstring_for_its_schema() -> None:
    waiting = [Record]
    while waiting:
        kind = waiting.pop()
        assert kind.__doc__, kind
        waiting += [k for k in kind.__subclasses__() if k.__module__.startswith("personae.")]
