"""Is a character's own block worth having? Held-out likelihood on Neeko's six characters (issue C9).

Base, one shared LoRA, isolated blocks, shared + own, all with the same data and budget; then each
role left out of the cast in turn: what fusion makes of it without training, and what expansion
does. The protocol is docs/cast-quality.md. Data and weights are not ours to ship: give their place.

    python benchmarks/cast_quality.py --out results.jsonl [--base local|DIR] [--data DIR]
        [--part main leave-one-out] [--seeds 0 1 2] [--methods ...] [--jobs N] [--minutes M]
    python benchmarks/cast_quality.py --report results.jsonl...     tables of what is there

Results are appended as they come; what is in the file is not run again, so a run can be cut short
(`--minutes`) and gone on with. `--smoke` takes toy sizes, to see that all parts work.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from quality_plan import METHODS, Job, Protocol, next_jobs
from quality_tables import tables

from personae.errors import InputError, PersonaeError, UsageError
from personae.records.files import read_jsonl

DATA = Path(os.environ.get("PERSONAE_DATA", Path(__file__).parents[2] / "shared" / "data"))
SMOKE = Protocol(
    rank=2,
    tokens=120,
    rates=(1e-3, 2e-3),
    edges=0,
    shares=(0.5, 0.25),
    new_rates=(1e-3, 2e-3),
    development=1,
    samples=3,
    evaluations=6,
    max_tokens=1024,
    precision="float32",
)

_bench: Any = None
"""Of a worker process: what it loaded when it began."""


def begin(base: str, data: Path, protocol: Protocol, device: str | None) -> None:
    """Load the base and the data, once a process."""
    global _bench  # noqa: PLW0603
    from quality_runs import Bench

    _bench = Bench(base, data, protocol, device=device)


def do(job: Job) -> dict[str, Any]:
    """A job's result, or `failed` and why: a failure is told, and is no result."""
    try:
        return {**_bench.run(job), **_bench.about()}
    except PersonaeError as error:
        return {"key": job.key, "failed": str(error)}
    except Exception:  # noqa: BLE001  (out of memory, say: the other jobs go on)
        return {"key": job.key, "failed": traceback.format_exc()}


class Results:
    """The file of results; one process writes it.

    Raises:
        InputError: a line is not a result, or of another protocol, base or data.
    """

    def __init__(self, path: Path, protocol: Protocol) -> None:
        self.path, self.done = path, dict[str, dict[str, Any]]()
        if path.exists():
            self.done = read_results([path])
        for key, result in self.done.items():
            if result["protocol"] != protocol.to_dict():
                raise InputError(
                    f"{key} was run under another protocol",
                    path=path,
                    mend="Give the same options, or another --out",
                )

    def add(self, result: dict[str, Any]) -> None:
        """Append a result."""
        for other in self.done.values():
            for what in ("base", "data"):
                if other[what] != result[what]:
                    raise InputError(f"holds results of another {what}", path=self.path)
            break
        self.done[result["key"]] = result
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


