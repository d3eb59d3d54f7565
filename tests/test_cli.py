"""The commands as a stranger types them: exit codes, JSON and nothing else, errors in words."""

import csv
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from personae.cli import main

ROOT = Path(__file__).parent
GYM = f"scripted:{ROOT / 'scripts' / 'gym.py'}"


@pytest.fixture
def bench(tmp_path: Path, capsys) -> Path:
    people = tmp_path / "people.txt"
    people.write_text("A retired lighthouse keeper from Cornwall\nA jazz pianist of 80\n")
    out = tmp_path / "bench.jsonl"
    assert main(f"bench build --personas {people} --examiner {GYM} --exemplars {GYM} "
                f"--questions 2 --out {out}".split()) == 0  # fmt: skip
    capsys.readouterr()
    return out


def document(capsys) -> dict[str, Any]:
    out = capsys.readouterr().out
    assert out.count("\n") == 1, "one JSON document and nothing else"
    found: dict[str, Any] = json.loads(out)
    return found


def test_bench_show_has_the_keys_of_the_contract(bench: Path, capsys):
    assert main(["bench", "show", str(bench), "--json"]) == 0
    found = document(capsys)
    assert (found["personas"], found["questions"], found["exemplars"]) == (2, 20, 20)
    assert found["tasks"] == {
        "Expected Action": 4,
        "Toxicity Control": 4,
        "Linguistic Habits": 4,
        "Persona Consistency": 4,
        "Action Justification": 4,
    }


def test_eval_and_report_print_the_same_document(bench: Path, tmp_path: Path, capsys):
    run = tmp_path / "run"
    args = f"eval {bench} --model {GYM} --judge {GYM} lift:{GYM} --out {run} --json".split()
    assert main(args) == 0
    first = document(capsys)
    assert main(["report", str(run), "--json"]) == 0
    second = document(capsys)
    assert first == second
    (model,) = second["models"]
    score = model["persona_score"]
    assert score.keys() == {"mean", "low", "high", "n", "missing"}
    assert (score["n"], score["missing"]) == (2, 0.0)
    assert score["low"] <= score["mean"] <= score["high"]
    assert set(model["tasks"]) == {
        "Expected Action", "Toxicity Control", "Linguistic Habits", "Persona Consistency",
        "Action Justification",
    }  # fmt: skip
    assert (model["n_answers"], model["refusal_rate"]) == (20, 0.0)
    assert model["lift"]["n"] == 2
    assert [(j["model"], j["audit"]) for j in second["judges"]] == [
        (GYM, "none"),
        (f"lift:{GYM}", "none"),
    ]
    assert second["agreement"] is None
    assert second["calls"] == {"made": 20 + 20 + 60, "reused": 0, "failed": 0}
    assert second["cost"]["usd"] == 0
    assert (run / "report.html").is_file()


