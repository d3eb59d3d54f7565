"""What `personae agree` prints."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from personae.cli import main
from personae.interview.questions import INTERVIEWS
from personae.judging.people import agree_on_interviews
from personae.records import InterviewRow
from personae.reports.people import print_agreement
from personae.session import MANIFEST, RESULTS, new_manifest
from personae.stages import write_results
from tests.judging.audited_interviews import held
from tests.judging.interviews import a_row


def judged(path: Path) -> list[InterviewRow]:
    """Two methods over three interviews, and what people say of them in a file."""
    rows, lines = [], ["unit_id,rater,metric,score"]
    for n, name in enumerate(("Ada", "Bede", "Cleo")):
        for score, method in ((n + 1, "prompt"), (n + 3, "rag")):
            row = a_row("RK", score, script=f"s{n}", characters=(name,))
            row = row.model_copy(update={"method": method, "interview_id": f"s{n}@m#{method}"})
            rows.append(row)
            lines.append(f"{row.interview_id},kim,RK,{score}")
    path.write_text("\n".join(lines))
    return rows


def test_means_of_both_sides_and_the_orders_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    rows = judged(path)
    console = Console(width=140, record=True, file=StringIO())
    print_agreement(agree_on_interviews(rows, path), console)
    text = console.export_text()
    assert "Means of people and of judges, 95 % intervals over characters" in text
    assert "m by rag, replayed" in text
    assert "Order by RK (replayed), Kendall tau 1.00:" in text
    assert "people: m by rag > m by prompt" in text
    (means,) = [line for line in text.splitlines() if "│ rag" in line]
    assert means.count("4.00 (") == 2, "people and judges say the same"


def test_the_command_compares_an_interview_run_with_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = tmp_path / "run", tmp_path / "ratings.csv"
    run.mkdir()
    (run / MANIFEST).write_text(new_manifest("interview", {"judge": ["j"]}, arguments={}).to_json())
    write_results([held("S", "Ada")], run / INTERVIEWS)
    write_results(judged(path), run / RESULTS)
    assert main(["agree", str(run), "--human", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {m["metric"] for m in document["metrics"]} == {"RK"}
    assert [s["method"] for s in document["systems"]] == ["prompt", "rag"]
    assert [o["kendall"] for o in document["orders"]] == [1.0]
    assert main(["agree", str(run), "--human", str(path)]) == 0
    assert "intervals over characters" in capsys.readouterr().out
    (run / RESULTS).unlink()
    assert main(["agree", str(run), "--human", str(path)]) == 2
    assert "--judge" in capsys.readouterr().err