def read_results(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """All results of files by key.

    Raises:
        InputError: a line is no result.
    """
    found = {}
    for path in paths:
        for number, value in read_jsonl(path):
            if not {"key", "job", "protocol", "base", "data"} <= value.keys():
                raise InputError("no result of this benchmark", path=path, place=f"line {number}")
            found[value["key"]] = value
    return found


Wanted = Callable[[Mapping[str, Mapping[str, Any]]], list[Job]]


def run(
    results: Results, wanted: Wanted, perform: Iterator[Any] | Any, *, minutes: float | None
) -> list[dict[str, Any]]:
    """Do what is wanted until nothing is, or the time is up; what failed comes back.

    Args:
        wanted: the jobs that can run, of what is done.
        perform: has `submit(job)` to a future, and `room`: how many jobs at a time.
        minutes: no job begins that would hardly end within them.
    """
    began = time.monotonic()
    under_way: dict[Future[dict[str, Any]], Job] = {}
    failed: list[dict[str, Any]] = []
    longest = 0.0
    while True:
        left = float("inf") if minutes is None else minutes * 60 - (time.monotonic() - began)
        out_of_time = left < 1.2 * longest or left <= 0
        busy = {job.key for job in under_way.values()} | {one["key"] for one in failed}
        for job in wanted(results.done):
            if out_of_time or len(under_way) >= perform.room:
                break
            if job.key not in busy:
                busy.add(job.key)
                under_way[perform.submit(job)] = job
        if not under_way:
            return failed
        ended, _ = wait(under_way, timeout=max(1.0, left), return_when=FIRST_COMPLETED)
        if not ended and left <= 0:
            print(f"time is up; {len(under_way)} jobs are given up", flush=True)
            return failed
        for future in ended:
            job = under_way.pop(future)
            result = future.result()
            if "failed" in result:
                failed.append(result)
                print(f"FAILED {job.key}\n{result['failed']}", file=sys.stderr, flush=True)
                continue
            results.add(result)
            longest = max(longest, result["seconds"])
            told = result.get("development")
            told = f"{told:.4f}" if told else json.dumps(result.get("rates", ""))
            print(
                f"{time.monotonic() - began:6.0f} s  {result['seconds']:6.1f} s  {job.key}  {told}",
                flush=True,
            )


class Here:
    """One job after the other, in this process."""

    room = 1

    def __init__(self, *loaded: Any) -> None:
        begin(*loaded)

    def submit(self, job: Job) -> Future[dict[str, Any]]:
        """Done when it comes back."""
        future: Future[dict[str, Any]] = Future()
        future.set_result(do(job))
        return future

    def close(self) -> None:
        """Nothing is open."""


class Workers:
    """Several processes on one device: small steps leave most of it idle."""

    def __init__(self, count: int, *loaded: Any) -> None:
        self.room = count
        # Spawned: CUDA cannot be forked.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, context, initializer=begin, initargs=loaded)

    def submit(self, job: Job) -> Future[dict[str, Any]]:
        """To whichever process is free."""
        return self._pool.submit(do, job)

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process in list(self._pool._processes.values()):
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, nargs="+", help="tables of these results, no run")
    parser.add_argument("--out", type=Path, help="results, appended to")
    parser.add_argument("--base", default="local", help="local, or a Hugging Face directory")
    parser.add_argument("--data", type=Path, default=DATA / "neeko", help="the folder neeko")
    parser.add_argument("--device")
    parser.add_argument("--part", nargs="+", choices=("main", "leave-one-out"),
                        default=("main", "leave-one-out"))  # fmt: skip
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--no-paper", action="store_true", help="no fusion of isolated blocks")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--minutes", type=float, help="stop after so many; go on later")
    parser.add_argument("--tokens", type=int, help="supervised tokens a role")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"))
    parser.add_argument("--smoke", action="store_true", help="toy sizes")
    return parser.parse_args(argv)


def protocol_of(given: argparse.Namespace) -> Protocol:
    """The protocol that the options make."""
    from dataclasses import replace

    chosen = {k: getattr(given, k) for k in ("tokens", "rank", "precision")}
    return replace(
        SMOKE if given.smoke else Protocol(), **{k: v for k, v in chosen.items() if v is not None}
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    if given.report:
        print(tables(read_results(given.report)))
        return 0
    if given.out is None:
        raise UsageError("give --out FILE for the results, or --report FILE")
    from quality_data import load

    protocol = protocol_of(given)
    results = Results(given.out, protocol)
    roles = load(given.data, development=protocol.development)
    for role in roles.values():
        print(
            f"{role.name}: {len(role.train)} dialogues to train on, {len(role.development)} to "
            f"tune on, {len(role.held)} answers held out; refused: {dict(role.refused) or 'none'}"
        )

    def wanted(done: Mapping[str, Mapping[str, Any]]) -> list[Job]:
        return next_jobs(
            done,
            tuple(roles),
            protocol,
            parts=given.part,
            methods=given.methods,
            seeds=given.seeds,
            paper=not given.no_paper,
        )

    loaded = (given.base, given.data, protocol, given.device)
    perform = Here(*loaded) if given.jobs == 1 else Workers(given.jobs, *loaded)
    try:
        failed = run(results, wanted, perform, minutes=given.minutes)
    except BrokenProcessPool:
        print("a worker process died (out of memory?); what is done is kept", file=sys.stderr)
        return 1
    finally:
        perform.close()
    print(tables(results.done))
    left = wanted(results.done)
    print(f"\n{len(left)} jobs are left that can run now" if left else "\nall is done")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PersonaeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
