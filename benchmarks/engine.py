"""The calling core against a stub endpoint in a process of its own, beside its rivals.

Ours is the whole product: pipeline, prompts, client, limiter, journal on. The rivals are Inspect AI
(an evaluation framework) and the plain `openai` SDK with a semaphore (no journal, prompts built
beforehand). Every variant runs in a fresh process; what is measured is wall time over the limit
(calls x latency / slots), CPU of the client process per call, its peak memory.

    python benchmarks/engine.py                     all that issue A6 names
    python benchmarks/engine.py --quick             a quarter of the calls
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stub_server import RunningStub, prose, start_stub

JUDGES = 3  # with the answer, four calls a question
FILL = 1500  # characters per exemplar: a judge's prompt is about 10 KB


def synthetic(questions: int):
    from personae.records import Benchmark, Persona, Question, Task

    people = tuple(
        Persona(id=f"p{n}", description=f"Person {n}, {prose(n, 200)}")
        for n in range(max(2, questions // 50))
    )
    asked = tuple(
        Question(
            id=f"q{n}",
            persona_id=people[n % len(people)].id,
            task=list(Task)[n % 5],
            text=f"{n}: {prose(n, 150)}",
            exemplars=tuple(prose(n * 5 + s, FILL) for s in range(5)),
        )
        for n in range(questions)
    )
    return Benchmark(personas=people, questions=asked)


def ours(url: str, calls: int, slots: int, timeout: float) -> dict:
    import personae.models.wire  # noqa: F401  (the rivals' imports are not on the clock either)
    from personae.journal.flow import run_sync
    from personae.session import Options
    from personae.stages import evaluate_benchmark

    bench = synthetic(calls // (JUDGES + 1))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        begin, cpu = time.perf_counter(), time.process_time()
        done = run_sync(
            evaluate_benchmark(
                bench,
                run,
                [f"{url}#m"],
                [f"{url}#j{n}" for n in range(JUDGES)],
                options=Options(concurrency=slots, timeout=timeout),
            )
        )
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        scored = sum(row.score is not None for row in done.rows)
        failed = sum(row.failure is not None for row in done.rows)
        size = (run / "journal.sqlite").stat().st_size
    return {"wall": wall, "cpu": cpu, "scored": scored, "failed": failed, "journal": size}


def prompts(calls: int) -> list[list[dict]]:
    """The messages that ours sends, built beforehand."""
    from personae.judging.judge import verdict_call
    from personae.judging.rubrics import rubric_set
    from personae.prompts import render

    bench = synthetic(calls // (JUDGES + 1))
    rubrics = rubric_set("en")
    people = {p.id: p for p in bench.personas}
    built = []
    for q in bench.questions:
        person = people[q.persona_id]
        built.append(render("answer", "en", persona=person.description, question=q.text))
        for n in range(JUDGES):
            call = verdict_call(f"j{n}", rubrics, person, q, prose(n, 300), language="en")
            built.append(call.messages)
    return [[{"role": m.role, "content": m.content} for m in messages] for messages in built]


def timed(work, calls: int) -> dict:
    """Run a coroutine that returns how many calls it answered."""
    begin, cpu = time.perf_counter(), time.process_time()
    scored = asyncio.run(work)
    return {
        "wall": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "scored": scored,
        "failed": calls - scored,
    }


def sdk(url: str, calls: int, slots: int, timeout: float, *, aiohttp: bool = False) -> dict:
    from openai import AsyncOpenAI, DefaultAioHttpClient

    todo = prompts(calls)

    async def work() -> int:
        client = AsyncOpenAI(
            base_url=url,
            api_key="x",
            max_retries=5,
            timeout=timeout,
            http_client=DefaultAioHttpClient() if aiohttp else None,
        )
        free = asyncio.Semaphore(slots)

        async def one(messages) -> int:
            async with free:
                reply = await client.chat.completions.create(model="m", messages=messages)
                return int(reply.choices[0].message.content is not None)

        done = await asyncio.gather(*(one(m) for m in todo))
        await client.close()
        return sum(done)

    return timed(work(), calls)


def bare(url: str, calls: int, slots: int, timeout: float) -> dict:
    """What the machine allows: aiohttp and JSON, a semaphore, nothing kept or checked."""
    import aiohttp

    todo = prompts(calls)

    async def work() -> int:
        free = asyncio.Semaphore(slots)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(messages) -> int:
                async with (
                    free,
                    session.post(
                        f"{url}/chat/completions", json={"model": "m", "messages": messages}
                    ) as reply,
                ):
                    return int("choices" in json.loads(await reply.read()))

            return sum(await asyncio.gather(*(one(m) for m in todo)))

    return timed(work(), calls)


def inspect(url: str, calls: int, slots: int, timeout: float) -> dict:
    from inspect_ai import Task, eval  # noqa: A004
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import (
        ChatMessageSystem,
        ChatMessageUser,
        get_model,
    )
    from inspect_ai.solver import generate

    todo = prompts(calls)
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser}
    data = MemoryDataset(
        [
            Sample(input=[kinds[m["role"]](content=m["content"]) for m in messages])
            for messages in todo
        ]
    )
    model = get_model("openai-api/stub/m", base_url=url, api_key="x")
    with tempfile.TemporaryDirectory() as folder:
        begin, cpu = time.perf_counter(), time.process_time()
        (log,) = eval(
            Task(dataset=data, solver=generate()),
            model=model,
            log_dir=folder,
            display="none",
            max_samples=slots * 4,
            max_connections=slots,
        )
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        good = len(log.samples or ()) if log.status == "success" else 0
    return {"wall": wall, "cpu": cpu, "scored": good, "failed": calls - good}


VARIANTS = {
    "ours": ours,
    "bare aiohttp": bare,
    "openai SDK": sdk,
    "openai SDK, aiohttp": lambda *a: sdk(*a, aiohttp=True),
    "Inspect AI": inspect,
}


def child(args: argparse.Namespace) -> None:
    """One variant in this process; prints its measurements."""
    import contextlib

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.redirect_stdout(sys.stderr):
        found = VARIANTS[args.variant](args.url, args.calls, args.slots, args.timeout)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({**found, "rss_mb": peak / 1024, "rss_before_mb": base / 1024}))


def measure(
    stub: RunningStub, variant: str, calls: int, slots: int, timeout: float = 120.0
) -> dict:
    stub.configure(reset=True)
    result = subprocess.run(
        [
            sys.executable,
            __file__,
            "--variant",
            variant,
            "--url",
            stub.url,
            "--calls",
            str(calls),
            "--slots",
            str(slots),
            "--timeout",
            str(timeout),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        print(result.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{variant} failed")
    return {**json.loads(result.stdout.strip().splitlines()[-1]), "stub": stub.stats()}


def row(name: str, found: dict, calls: int, limit: float) -> str:
    stats = found["stub"]
    return (
        f"| {name} | {calls:,} | {found['wall']:.1f} | {found['wall'] / limit:.2f} | "
        f"{found['cpu'] * 1000 / calls:.2f} | {found['rss_mb']:.0f} | {stats['rejected_429']} | "
        f"{found['failed']} |"
    )


HEAD = (
    "| variant | calls | wall s | over the limit | CPU ms/call | peak MB | 429s | failed |\n"
    "|---|---|---|---|---|---|---|---|"
)


def repeated(times: int, *args, **kwargs) -> dict:
    """The run with the median wall time."""
    runs = [measure(*args, **kwargs) for _ in range(times)]
    runs.sort(key=lambda r: r["wall"])
    middle = runs[len(runs) // 2]
    return {**middle, "cpu": statistics.median(r["cpu"] for r in runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--url")
    parser.add_argument("--calls", type=int, default=8000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.variant:
        child(args)
        return
    calls = 2000 if args.quick else 8000
    few = 1000 if args.quick else 2000  # the slow rival gets fewer; its ratios are what counts
    print(f"## 50 ms, 64 slots, 429 beyond; median of {args.repeats}\n\n{HEAD}")
    with start_stub(latency=0.05, slots=64) as stub:
        limit = calls * 0.05 / 64
        plain = repeated(args.repeats, stub, "ours", calls, 64)
        print(row("ours", plain, calls, limit), flush=True)
        for rival in ("bare aiohttp", "openai SDK, aiohttp", "openai SDK"):
            print(row(rival, measure(stub, rival, calls, 64), calls, limit), flush=True)
        print(
            row("Inspect AI", measure(stub, "Inspect AI", few, 64), few, few * 0.05 / 64),
            flush=True,
        )
        double = measure(stub, "ours", 2 * calls, 64)
        print(row("ours, twice the calls", double, 2 * calls, 2 * limit), flush=True)
        print(f"\njournal: {plain['journal'] / calls:,.0f} bytes a call on disk")
    print(f"\n## 1 s, 512 slots\n\n{HEAD}")
    with start_stub(latency=1.0, slots=512) as stub:
        limit = calls * 1.0 / 512
        print(row("ours", measure(stub, "ours", calls, 512), calls, limit), flush=True)
        found = measure(stub, "openai SDK, aiohttp", calls, 512)
        print(row("openai SDK, aiohttp", found, calls, limit), flush=True)
    print(f"\n## 2 % each of 500s, hangs, cut bodies, malformed verdicts; time-out 1 s\n\n{HEAD}")
    with start_stub(latency=0.05, slots=64) as stub:
        limit = calls * 0.05 / 64
        clean = measure(stub, "ours", calls, 64, 1.0)
        print(row("ours, no faults", clean, calls, limit), flush=True)
        stub.configure(share_500=0.02, share_hang=0.02, share_cut=0.02, share_malformed=0.02)
        bad = measure(stub, "ours", calls, 64, 1.0)
        print(row("ours, faults", bad, calls, limit), flush=True)
        print(f"\nwith faults over without: {bad['wall'] / clean['wall']:.2f}")
        print(f"faults served: {bad['stub']['faults']}; scored {bad['scored']:,}")


if __name__ == "__main__":
    main()
