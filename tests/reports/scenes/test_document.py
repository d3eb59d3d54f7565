"""What `personae report --json` prints of plays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import personae
from personae.cli import main
from personae.reports.scenes import plays_document
from tests.judging.plays import a_play, a_scene

from .sample import (
    a_rated_run,
    an_eventful_play,
    audit,
    by_name,
    four_scenes,
    play_run,
    rate,
    report,
)

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "formats" / "report.schema.json").read_text("utf-8")
)


def test_the_keys_of_interviews_stay_and_scenes_come_beside_them(tmp_path: Path) -> None:
    document = plays_document(report(a_rated_run(tmp_path / "run")))
    assert document["models"] == []
    assert document["judges"][0]["model"] == "test:judge"
    assert document["judges"][0]["audit"] == "none"
    assert document["agreement"] is None
    assert document["agreement_reason"] == "one judge cannot agree with itself"
    assert set(document["calls"]) == {"made", "reused", "failed"}
    assert set(document["cost"]) == {"usd", "tokens_in", "tokens_out"}
    (model,) = document["scenes"]["models"]
    assert (model["model"], model["lang"], model["n"], model["missing"]) == (
        "test:player", "en", 4, 0,
    )  # fmt: skip
    assert set(model["metrics"]) == {"KA", "BA", "EE", "PT", "IM", "AD", "BC"}
    assert model["average"]["mean"] == pytest.approx(2.5)
    assert {"mean", "low", "high"} <= set(model["metrics"]["KA"])


def test_the_agreement_is_that_of_the_judges_on_the_average(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    rate(run, four_scenes(), "test:second")
    document = plays_document(report(run))
    assert document["agreement"]["alpha"] == pytest.approx(1)
    assert document["agreement"]["units"] == 8


def test_the_audit_of_a_judge_is_told_with_its_reasons(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    audit(tmp_path / "audit", verdict="failed")
    (judge,) = plays_document(report(run))["judges"]
    assert (judge["audit"], judge["reasons"]) == ("failed", ["it cannot tell refusals apart"])


def test_the_document_meets_its_schema_whatever_was_rated(tmp_path: Path) -> None:
    plays = [an_eventful_play(), *four_scenes()[1:]]
    plays.append(a_play(a_scene("Well/extracted/0", names=("Cleo",))))
    full = a_rated_run(tmp_path / "full", plays)
    rate(full, plays, "test:second", lambda c, m: by_name(c, m) if m != "IM" else None)
    rate(full, plays, kind="narrator", score=lambda _c, _m: 3)
    other = a_rated_run(tmp_path / "other", four_scenes(model="test:better"))
    bare = play_run(tmp_path / "bare", [a_play(complete=False)], status="stopped")
    validator = Draft202012Validator(SCHEMA)
    for runs in ((full,), (full, other), (bare,)):
        document = plays_document(report(*runs))
        validator.validate(json.loads(json.dumps(document, allow_nan=False)))


def test_the_command_prints_one_document_and_writes_page_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_rated_run(tmp_path / "run")
    assert main(["report", str(run), "--json", "--csv"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["page"] == str(run / "report.html")
    assert document["scenes"]["models"][0]["average"]["mean"] == pytest.approx(2.5)
    assert (run / "report.html").read_text("utf-8").startswith("<!doctype html>")
    assert {p.name for p in run.glob("*.csv")} == {"scores.csv", "units.csv", "events.csv"}


def test_the_command_reports_two_runs_on_the_same_scenes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_rated_run(tmp_path / "one")
    two = a_rated_run(
        tmp_path / "two", four_scenes(model="test:better"), score=lambda c, m: by_name(c, m) + 1
    )
    assert main(["report", str(one), str(two), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {d["metric"]: d["estimate"] for d in document["scenes"]["differences"]}
    assert found["average"]["mean"] == pytest.approx(1)
    assert found["average"]["n"] == 4


def test_plays_are_reported_from_python_by_the_same_name(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    document = personae.report(str(run))
    assert document["scenes"]["models"][0]["average"]["mean"] == pytest.approx(2.5)
    assert (run / "report.html").is_file()


def test_the_language_of_the_page_can_be_chosen(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--lang", "zh", "--out", str(page)]) == 0
    assert '<html lang="zh-CN">' in page.read_text("utf-8")


def test_a_scene_is_asked_for_of_plays_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_rated_run(tmp_path / "run")
    assert main(["report", str(run), "--scene", "Mill/extracted/0"]) == 0
    page = (run / "report.html").read_text("utf-8")
    assert 'id="play-3"' in page
    assert 'id="play-1"' not in page
    was = json.loads((run / "manifest.json").read_text("utf-8"))
    (run / "manifest.json").write_text(json.dumps({**was, "kind": "eval"}), "utf-8")
    assert main(["report", str(run), "--scene", "Mill/extracted/0"]) == 2
    assert "--scene" in capsys.readouterr().err


def test_a_rating_given_for_a_run_is_refused_with_the_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = play_run(tmp_path / "run", four_scenes())
    rating = rate(run, four_scenes())
    assert main(["report", str(rating)]) == 2
    assert f"personae report {run}" in capsys.readouterr().err.replace("\n", "")