def test_the_mean_of_the_document_is_the_mean_of_results_jsonl(bench: Path, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(f"eval {bench} --model {GYM} --judge {GYM} --out {run} --json".split()) == 0
    shown = document(capsys)["models"][0]["persona_score"]["mean"]
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    tasks: dict[str, Any] = {}
    for row in rows:
        tasks.setdefault(row["persona"], {}).setdefault(row["task"], []).append(row["score"])
    of_persona = [
        sum(sum(s) / len(s) for s in by_task.values()) / len(by_task) for by_task in tasks.values()
    ]
    assert shown == pytest.approx(sum(of_persona) / 2)


def test_models_and_judges_may_be_named_in_one_option_or_in_several(bench, tmp_path, capsys):
    one = f"eval {bench} --model {GYM} --judge {GYM} lift:{GYM} --out {tmp_path / 'a'} --json"
    two = (
        f"eval {bench} --model {GYM} --judge {GYM} --judge lift:{GYM} --out {tmp_path / 'b'} --json"
    )
    found = []
    for line in (one, two):
        assert main(line.split()) == 0
        found.append(document(capsys)["models"])
    assert found[0] == found[1]


def test_without_exemplars_eval_stops_with_2_and_names_the_command(tmp_path, capsys):
    people = tmp_path / "p.txt"
    people.write_text("A jazz pianist\n")
    out = tmp_path / "b.jsonl"
    assert (
        main(f"bench build --personas {people} --examiner {GYM} --questions 1 --out {out}".split())
        == 0
    )
    capsys.readouterr()
    args = f"eval {out} --model {GYM} --judge {GYM} --out {tmp_path / 'r'}".split()
    assert main(args) == 2
    assert "personae bench exemplify" in capsys.readouterr().err
    assert main([*args, "--no-exemplars"]) == 0
    full = tmp_path / "full.jsonl"
    assert main(f"bench exemplify {out} --exemplars {GYM} --out {full}".split()) == 0
    assert main(f"eval {full} --model {GYM} --judge {GYM} --out {tmp_path / 'r2'}".split()) == 0


def test_a_benchmark_may_be_completed_in_place_as_the_message_says(tmp_path: Path, capsys):
    people, out = tmp_path / "p.txt", tmp_path / "b.jsonl"
    people.write_text("A jazz pianist\n")
    build = f"bench build --personas {people} --examiner {GYM} --questions 1 --out {out}"
    assert main(build.split()) == 0
    assert main(f"eval {out} --model {GYM} --judge {GYM} --out {tmp_path / 'r'}".split()) == 2
    said = capsys.readouterr().err
    command = f"bench exemplify {out} --exemplars MODEL --out {out}"
    assert f"`personae {command}`" in said
    again = command.replace("MODEL", GYM).split()
    assert main([*again, "--max-calls", "2"]) == 3
    assert "run the same command again" in capsys.readouterr().err
    (run,) = tmp_path.glob("b.jsonl.exemplify-*.run")
    assert main(["resume", str(run), "--trust-scripts"]) == 0
    capsys.readouterr()
    for _ in range(2):
        assert main([*again, "--json"]) == 0
        assert document(capsys)["exemplars"] == 5
    assert len(list(tmp_path.glob("*.run"))) == 2, "the build's run and one more"


@pytest.mark.parametrize("who", ["model", "judge"])
def test_an_address_out_of_a_manifest_gets_no_key_unasked(
    who: str, bench: Path, tmp_path: Path, capsys, monkeypatch
):
    run = tmp_path / "run"
    here = {"model": "http://127.0.0.1:9/v1#m", "judge": "http://localhost:9/v1#m"}
    named = {**here, who: "http://192.0.2.1/v1#m"}
    args = f"eval {bench} --model {named['model']} --judge {named['judge']} --out {run}"
    assert main([*args.split(), "--max-calls", "0"]) == 3
    again = ["resume", str(run), "--max-calls", "0"]
    assert main(again) == 3, "there is no key to be led away"
    monkeypatch.setenv("PERSONAE_API_KEY", "sk-our-own-secret")
    capsys.readouterr()
    assert main(again) == 2
    said = capsys.readouterr().err
    assert "http://192.0.2.1/v1#m" in said
    assert "--trust-scripts" in said
    assert main([*again, "--trust-scripts"]) == 3
    assert main([*args.split(), "--max-calls", "0"]) == 3, "here the user named the address"


def test_a_cap_exits_with_3_and_resume_finishes_the_same_run(bench: Path, tmp_path: Path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    args = f"eval {bench} --model {GYM} --judge {GYM} lift:{GYM} --out"
    assert main([*args.split(), str(whole)]) == 0
    assert main([*args.split(), str(cut), "--max-calls", "13"]) == 3
    assert f"personae resume {cut}" in capsys.readouterr().err
    assert main(["resume", str(cut)]) == 2, "a script in a manifest is not run unasked"
    assert "--trust-scripts" in capsys.readouterr().err
    assert main(["resume", str(cut), "--trust-scripts"]) == 0
    assert (cut / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["report", str(cut), "--json"]) == 0
    calls = document(capsys)["calls"]
    assert calls["made"] == 100
    assert calls["reused"] == 13


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("arguments/exemplars", 7),
        ("arguments/limit", "3"),
        ("arguments/no_exemplars", None),
        ("arguments/sampling", None),
        ("arguments/cwd", ["/"]),
        ("models/judge", []),
        ("models/model", None),
    ],
)
def test_a_manifest_that_cannot_be_run_again_is_bad_input_and_no_traceback(
    place, value, bench: Path, tmp_path: Path, capsys
):
    run = tmp_path / "run"
    line = f"eval {bench} --model {GYM} --judge {GYM} --out {run} --max-calls 1"
    assert main(line.split()) == 3
    manifest = json.loads((run / "manifest.json").read_text())
    part, name = place.split("/")
    manifest[part][name] = value
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert main(["resume", str(run), "--trust-scripts"]) == 2
    assert "manifest.json" in capsys.readouterr().err


