"""kill -9 at random moments of a run, resumed each time (issue A6).

A run against the stub is killed `--kills` times at random moments, each time resumed by the same
command; it must end with the same results.jsonl as an undisturbed run. What the stub served beyond
the number of calls is what was asked again; it is held against a quarter of a second's worth of
replies per kill. `python benchmarks/kill.py`
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine import JUDGES, synthetic
from stub_server import start_stub


def command(bench: Path, run: Path, url: str) -> list[str]:
    judges = [f"{url}#judge-{n}" for n in range(JUDGES)]
    return [
        sys.executable, "-m", "personae.cli", "eval", str(bench), "--model", f"{url}#m",
        "--judge", *judges, "--out", str(run), "--json",
    ]  # fmt: skip


def quiet(line: list[str]) -> subprocess.Popen:
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    from personae.interview.benchmark_file import write_benchmark
    from personae.journal.store import Journal

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--calls", type=int, default=24_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder, start_stub(latency=0.05, slots=64) as stub:
        bench = Path(folder) / "bench.jsonl"
        write_benchmark(synthetic(args.calls // (JUDGES + 1)), bench)
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        begin = time.perf_counter()
        if quiet(command(bench, whole, stub.url)).wait():
            raise SystemExit("the undisturbed run failed")
        wall = time.perf_counter() - begin
        rate = args.calls / wall
        stub.configure(reset=True)
        kept = served = 0
        worst = total = 0
        print("| kill | after s | served | kept | asked again |\n|---|---|---|---|---|")
        done = 0
        while done < args.kills:
            process = quiet(command(bench, killed, stub.url))
            while process.poll() is None and stub.stats()["served_total"] == served:
                time.sleep(0.02)  # it is still reading its files
            # All of these together use up about half of the run.
            pause = chance.random() * wall / args.kills
            time.sleep(pause)
            if process.poll() is not None:
                raise SystemExit(f"the run ended before kill {done + 1}: give more --calls")
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(0.2)  # the stub counts what it was still sending
            stats = stub.stats()
            with Journal(killed / "journal.sqlite", read_only=True) as journal:
                now = len(journal)
            lost = (stats["served_total"] - served) - (now - kept)
            if now < kept:
                raise SystemExit("a committed reply is gone")
            served, kept = stats["served_total"], now
            worst, total, done = max(worst, lost), total + lost, done + 1
            print(f"| {done} | {pause:.2f} | {served:,} | {kept:,} | {lost} |", flush=True)
        if quiet(command(bench, killed, stub.url)).wait():
            raise SystemExit("the resumed run failed")
        served = stub.stats()["served_total"]
        same = (killed / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()
        scored = sum(
            json.loads(line)["score"] is not None
            for line in (killed / "results.jsonl").open(encoding="utf-8")
        )
    print(
        f"\n{rate:,.0f} replies a second undisturbed: a quarter of a second's worth is {rate / 4:,.0f}"
    )
    print(
        f"asked again: {total} over {args.kills} kills, at most {worst} at one; served {served:,}"
    )
    print(f"scored {scored:,}; results identical to the undisturbed run: {same}")
    if not same or worst > rate / 4:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
