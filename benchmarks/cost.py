"""What judging costs: reusable prefixes, and exemplars paid for once (issue A6).

The share of reusable prefix is what a server's prefix cache can save: of all tokens of the judges'
prompts, those that stand in a prefix which another prompt of the run has too, each prefix computed
once (a trie over the prompts; tokens estimated from characters). The rival is the same text with
what is particular to the case put first, as prompts that begin with the answer do; the released
PersonaGym shares 256 of about 3,660 tokens between two judge prompts (7 %, research/upstream.md A5).
Exemplars are written once per question: a second model under test must cost none.

    python benchmarks/cost.py [--personas N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from itertools import pairwise
from pathlib import Path

from engine import synthetic
from stub_server import prose

from personae.interview.importers import import_personagym
from personae.journal.client import estimate_tokens
from personae.journal.store import Journal
from personae.judging.judge import verdict_call
from personae.judging.rubrics import rubric_set
from personae.models import Registry, ScriptedModel
from personae.records import Benchmark
from personae.stages import evaluate_benchmark

DATA = Path(os.environ.get("PERSONAE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def questions(personas: int) -> tuple[Benchmark, str]:
    """The first personas of the public benchmark, with exemplars of ordinary length."""
    folder = DATA / "personagym"
    if not folder.is_dir():
        return synthetic(personas * 50), "synthetic questions (the public data is absent)"
    whole = import_personagym(folder, None)
    people = whole.personas[:personas]
    ids = {p.id for p in people}
    asked = tuple(
        q.model_copy(update={"exemplars": tuple(prose(i * 5 + s, 400) for s in range(5))})
        for i, q in enumerate(whole.questions)
        if q.persona_id in ids
    )
    bench = whole.model_copy(update={"personas": people, "questions": asked})
    return bench, f"{len(people)} public personas x {len(asked) // len(people)} questions"


def shared(prompts: list[str]) -> float:
    """The share of characters that stand in a prefix of another prompt."""
    ordered = sorted(prompts)
    total = sum(map(len, ordered))
    # The longest prefix with any other prompt is the one with a neighbour in sorted order.
    common = sum(_common(one, other) for one, other in pairwise(ordered))
    return common / total


def _common(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def judge_prompts(bench: Benchmark, models: int) -> tuple[list[str], list[str]]:
    rubrics = rubric_set("en")
    people = {p.id: p for p in bench.personas}
    ours, rival = [], []
    for i, q in enumerate(bench.questions):
        for model in range(models):
            answer = prose(1000 * model + i, 700)
            call = verdict_call("j", rubrics, people[q.persona_id], q, answer, language="en")
            text = "".join(m.content for m in call.messages)
            ours.append(text)
            # The same words, the case first: answer, question and persona, then the rubric.
            rival.append("".join(reversed(text.splitlines(keepends=True))))
    return ours, rival


async def exemplar_calls(bench: Benchmark) -> list[int]:
    """Exemplar calls of a first and a second model on one benchmark."""

    def reply(call: dict) -> str | dict:
        wanted = (call["schema"] or {}).get("properties", {})
        if "1" in wanted:
            return {str(s): f"{s} for {hash(str(call['messages']))}" for s in range(1, 6)}
        return {"justification": "x", "score": 3} if wanted else "an answer"

    bare = bench.model_copy(
        update={
            "questions": tuple(q.model_copy(update={"exemplars": None}) for q in bench.questions)
        }
    )
    registry = Registry()
    registry.register("stub", lambda _id: ScriptedModel(reply))
    counts = []
    with tempfile.TemporaryDirectory() as folder:
        source: Benchmark | Path = bare
        for number in (1, 2):
            run = Path(folder) / str(number)
            await evaluate_benchmark(
                source, run, [f"stub:m{number}"], ["stub:j"], exemplars="stub:w", registry=registry
            )
            with Journal(run / "journal.sqlite", read_only=True) as journal:
                counts.append(sum(u.calls for u in journal.usage() if u.role == "exemplar_writer"))
            source = run / "benchmark.jsonl"
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--personas", type=int, default=10)
    args = parser.parse_args()
    bench, what = questions(args.personas)
    print(f"## {what}\n\n| judge prompts | tokens each | reusable prefix | rival: case first |")
    print("|---|---|---|---|")
    for models in (1, 2):
        ours, rival = judge_prompts(bench, models)
        tokens = sum(map(estimate_tokens, ours)) / len(ours)
        print(
            f"| {models} model{'s' if models > 1 else ''} | {tokens:,.0f} | {shared(ours):.1%} | "
            f"{shared(rival):.1%} |"
        )
    first, second = asyncio.run(exemplar_calls(bench))
    print(f"\nexemplar calls: first model {first:,}, second model {second:,}")


if __name__ == "__main__":
    main()