def test_a_resumed_build_writes_beside_its_run_and_nowhere_else(tmp_path: Path, capsys):
    people, out = tmp_path / "people.txt", tmp_path / "bench.jsonl"
    people.write_text("A jazz pianist of 80\n")
    line = f"bench build --personas {people} --examiner {GYM} --questions 1 --out {out}"
    assert main([*line.split(), "--max-calls", "2"]) == 3
    moved = tmp_path / "elsewhere" / "bench.jsonl.run"
    moved.parent.mkdir()
    shutil.copytree(f"{out}.run", moved)
    assert main(["resume", str(moved), "--trust-scripts"]) == 2
    assert "belongs beside" in capsys.readouterr().err
    assert not out.exists()
    assert main(["resume", f"{out}.run", "--trust-scripts"]) == 0
    assert out.exists()


def test_the_way_to_resume_can_be_typed_as_it_is_shown(bench: Path, tmp_path: Path, capsys):
    run = tmp_path / "my run"
    line = f"eval {bench} --model {GYM} --judge {GYM} --max-calls 1 --out"
    assert main([*line.split(), str(run)]) == 3
    said = capsys.readouterr().err.strip().rpartition("To go on: personae ")[2]
    assert shlex.split(said) == ["resume", str(run)]
    assert main([*shlex.split(said), "--trust-scripts", "--max-calls", "1"]) == 3
    assert capsys.readouterr().err.strip().endswith(f"personae {said}")


def test_resume_finds_relative_paths_from_another_folder(bench, tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "s.py").write_text((ROOT / "scripts" / "gym.py").read_text())
    (home / "bench.jsonl").write_bytes(bench.read_bytes())
    monkeypatch.chdir(home)
    line = "eval bench.jsonl --model scripted:s.py --judge scripted:s.py --out run --max-calls 5"
    assert main(line.split()) == 3
    monkeypatch.chdir(elsewhere)
    assert main(["resume", "../home/run", "--trust-scripts"]) == 0
    assert Path.cwd() == elsewhere


