"""The report of plays in a terminal and as tables."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from personae.records import Language
from personae.records.cells import plain_cell
from personae.reports.scenes import PlaysReport, print_plays, write_plays_csv
from tests.judging.plays import NAMES, a_play, a_scene
from tests.reports.page import HOSTILE

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


def shown(data: PlaysReport, language: Language = "en", width: int = 120) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=False)
    print_plays(data, console, language)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [{k: plain_cell(v) for k, v in row.items()} for row in rows]


def test_the_terminal_warns_before_it_scores(tmp_path: Path) -> None:
    text = shown(report(a_rated_run(tmp_path / "run")))
    assert text.index("never audited on trajectories") < text.index("2.50 [2.00, 3.00]")
    assert text.index("2.50 [2.00, 3.00]") < text.index("Worst trajectories")
    assert "1.00  Bede · Ferry/generated/0 · test:player" in text
    assert "It holds together." in text
    assert "1 Knowledge Accuracy: So it reads. (KA)" in text


def test_a_failed_audit_is_told_with_its_reasons(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    audit(tmp_path / "audit", verdict="failed")
    assert "it cannot tell refusals apart" in shown(report(run))


def test_the_terminal_speaks_chinese(tmp_path: Path) -> None:
    scene = a_scene("渡口/extracted/0", names=NAMES["zh"][:2], language="zh")
    text = shown(report(a_rated_run(tmp_path / "run", [a_play(scene)])), "zh")
    assert "从未经过轨迹审查" in text
    assert "知识准确性" in text


def test_plays_that_nobody_rated_are_listed_with_how_they_ended(tmp_path: Path) -> None:
    run = play_run(tmp_path / "run", [an_eventful_play(), a_play("Mill/generated/0", rounds=3)])
    text = shown(report(run))
    assert "personae rate" in text
    assert [line.split() for line in text.splitlines() if "/0 " in line] == [
        ["Ferry/extracted/0", "2", "concluded", "2"],
        ["Mill/generated/0", "3", "open", "0"],
    ]


def test_differences_between_runs_are_told(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    two = a_rated_run(
        tmp_path / "two", four_scenes(model="test:better"), score=lambda c, m: by_name(c, m) + 1
    )
    text = shown(report(one, two), width=140)
    assert "test:better − test:player" in text
    assert "+1.00 [+1.00, +1.00] (missing 0.0%)" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_model_is_markup_or_moves_the_cursor(tmp_path: Path, text: str) -> None:
    play = an_eventful_play(f"[red]{text}", player=f"[red]{text}", teller=text)
    run = play_run(tmp_path / "run", [play], notes=(text,))
    rate(run, [play], f"[b]{text}", lambda _c, _m: 1, critique=f"[red]{text}", reason=text)
    told = shown(report(run), width=400)
    assert "[red]" in told
    assert "[b]" in told
    assert not {"\x1b", "\x00", "\u202e"} & set(told)
    told.encode("utf-8")


def test_scores_are_a_line_a_scene_and_metric(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run", score=lambda c, m: None if m == "AD" else by_name(c, m))
    scores, _, _ = write_plays_csv(report(run), tmp_path)
    lines = table(scores)
    assert len(lines) == 4 * 8
    ka = [line for line in lines if line["metric"] == "KA"]
    assert {line["scene"]: (line["mean"], line["scored"], line["missing"]) for line in ka} == {
        "Ferry/extracted/0": ("3.0", "2", "0"),
        "Ferry/generated/0": ("2.0", "2", "0"),
        "Mill/extracted/0": ("3.0", "2", "0"),
        "Mill/generated/0": ("2.0", "2", "0"),
    }
    lost = [line for line in lines if line["metric"] in ("AD", "average")]
    assert {(line["mean"], line["scored"], line["missing"]) for line in lost} == {("", "0", "2")}


def test_units_are_a_line_a_trajectory_and_metric_with_each_judges_word(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    rate(run, four_scenes(), "test:second", lambda c, m: None if m == "AD" else by_name(c, m))
    rate(run, four_scenes(), kind="narrator", score=lambda _c, _m: 3)
    _, units, _ = write_plays_csv(report(run), tmp_path)
    lines = table(units)
    assert len(lines) == 8 * 7 + 4 * 4
    one = next(x for x in lines if x["character"] == "Ada" and x["metric"] == "AD")
    assert one["unit_id"] == "Ferry/extracted/0#Ada@test:player"
    assert (one["score: test:judge"], one["score: test:second"], one["mean"]) == ("4", "", "")
    assert (one["failure: test:second"], one["reason: test:judge"]) == (
        "malformed", "So it reads. (AD)",
    )  # fmt: skip
    told = [x for x in lines if x["metric"] == "MANNER"]
    assert {(x["model"], x["character"], x["mean"]) for x in told} == {("test:teller", "", "3.0")}


def test_trajectories_that_nobody_rated_are_lines_to_be_filled_in(tmp_path: Path) -> None:
    data = report(play_run(tmp_path / "run", four_scenes()))
    scores, units, _ = write_plays_csv(data, tmp_path)
    assert table(scores) == []
    lines = table(units)
    assert len(lines) == 8 * 7
    assert {(x["acts_missing"], x["mean"]) for x in lines} == {("0.0", "")}


def test_events_are_a_line_each_with_who_perceived_them(tmp_path: Path) -> None:
    play = an_eventful_play()
    _, _, events = write_plays_csv(report(play_run(tmp_path / "run", [play])), tmp_path)
    lines = table(events)
    assert len(lines) == len(play.events)
    whisper = next(x for x in lines if x["manner"] == "whisper")
    assert (whisper["actor"], whisper["to"], whisper["perceived_by"]) == (
        "Bede",
        "Ada",
        "Ada; Bede",
    )
    lost = next(x for x in lines if x["failure"] == "timeout")
    assert (lost["actor"], lost["text"], lost["detail"]) == ("Cleo", "act", "no reply in 120 s")


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    play = an_eventful_play("=HYPERLINK(1)")
    run = play_run(tmp_path / "run", [play])
    rate(run, [play], score=lambda _c, _m: 1, critique="=1+1", reason="@now")
    for path in write_plays_csv(report(run), tmp_path):
        with path.open(encoding="utf-8", newline="") as file:
            assert not [c for row in csv.reader(file) for c in row if c.startswith(("=", "@"))]
