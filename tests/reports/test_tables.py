from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from personae.errors import OutputError
from personae.records import Language
from personae.reports import ReportData, print_report, write_csv

from .sample import make_benchmark, make_data, make_rows


def printed(data: ReportData, language: Language = "en", width: int = 160) -> str:
    out = io.StringIO()
    print_report(data, Console(file=out, width=width, color_system=None), language)
    return out.getvalue()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_terminal_warns_before_it_shows_a_score():
    data = make_data(states=("none", "none"))
    text = printed(data)
    score = f"{data.models[0].persona_score.mean:.2f}"
    assert text.index("never audited: do not act on them") < text.index(score)


def test_the_terminal_shows_interval_and_missing_rate_beside_the_mean():
    data = make_data()
    text = printed(data)
    e = data.models[0].tasks["Expected Action"]
    assert f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}] (missing {e.missing:.1%})" in text
    e = data.models[0].persona_score
    assert f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}] (missing {e.missing:.1%})" in text


def test_in_a_narrow_terminal_models_stand_below_each_other_and_nothing_is_lost():
    data = make_data(models=("a/one", "b/two", "c/three"))
    text = printed(data, width=80)
    for scores in data.models:
        e = scores.persona_score
        assert f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}] (missing {e.missing:.1%})" in text
        assert scores.model in text


def test_the_terminal_speaks_chinese():
    assert "不要据此行动" in printed(make_data(language="zh", states=("none", "none")), "zh")


def test_names_are_not_read_as_markup_nor_as_terminal_codes():
    data = make_data(models=("[bold red]m[/]", "e\x1b[2Jvil"), states=("none", "none"))
    text = printed(data)
    assert "[bold red]m[/]" in text
    assert "\x1b" not in text


def test_units_csv_has_a_line_per_answer_with_each_judges_score(tmp_path):
    data = make_data(lost=0.2)
    _, each = write_csv(data, tmp_path)
    lines = {line["unit_id"]: line for line in read(each)}
    assert len(lines) == len({row.unit_id for row in data.rows})
    for row in data.rows:
        line = lines[row.unit_id]
        if row.judge == "lift:local":
            assert line["lift: lift:local"] == ("" if row.lift is None else str(row.lift))
        else:
            assert line[f"score: {row.judge}"] == ("" if row.score is None else str(row.score))
            cause = row.failure.cause if row.failure else ""
            assert line[f"failure: {row.judge}"] == cause


def test_repeats_have_columns_of_their_own(tmp_path):
    rows = make_rows(make_benchmark(people=1), ["m"], ["j"], lost=0)
    again = [r.model_copy(update={"repeat": 1, "score": 2}) for r in rows]
    data = make_data(models=("m",), judges=("j",), states=("none",), rows=rows + again)
    _, each = write_csv(data, tmp_path)
    assert {line["score: j (repeat 2)"] for line in read(each)} == {"2"}


def test_the_means_of_scores_csv_give_the_persona_score(tmp_path):
    data = make_data(lost=0.1)
    scores, _ = write_csv(data, tmp_path)
    lines = read(scores)
    for model in data.models:
        by_persona: dict[str, list[str]] = {}
        for line in lines:
            if line["model"] == model.model:
                by_persona.setdefault(line["persona"], []).append(line["mean"])
        whole = [
            sum(map(float, means)) / len(means)
            for means in by_persona.values()
            if all(mean != "" for mean in means)
        ]
        assert len(whole) == model.persona_score.n
        assert sum(whole) / len(whole) == pytest.approx(model.persona_score.mean)


def test_hostile_answers_reach_the_table_as_text(tmp_path):
    rows = [
        r.model_copy(update={"answer": '=HYPERLINK("x")', "question": 'a\ud800\n"b",c'})
        for r in make_rows(make_benchmark(people=1), ["=m"], ["@j"], lost=0)
    ]
    data = make_data(models=("=m",), judges=("@j",), states=("none",), rows=rows)
    _, each = write_csv(data, tmp_path)
    lines = read(each)
    assert {line["answer"] for line in lines} == {'\'=HYPERLINK("x")'}
    assert {line["question"] for line in lines} == {'a\ufffd\n"b",c'}
    assert {line["model"] for line in lines} == {"'=m"}


def test_a_table_that_cannot_be_written_names_the_file(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_csv(make_data(), blocked)