@pytest.mark.parametrize("stopped_after", [3, 12, 25])
def test_resume_goes_on_from_the_copy_of_the_benchmark_that_the_run_keeps(
    bench: Path, tmp_path: Path, stopped_after
):
    """Stopped while exemplars are written, or later: the file it was given may change or go."""
    bare = tmp_path / "bare.jsonl"
    lines = [json.loads(line) for line in bench.read_text().splitlines()]
    lines[0].pop("content_hash")
    bare.write_text("".join(json.dumps({**x, **_bare(x)}) + "\n" for x in lines))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    args = f"eval {bare} --model {GYM} --judge {GYM} --exemplars {GYM} --limit 4 --out".split()
    assert main([*args, str(whole)]) == 0
    assert main([*args, str(cut), "--max-calls", str(stopped_after)]) == 3
    bare.unlink()
    resume = ["resume", str(cut), "--trust-scripts"]
    assert main(resume) == 0
    assert main(resume) == 0, "and once more, from the copy that has its exemplars"
    assert (cut / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()
    assert (cut / "benchmark.jsonl").read_bytes() == (whole / "benchmark.jsonl").read_bytes()
    assert main([*args[:1], str(cut / "benchmark.jsonl"), *args[2:], str(cut)]) == 0


def _bare(line: dict[str, Any]) -> dict[str, None]:
    return {"exemplars": None} if line["record"] == "question" else {}


def test_replay_sends_nothing_and_needs_a_finished_run(bench: Path, tmp_path: Path, capsys):
    run = tmp_path / "run"
    args = f"eval {bench} --model {GYM} --judge {GYM} --out {run}".split()
    assert main([*args, "--replay"]) == 1
    assert main([*args, "--max-calls", "7"]) == 3
    assert main([*args, "--replay"]) == 1
    assert "does not hold" in capsys.readouterr().err
    assert main(args) == 0
    before = (run / "results.jsonl").read_bytes()
    assert main([*args, "--replay"]) == 0
    assert (run / "results.jsonl").read_bytes() == before


def test_a_dry_run_counts_and_leaves_no_trace(bench: Path, tmp_path: Path, capsys):
    run = tmp_path / "run"
    args = f"eval {bench} --model openai/gpt-4o --judge {GYM} --out {run} --dry-run --json".split()
    assert main(args) == 0
    found = document(capsys)
    assert found["calls"] == 40
    assert found["usd"] > 0
    assert not run.exists()


def test_max_cost_with_an_unknown_price_is_a_usage_error(bench: Path, tmp_path: Path, capsys):
    args = f"eval {bench} --model vllm/unheard-of --judge {GYM} --max-cost 1 --out {tmp_path / 'r'}"
    assert main(args.split()) == 2
    assert "price" in capsys.readouterr().err


def test_agree_reads_ratings_by_unit_id(bench: Path, tmp_path: Path, capsys):
    run = tmp_path / "run"
    assert main(f"eval {bench} --model {GYM} --judge {GYM} --out {run}".split()) == 0
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    ratings = tmp_path / "ratings.csv"
    with ratings.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["unit_id", "rater", "metric", "score"])
        for row in rows:
            for rater in ("ann", "bob"):
                writer.writerow([row["unit_id"], rater, row["task"], row["score"]])
    capsys.readouterr()
    assert main(["agree", str(run), "--human", str(ratings), "--json"]) == 0
    found = document(capsys)
    values = [
        m["spearman"]["value"] for m in found["metrics"] if m["spearman"]["value"] is not None
    ]
    assert values
    assert all(v == pytest.approx(1.0) for v in values), "people who say what the judge says agree"
    assert main(["agree", str(run), "--human", str(ratings)]) == 0


def test_an_audit_is_found_beside_a_run_and_named_in_its_report(bench, tmp_path, capsys):
    run, audit = tmp_path / "run", tmp_path / "audit"
    assert main(f"eval {bench} --model {GYM} --judge {GYM} --out {run}".split()) == 0
    assert main(f"audit --judge {GYM} --answers {run} --limit 12 --out {audit}".split()) == 0
    capsys.readouterr()
    for extra in ([], ["--audit", str(audit)]):
        assert main(["report", str(run), "--json", *extra]) == 0
        assert document(capsys)["judges"][0]["audit"] == "failed"
    page = (run / "report.html").read_text()
    assert page.index("failed its audit") < page.index("PersonaScore")


def test_csv_is_written_beside_the_report(bench: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert main(f"eval {bench} --model {GYM} --judge {GYM} --out {run}".split()) == 0
    assert main(["report", str(run), "--csv"]) == 0
    with (run / "units.csv").open(newline="", encoding="utf-8-sig") as file:
        assert len(list(csv.DictReader(file))) == 20


def test_two_models_on_one_benchmark_are_compared_and_on_two_they_are_not(bench, tmp_path, capsys):
    other = tmp_path / "other.py"
    other.write_text((ROOT / "scripts" / "gym.py").read_text() + "\n# another model\n")
    line = (
        f"eval {bench} --model {GYM} scripted:{other} --judge {GYM} --out {tmp_path / 'r'} --json"
    )
    assert main(line.split()) == 0
    found = document(capsys)
    assert found["paired"][0]["what"] == "PersonaScore"
    people = tmp_path / "q.txt"
    people.write_text("A diver from Oslo\n")
    second = tmp_path / "second.jsonl"
    assert main(f"bench build --personas {people} --examiner {GYM} --exemplars {GYM} "
                f"--questions 1 --out {second}".split()) == 0  # fmt: skip
    assert (
        main(
            f"eval {second} --model scripted:{other} --judge {GYM} --out {tmp_path / 'r2'}".split()
        )
        == 0
    )
    assert main(f"eval {bench} --model {GYM} --judge {GYM} --out {tmp_path / 'r3'}".split()) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "r2"), str(tmp_path / "r3"), "--json"]) == 0
    assert document(capsys)["paired"] == []


