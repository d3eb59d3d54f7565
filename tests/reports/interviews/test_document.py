"""What `personae report --json` prints of interviews."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import personae
from personae.cli import main
from personae.records import Failure
from personae.reports.interviews import interviews_report
from tests.conftest import ROOT

from .sample import (
    audit,
    both_methods,
    by_name,
    held,
    interview_run,
    question,
    report,
    switching,
    talk,
    two_questions_each,
)

SCHEMA = json.loads((ROOT / "docs" / "formats" / "report.schema.json").read_text("utf-8"))


def test_the_contract_of_models_is_kept(tmp_path: Path) -> None:
    document = interviews_report(
        report(interview_run(tmp_path / "run", both_methods(two_questions_each())))
    )
    one, other = document["interviews"]["models"]
    assert {"model", "method", "mode", "metrics", "average", "average_without_stab"} <= set(one)
    assert (one["model"], one["method"], one["mode"]) == ("test:player", "prompt", "single")
    assert other["method"] == "rag"
    assert list(one["metrics"]) == ["CB", "CU", "VK", "RK", "HK", "Rel", "Stab", "Trans"]
    assert {"mean", "low", "high", "n", "missing"} == set(one["metrics"]["CB"])


def test_the_keys_of_single_answers_stay(tmp_path: Path) -> None:
    document = interviews_report(report(interview_run(tmp_path / "run", [held(question(1))])))
    assert document["models"] == []
    assert document["judges"] == [
        {"model": "test:judge", "audit": "none", "reasons": [], "lang": "en"}
    ]
    assert document["agreement"] is None
    assert document["agreement_reason"] == "one judge cannot agree with itself"
    assert set(document["calls"]) == {"made", "reused", "failed"}
    assert set(document["cost"]) == {"usd", "tokens_in", "tokens_out"}
    assert document["runs"] == [str(tmp_path / "run")]


def test_the_agreement_is_that_of_the_judges_on_the_average(tmp_path: Path) -> None:
    run = interview_run(
        tmp_path / "run", both_methods(two_questions_each()), ("test:judge", "test:second")
    )
    document = interviews_report(report(run))
    assert document["agreement"]["alpha"] == pytest.approx(1)
    assert document["agreement"]["units"] == 8


def test_of_transfer_dialogues_alone_the_agreement_is_that_on_trans(tmp_path: Path) -> None:
    run = interview_run(
        tmp_path / "run", [held(switching(i)) for i in (1, 2)], ("test:judge", "test:second")
    )
    document = interviews_report(report(run))
    assert document["agreement_reason"] == "every rating is the same number"
    assert document["agreement"]["units"] == 2


def test_a_failed_audit_is_told_with_its_reasons(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    audit(tmp_path / "audit", verdict="failed")
    (judge,) = interviews_report(report(run))["judges"]
    assert (judge["audit"], judge["reasons"]) == ("failed", ["it cannot tell refusals apart"])


def test_what_is_missing_is_told_by_cause(tmp_path: Path) -> None:
    lost = {2: Failure(cause="empty", detail="no text")}
    run = interview_run(
        tmp_path / "run",
        [held(talk(1), failures=lost), held(talk(2))],
        score=lambda i, m: None if m == "HK" else by_name(i, m),
    )
    told = interviews_report(report(run))["interviews"]
    assert told["left_out"] == [
        {
            "model": "test:player", "method": "prompt", "mode": "replayed", "lang": "en",
            "cause": "empty", "interviews": 1, "of": 2,
            "places": ["Ada/talk/1@test:player#prompt"],
        }
    ]  # fmt: skip
    assert told["unscored"] == [
        {"judge": "test:judge", "metric": "HK", "cause": "malformed", "count": 1, "of": 1}
    ]


def test_the_document_meets_its_schema_whatever_was_judged(tmp_path: Path) -> None:
    lost = {1: Failure(cause="timeout")}
    scripts = [*two_questions_each(), talk(1), talk(1, "Bede"), switching()]
    full = interview_run(
        tmp_path / "full",
        [*both_methods(scripts), held(question(9), failures=lost)],
        ("test:judge", "test:second"),
        score=lambda i, m: None if m == "VK" else by_name(i, m),
    )
    other = interview_run(tmp_path / "other", [held(s, "test:other") for s in scripts])
    bare = interview_run(tmp_path / "bare", [held(question(1))], (), status="stopped")
    validator = Draft202012Validator(SCHEMA)
    for runs in ((full,), (full, other), (bare,)):
        document = interviews_report(report(*runs))
        validator.validate(json.loads(json.dumps(document, allow_nan=False)))


def test_the_command_prints_one_document_and_writes_page_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    assert main(["report", str(run), "--json", "--csv"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["page"] == str(run / "report.html")
    assert document["interviews"]["models"][0]["average_without_stab"]["mean"] == pytest.approx(5)
    assert (run / "report.html").read_text("utf-8").startswith("<!doctype html>")
    assert {p.name for p in run.glob("*.csv")} == {"scores.csv", "units.csv", "turns.csv"}


def test_the_language_and_the_place_of_the_page_can_be_chosen(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--lang", "zh", "--out", str(page)]) == 0
    assert '<html lang="zh-CN">' in page.read_text("utf-8")


def test_interviews_and_other_runs_are_not_reported_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    other = interview_run(tmp_path / "other", [held(question(1))], kind="eval")
    assert main(["report", str(run), str(other)]) == 2
    assert "Report them apart" in capsys.readouterr().err


def test_a_scene_is_asked_for_of_plays_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    assert main(["report", str(run), "--scene", "1"]) == 2
    assert "--scene" in capsys.readouterr().err


def test_interviews_are_reported_from_python_by_the_same_name(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    document = personae.report(str(run))
    assert document["interviews"]["models"][0]["average_without_stab"]["mean"] == pytest.approx(5)
    assert (run / "report.html").is_file()
