"""Runs of interviews on disk become what a report shows: nothing twice, nothing pooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from personae.errors import InputError, UsageError
from personae.interview.questions import INTERVIEWS, PROFILES
from personae.judging.interview_metrics import METRICS, SEVEN
from personae.records import Failure, InterviewProfile
from personae.records.files import write_records
from personae.reports.interviews import InterviewsReport, are_interview_runs
from personae.session import MANIFEST, RESULTS

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


def scores(data: InterviewsReport, method: str, mode: str = "single") -> dict[str, Any]:
    (found,) = (m for m in data.interviews["models"] if (m["method"], m["mode"]) == (method, mode))
    one: dict[str, Any] = found
    return one


def test_a_models_score_is_the_mean_over_characters(tmp_path: Path) -> None:
    data = report(interview_run(tmp_path / "run", both_methods(two_questions_each())))
    # Ada 6 and Bede 4, two less on Stab: (6 * 6 + 4) / 7 = 40 / 7 and (6 * 4 + 2) / 7 = 26 / 7.
    one = scores(data, "prompt")
    assert one["average"]["mean"] == pytest.approx((40 / 7 + 26 / 7) / 2)
    assert one["average_without_stab"]["mean"] == pytest.approx(5)
    assert set(one["metrics"]) == set(METRICS)
    assert one["metrics"]["Trans"]["mean"] is None


def test_modes_and_methods_are_never_pooled(tmp_path: Path) -> None:
    given = both_methods([*two_questions_each(), talk(1), talk(1, "Bede")])
    given.append(held(talk(2), mode="unknown"))
    found = report(interview_run(tmp_path / "run", given)).interviews["models"]
    assert sorted((m["method"], m["mode"], m["n_interviews"]) for m in found) == [
        ("prompt", "replayed", 2), ("prompt", "single", 4), ("prompt", "unknown", 1),
        ("rag", "replayed", 2), ("rag", "single", 4),
    ]  # fmt: skip


def test_a_model_that_two_runs_held_alike_stands_once_for_each(tmp_path: Path) -> None:
    scripts = two_questions_each()
    one = interview_run(tmp_path / "one", [held(s) for s in scripts])
    two = interview_run(
        tmp_path / "two", [held(s) for s in scripts], score=lambda i, m: by_name(i, m) - 1
    )
    data = report(one, two)
    means = {m["model"]: m["average_without_stab"]["mean"] for m in data.interviews["models"]}
    assert means == {"test:player [one]": pytest.approx(5), "test:player [two]": pytest.approx(4)}
    # The same scripts: their answers stand side by side, and are compared.
    assert [len(some) for some in data.by_script.values()] == [2, 2, 2, 2]
    (gap,) = [d for d in data.interviews["paired"] if d["what"] == "average_without_stab"]
    assert gap["estimate"]["mean"] == pytest.approx(1)


def test_one_model_by_two_methods_in_two_runs_keeps_its_name(tmp_path: Path) -> None:
    scripts = two_questions_each()
    one = interview_run(tmp_path / "one", [held(s) for s in scripts])
    two = interview_run(tmp_path / "two", [held(s, method="rag") for s in scripts])
    data = report(one, two)
    assert {m["model"] for m in data.interviews["models"]} == {"test:player"}
    assert [len(some) for some in data.by_script.values()] == [2, 2, 2, 2]


def test_different_questions_of_one_id_are_told_apart(tmp_path: Path) -> None:
    first, second = question(1), question(1, location="At court")
    assert first.id == second.id
    one = interview_run(tmp_path / "one", [held(first)], scripts=[first])
    two = interview_run(tmp_path / "two", [held(second, "test:other")], scripts=[second])
    data = report(one, two)
    assert set(data.by_script) == {"Ada/1 [one]", "Ada/1 [two]"}
    assert data.interviews["paired"] == []
    assert data.differences_reason == "nothing_common"


def test_runs_of_one_name_go_by_their_path(tmp_path: Path) -> None:
    scripts = two_questions_each()
    runs = [interview_run(tmp_path / folder / "run", [held(s) for s in scripts]) for folder in "ab"]
    names = {m["model"] for m in report(*runs).interviews["models"]}
    assert names == {f"test:player [{run}]" for run in runs}


def test_an_interview_without_its_answer_is_counted_by_cause_and_never_scored(
    tmp_path: Path,
) -> None:
    lost = {1: Failure(cause="contaminated", detail="it holds the prompt")}
    given = [held(s) for s in two_questions_each()]
    given.append(held(question(3), failures=lost, source="Ada_single.json, entry 7"))
    data = report(interview_run(tmp_path / "run", given))
    (line,) = data.left_out
    assert (line.cause, line.interviews, line.of) == ("contaminated", 1, 5)
    assert line.places == ("Ada_single.json, entry 7",)
    assert line.example == "it holds the prompt"
    assert data.unscored == ()
    one = scores(data, "prompt")
    assert one["answers_missing"] == pytest.approx(1 / 5)
    assert one["average_without_stab"]["mean"] == pytest.approx(5)
    assert one["average_without_stab"]["missing"] == pytest.approx(1 / 5)


def test_a_verdict_that_could_not_be_had_is_another_thing_than_an_answer(tmp_path: Path) -> None:
    data = report(
        interview_run(
            tmp_path / "run",
            [held(s) for s in two_questions_each()],
            score=lambda i, m: None if m == "RK" else by_name(i, m),
        )
    )
    assert data.left_out == ()
    (line,) = data.unscored
    assert (line.judge, line.metric, line.cause) == ("test:judge", "RK", "malformed")
    assert (line.count, line.of) == (4, 4)
    assert data.scores_of["Ada/1@test:player#prompt"]["RK"] is None
    assert "average" not in data.scores_of["Ada/1@test:player#prompt"]


def test_the_score_of_an_interview_is_the_mean_over_its_judges(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(talk(1))], ("test:judge", "test:judge"))
    rows = [json.loads(line) for line in (run / RESULTS).read_text("utf-8").splitlines()]
    for row in rows:  # the repeat finds it one worse
        if row["repeat"]:
            row["score"] -= 1
            row["turn_scores"] = [s - 1 for s in row["turn_scores"]]
    (run / RESULTS).write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    data = report(run)
    assert data.scores_of["Ada/talk/1@test:player#prompt"]["CB"] == pytest.approx(5.5)
    assert data.turns_of["Ada/talk/1@test:player#prompt"] == {
        turn: pytest.approx(3.5) for turn in (1, 2, 3)
    }


def test_transfer_dialogues_have_trans_and_nothing_else(tmp_path: Path) -> None:
    data = report(interview_run(tmp_path / "run", [held(switching()), held(talk(1))]))
    assert set(data.scores_of["switch/1@test:player#prompt"]) == {"Trans"}
    one = scores(data, "prompt", "replayed")
    assert one["metrics"]["Trans"]["mean"] == 6
    assert (one["n_interviews"], one["n_transfers"]) == (1, 1)
    assert {k for k, e in one["metrics"].items() if e["mean"] is not None} == {
        *SEVEN, "Trans",
    }  # fmt: skip


@pytest.mark.parametrize(("verdict", "state"), [("passed", "passed"), ("failed", "failed")])
def test_an_audit_beside_the_run_is_found_by_judge_rubric_and_language(
    tmp_path: Path, verdict: str, state: str
) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    audit(tmp_path / "audit", verdict=verdict)
    assert report(run).trust == state
    audit(tmp_path / "zh", language="zh", verdict="failed" if verdict == "passed" else "passed")
    assert report(run).trust == state


def test_a_judge_without_an_audit_and_one_that_passed_are_mixed(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))], ("test:judge", "test:second"))
    assert report(run).trust == "none"
    audit(tmp_path / "audit")
    assert report(run).trust == "mixed"
    audit(tmp_path / "more", "test:second")
    assert report(run).trust == "passed"


def test_interviews_that_nobody_judged_are_reported_without_scores(tmp_path: Path) -> None:
    data = report(interview_run(tmp_path / "run", both_methods(two_questions_each()), ()))
    assert data.trust == "unjudged"
    assert data.interviews["models"] == []
    assert data.differences_reason == "unjudged"
    assert data.agreement_reason == "no judge gave ratings"
    assert len(data.held) == 8


def test_runs_by_different_rubrics_are_not_compared(tmp_path: Path) -> None:
    scripts = two_questions_each()
    one = interview_run(tmp_path / "one", [held(s) for s in scripts])
    two = interview_run(
        tmp_path / "two", [held(s, "test:other") for s in scripts], rubric_hash="0" * 64
    )
    data = report(one, two)
    assert "rules" in data.caveats
    assert data.interviews["paired"] == []
    assert data.differences_reason == "different_rules"


def test_characters_of_one_name_and_two_cards_are_told(tmp_path: Path) -> None:
    def run(name: str, *known: str) -> Path:
        made = interview_run(tmp_path / name, [held(question(1), f"test:{name}")])
        profiles = (InterviewProfile(name="Ada", text=text) for text in known)
        write_records(profiles, made / PROFILES)
        return made

    one, two = run("one", "Ada keeps a ferry."), run("two", "Ada writes programs.")
    assert report(one, two).caveats == ("profiles",)
    assert report(one, run("three", "Ada keeps a ferry."), run("four")).caveats == ()


def test_what_limits_the_reading_is_told(tmp_path: Path) -> None:
    live = talk(1)
    one = interview_run(tmp_path / "one", [held(live, mode="live", interviewer="test:interviewer")])
    two = interview_run(
        tmp_path / "two",
        [held(live, "test:other", mode="live", interviewer="test:another")],
        ("test:second",),
    )
    three = interview_run(tmp_path / "three", [held(talk(2), "test:third", mode="unknown")], ())
    assert report(one, two, three).caveats == (
        "judges", "some_unjudged", "interviewers", "live", "unknown",
    )  # fmt: skip
    assert report(one).caveats == ("live",)


def test_calls_and_cost_without_a_journal_are_unknown(tmp_path: Path) -> None:
    data = report(interview_run(tmp_path / "run", [held(question(1))]))
    assert (data.cost.usd, data.cost.tokens_in, data.wall_seconds) == (None, None, None)


def test_runs_of_other_kinds_are_reported_apart(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    other = interview_run(tmp_path / "other", [held(question(1))])
    was = json.loads((other / MANIFEST).read_text("utf-8"))
    (other / MANIFEST).write_text(json.dumps({**was, "kind": "eval"}), "utf-8")
    assert are_interview_runs([run])
    assert not are_interview_runs([other])
    with pytest.raises(UsageError, match="Report them apart"):
        are_interview_runs([run, other])


def test_a_run_that_holds_no_interviews_yet_says_how_to_go_on(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))], status="stopped")
    (run / INTERVIEWS).unlink()
    with pytest.raises(InputError, match="personae resume"):
        report(run)


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    with pytest.raises(UsageError, match="named twice"):
        report(run, run)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    with (run / RESULTS).open("a", encoding="utf-8") as file:
        file.write('{"interview_id": "x"}\n')
    with pytest.raises(InputError, match="line 8"):
        report(run)


def test_a_folder_given_as_an_audit_must_hold_one(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no audit"):
        report(run, audits=[tmp_path / "empty"])