BAD = [
    ("eval {noise} --model {gym} --judge {gym} --out {tmp}/r", "noise.bin"),
    ("eval {tmp}/absent.jsonl --model {gym} --judge {gym} --out {tmp}/r", "no such file"),
    ("bench build --personas {noise} --examiner {gym} --out {tmp}/b.jsonl", "not UTF-8"),
    ("bench build --personas {empty} --examiner {gym} --out {tmp}/b.jsonl", "no persona"),
    ("bench show {noise}", "noise.bin"),
    ("report {tmp}/nowhere", "no such run"),
    ("resume {tmp}/nowhere", "no such run"),
    ("eval {bench} --model scripted:{tmp}/no.py --judge {gym} --out {tmp}/r", "no such script"),
    ("eval {bench} --model klingon:x --judge {gym} --out {tmp}/r", "klingon"),
    ("eval {bench} --model openai/gpt-4o --judge {gym} --out {tmp}/r", "OPENAI_API_KEY"),
    ("eval {bench} --model lift:{gym} --judge {gym} --out {tmp}/r", "no model id"),
    ("eval {bench} --model {gym} --judge {gym} --limit 0 --out {tmp}/r", "--limit"),
    ("eval {bench} --model {gym} --judge {gym} --max-cost nan --out {tmp}/r", "--max-cost"),
    ("eval {bench} --model {gym} --judge {gym} --max-cost -1 --out {tmp}/r", "--max-cost"),
    ("eval {bench} --model {gym} --judge {gym} --max-calls -1 --out {tmp}/r", "--max-calls"),
    ("eval {bench} --model {gym} --judge {gym} --timeout 0 --out {tmp}/r", "--timeout"),
    ("eval {bench} --model {gym} --judge {gym} --concurrency 0 --out {tmp}/r", "--concurrency"),
    ("eval {bench} --model {gym} --judge {gym} --dry-run --replay --out {tmp}/r", "exclude"),
    ("eval {bench} --model {gym} --judge {gym} --out {long}", "File name too long"),
    ("report {long}", "File name too long"),
    ("bench build --personas {bench} --examiner {gym} --tasks , --out {tmp}/b.jsonl", "no task"),
    ("bench import personagym {tmp}/nowhere --out {tmp}/b.jsonl", "nowhere"),
    ("agree {tmp}/nowhere --human {noise}", "no such run"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_input_is_one_clear_paragraph_and_exit_code_2(
    line, said, bench: Path, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.bin").write_bytes(os.urandom(5000))
    (tmp_path / "empty.txt").write_text("\n\n")
    filled = line.format(
        noise=tmp_path / "noise.bin",
        empty=tmp_path / "empty.txt",
        tmp=tmp_path,
        gym=GYM,
        bench=bench,
        long="x" * 300,
    )
    assert main(filled.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("judge", ["openai/gpt-4o", "gpt-4o", "lift:klingon:x"])
def test_a_judge_that_cannot_be_asked_is_noticed_before_any_answer_is_paid_for(
    judge, bench: Path, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run = tmp_path / "run"
    line = f"eval {bench} --model {GYM} --out {run} --judge"
    assert main([*line.split(), judge]) == 2
    assert not run.exists()
    assert main([*line.split(), GYM]) == 0, "and its place is still free"


def test_a_cap_on_cost_without_a_price_is_noticed_before_any_answer_is_paid_for(
    bench: Path, tmp_path: Path, capsys
):
    run = tmp_path / "run"
    judge = "http://127.0.0.1:9/v1#m"
    line = f"eval {bench} --model {GYM} --judge {judge} --max-cost 1 --out {run}"
    assert main(line.split()) == 2
    assert "the price of" in capsys.readouterr().err
    assert not run.exists()


def test_an_endpoint_that_refuses_is_said_in_words(bench: Path, tmp_path: Path, capsys):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1#m"
    assert (
        main(f"eval {bench} --model {url} --judge {GYM} --limit 1 --out {tmp_path / 'r'}".split())
        == 1
    )
    err = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in err
    assert "Traceback" not in err


def test_unknown_options_exit_with_2():
    with pytest.raises(SystemExit) as stop:
        main(["eval", "--nonsense"])
    assert stop.value.code == 2


def test_no_command_shows_the_help_and_exits_with_2(capsys):
    assert main([]) == 2
    assert "bench" in capsys.readouterr().err


def test_ctrl_c_stops_cleanly_and_says_how_to_resume(bench: Path, tmp_path: Path):
    script = tmp_path / "slow.py"
    script.write_text(
        "import asyncio, pathlib\n"
        "async def reply(call):\n"
        f"    pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "    await asyncio.sleep(0.2)\n"
        "    return {'justification': 'x', 'score': 3} if call['schema'] else 'an answer'\n"
    )
    run = tmp_path / "run"
    line = f"eval {bench} --model scripted:{script} --judge scripted:{script} --concurrency 1 --out {run}"
    process = subprocess.Popen(
        [sys.executable, "-m", "personae.cli", *line.split()], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"personae resume {run}" in err
    assert "Traceback" not in err
    assert main(["resume", str(run), "--trust-scripts"]) == 0


def test_the_demo_with_nonsense_in_the_models_place_shows_missing_scores(tmp_path, capsys):
    fool = tmp_path / "fool.py"
    fool.write_text(
        "def reply(call):\n"
        "    return {'logprobs': [-1.0]} if call['kind'] == 'score' else 'bla bla'\n"
    )
    out = tmp_path / "demo"
    assert main(["demo", "--model", f"scripted:{fool}", "--out", str(out), "--json"]) == 0
    found = document(capsys)
    (model,) = found["models"]
    assert model["persona_score"]["mean"] is None
    assert model["persona_score"]["missing"] == 1.0
    assert found["shortfalls"]
    assert found["calls"]["failed"] > 0
    assert {j["model"]: j["audit"] for j in found["judges"]}[f"scripted:{fool}"] == "failed"


def test_the_demo_of_a_sensible_model_has_two_characters_and_five_tasks(tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--model", GYM, "--out", str(out), "--json"]) == 0
    found = document(capsys)
    (model,) = found["models"]
    assert (model["n_answers"], model["persona_score"]["n"]) == (10, 2)
    assert model["lift"] is not None
    assert found["agreement"] is None
    assert (out / "audits.json").is_file()
    assert "data/demo/demo_benchmark.jsonl" in (out / "report.html").read_text()
    page = (out / "report.html").read_text()
    assert 'id="play-1"' in page
    assert "The lamp has gone out" in page


def test_an_audit_given_as_a_run_is_told_where_it_goes(bench: Path, tmp_path: Path, capsys):
    run, audit = tmp_path / "run", tmp_path / "audit"
    assert main(f"eval {bench} --model {GYM} --judge {GYM} --out {run}".split()) == 0
    assert main(f"audit --judge {GYM} --answers {run} --limit 4 --out {audit}".split()) == 0
    assert main(["report", str(audit)]) == 2
    assert f"--audit {audit}" in capsys.readouterr().err


def test_the_scene_of_a_demo_is_not_rated_over_the_results_of_its_interview(tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--model", GYM, "--out", str(out), "--json"]) == 0
    before = (out / "results.jsonl").read_bytes()
    assert main(["rate", str(out), "--judge", GYM]) == 2
    assert "a run of 'demo'" in capsys.readouterr().err
    assert (out / "results.jsonl").read_bytes() == before
