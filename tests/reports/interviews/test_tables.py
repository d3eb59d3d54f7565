"""The report of interviews in a terminal and as tables."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from personae.records import Failure, Language
from personae.reports.interviews import (
    InterviewsReport,
    print_interviews,
    write_interviews_csv,
)

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


def printed(data: InterviewsReport, language: Language = "en", width: int = 160) -> str:
    out = StringIO()
    print_interviews(data, Console(file=out, width=width), language)
    return out.getvalue()


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_warning_comes_first_and_every_mode_has_its_column(tmp_path: Path) -> None:
    run = interview_run(
        tmp_path / "run", [held(s) for s in (*two_questions_each(), talk(1), switching())]
    )
    text = printed(report(run))
    assert text.index("never audited on interviews: do not act") < text.index("Average")
    assert "test:player · card in the prompt · single question" in text
    assert "replayed words" in text
    assert "4.71 [3.71, 5.71] (missing 0.0%)" in text
    assert "Average without Stab" in text
    assert "Transfer dialogues (Trans)" in text
    assert "there is one judge, and one judge cannot agree with itself." in text


def test_the_worst_and_what_is_missing_are_named(tmp_path: Path) -> None:
    lost = {1: Failure(cause="empty")}
    run = interview_run(
        tmp_path / "run",
        [*(held(s) for s in two_questions_each()), held(question(9), failures=lost)],
        score=lambda i, m: None if (m, i.script_id) == ("RK", "Ada/1") else by_name(i, m),
    )
    text = printed(report(run))
    assert "3.71  Bede · test:player · card in the prompt · single question" in text
    assert "2 Stability: So it reads. (Stab)" in text
    assert "empty answer" in text
    assert "1 of 5" in text
    assert "reply not in the asked form" in text


def test_why_there_are_no_intervals_is_told_once(tmp_path: Path) -> None:
    text = printed(report(interview_run(tmp_path / "run", [held(question(1)), held(talk(1))])))
    assert text.count("no interval below two characters or dialogues") == 1
    assert "Means without brackets: no interval" in text
    several = interview_run(tmp_path / "several", [held(s) for s in two_questions_each()])
    assert "Means without brackets" not in printed(report(several))


def test_what_was_said_of_a_failure_stands_beside_its_cause(tmp_path: Path) -> None:
    lost = {1: Failure(cause="context_length", detail="the prompt has 9 tokens, the model reads 8")}
    run = interview_run(tmp_path / "run", [held(question(1)), held(question(9), failures=lost)])
    text = " ".join(printed(report(run), width=300).split())
    assert "too long for the model (the prompt has 9 tokens, the model reads 8)" in text


def test_a_failed_audit_gives_its_reasons(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))])
    audit(tmp_path / "audit", verdict="failed")
    text = printed(report(run))
    assert "test:judge: failed" in text
    assert "it cannot tell refusals apart" in text


def test_what_nobody_judged_says_so_and_shows_no_scores(tmp_path: Path) -> None:
    text = printed(report(interview_run(tmp_path / "run", [held(question(1))], ())))
    assert "Nobody has judged these interviews" in text
    assert "Average" not in text
    assert "alpha" not in text


def test_the_terminal_speaks_chinese(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1, "阿黛", language="zh"))])
    text = printed(report(run), "zh")
    assert "不要据此行动" in text
    assert "单个问题" in text


def test_no_text_of_a_model_is_read_as_markup(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1), "m[red]x", answer="[bold]a[/]")])
    text = printed(report(run))
    assert "m[red]x" in text
    assert "[bold]a[/]" in text


def test_scores_are_a_line_a_character_and_metric(tmp_path: Path) -> None:
    lost = {1: Failure(cause="empty")}
    run = interview_run(
        tmp_path / "run",
        [
            *(held(s) for s in two_questions_each()),
            held(question(9), failures=lost),
            held(switching()),
        ],
    )
    scores, _, _ = write_interviews_csv(report(run), tmp_path)
    found = {
        (r["kind"], r["characters"], r["metric"]): (r["mean"], r["scored"], r["missing"])
        for r in lines(scores)
    }
    assert found["single", "Ada", "CB"] == ("6.0", "2", "1")
    assert found["single", "Bede", "Stab"] == ("2.0", "2", "0")
    assert found["transfer", "Ada; Bede", "Trans"] == ("6.0", "1", "0")
    assert len(found) == 7 + 7 + 1


def test_units_have_every_judges_score_reason_and_failure(tmp_path: Path) -> None:
    run = interview_run(
        tmp_path / "run",
        [held(talk(1))],
        ("test:judge", "test:judge"),
        score=lambda i, m: None if m == "RK" else by_name(i, m),
    )
    _, units, _ = write_interviews_csv(report(run), tmp_path)
    by_metric = {r["metric"]: r for r in lines(units)}
    assert list(by_metric) == ["CB", "CU", "VK", "RK", "HK", "Rel", "Stab"]
    one = by_metric["Stab"]
    assert (one["interview_id"], one["mean"]) == ("Ada/talk/1@test:player#prompt", "4.0")
    assert one["score: test:judge (repeat 2)"] == "4"
    assert one["turn scores: test:judge"] == "4 4 4"
    assert one["reason: test:judge"] == "So it reads. (Stab)"
    assert by_metric["RK"]["mean"] == ""
    assert by_metric["RK"]["failure: test:judge"] == "malformed"


def test_interviews_that_nobody_judged_have_their_lines_all_the_same(tmp_path: Path) -> None:
    data = report(interview_run(tmp_path / "run", [held(question(1))], ()))
    scores, units, turns = write_interviews_csv(data, tmp_path)
    assert lines(scores) == []
    assert [r["mean"] for r in lines(units)] == [""] * 7
    assert [r["answer"] for r in lines(turns)] == ["Ada answers 1 by prompt."]


def test_turns_have_words_failures_passages_and_scores(tmp_path: Path) -> None:
    lost = {
        2: Failure(cause="timeout", detail="no reply in 120 s"),
        3: Failure(cause="not_reached"),
    }
    run = interview_run(
        tmp_path / "run",
        [
            held(talk(1), method="rag", passages=("One.", "Two."), answer="=SUM(A1)"),
            held(talk(2), failures=lost),
        ],
    )
    _, _, turns = write_interviews_csv(report(run), tmp_path)
    rows = lines(turns)
    assert [r["in_character"] for r in rows] == ["3.0"] * 3 + [""] * 3
    assert rows[0]["passages"] == "One.\n\nTwo."
    assert rows[0]["answer"] == "'=SUM(A1)"  # no formula for a spreadsheet
    assert (rows[4]["answer"], rows[4]["failure"], rows[4]["detail"]) == (
        "", "timeout", "no reply in 120 s",
    )  # fmt: skip
    assert rows[5]["failure"] == "not_reached"


@pytest.mark.parametrize("width", [60, 100, 240])
def test_it_prints_at_any_width(tmp_path: Path, width: int) -> None:
    run = interview_run(tmp_path / "run", both_methods([*two_questions_each(), talk(1)]))
    text = printed(report(run), width=width)
    assert max(map(len, text.splitlines())) <= width
