"""What a play costs: calls, dependent steps, prompt tokens; and how well many scenes overlap.

(a) Scenes of 2, 3 and 4 characters, three rounds, both protocols, at an interaction rate of 0.7, on
a model with a clock of its own (`lockstep.py`): dependent steps are the ticks that a scene takes
with as many slots as it wants. Beside them the figures of the released CharacterBox code
(research/upstream.md B5: a fake model, the same rate).

(b) 64 scenes at once against the stub endpoint, through the whole program, journal included: wall
over the limit, which is the larger of the longest chain x latency and calls x latency / slots.

    python benchmarks/play.py [--seeds 20] [--scenes 64] [--latency 1] [--slots 512]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import statistics
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from lockstep import Lockstep
from stub_server import prose, start_stub

from personae.journal.store import Journal
from personae.play_stage import play_scenes
from personae.records import Call, Environment, Scene, SceneCharacter
from personae.records.tokens import estimate_tokens
from personae.session import JOURNAL, Options
from personae.world.engine import PAPER_SAMPLING, PERSONAE_SAMPLING, PlayPlan, play_scene
from personae.world.memory import MemoryStream

UPSTREAM = {2: (68.5, 3.7, 25.8), 3: (108.4, 6.6, 38.1), 4: (134.4, 8.8, 46.2)}
"""Released code: calls; turns that were taken, for whoever reacts loses its own; the least depth."""
RATE_PERCENT = 70
ROUNDS = 3
LENGTHS = {
    "plan": 180, "action": 200, "speech": 160, "belief": 220, "desire": 180, "intention": 200,
    "influence": 180, "result": 240, "position": 70, "state": 120,
}  # fmt: skip
"""Characters of each text of a reply: those of Table 6 of the paper come to about as much."""
NAMES = ("Ada", "Bertram", "Clarice", "Desmond")


def scene(size: int, number: int = 0) -> Scene:
    """A scene about as long as the extracted ones of the released data."""
    seed = number * 1009 + size
    return Scene(
        id=f"bench/{size}/{number}",
        title="Benchmark",
        event=prose(seed, 90),
        environment=Environment(time="evening", location=prose(seed, 40), description=prose(seed, 350)),
        characters=tuple(
            SceneCharacter(
                name=name,
                description=prose(seed + place * 7, 400),
                position=prose(seed + place * 11, 60),
                state=prose(seed + place * 13, 100),
                goal=prose(seed + place * 17, 80),
            )
            for place, name in enumerate(NAMES[:size])
        ),
    )  # fmt: skip


def narrated(seed: int, turns: int) -> Any:
    """Replies of usual length; over seeds, acts affect somebody else at the rate exactly.

    Args:
        turns: of a scene; scene after scene the rate goes on where the last left it.
    """
    turn = count(seed * turns)

    def draw(call: Call, what: str) -> int:
        text = f"{seed}/{what}/{call.meta}/{call.messages[-1].content}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])

    def value(call: Call, name: str, part: dict[str, Any], actor: str) -> Any:
        number = draw(call, name)
        match name:
            case "affected":
                *others, self = part["enum"]
                n = next(turn)
                touches = (n + 1) * RATE_PERCENT // 100 > n * RATE_PERCENT // 100
                return others[number % len(others)] if touches else self
            case "perceived_by":
                return part["items"]["enum"]
            case "manner":
                return "open"
            case "concluded":
                return False
            case "to":
                return part["items"]["enum"][:1]
            case "changes":
                fields = part["items"]["properties"]
                return [
                    {
                        k: actor if k == "who" else prose(number + len(k), LENGTHS.get(k, 60))
                        for k in fields
                    }
                ]
            case "environment" if part["type"] == "object":
                return {"time": "", "location": "", "description": ""}
            case "environment":
                return prose(number, 220)
        return prose(number, LENGTHS[name])

    def reply(call: Call) -> Any:
        assert call.reply_schema is not None
        properties = call.reply_schema.body["properties"]
        actor = str(call.meta["character"])
        return {name: value(call, name, part, actor) for name, part in properties.items()}

    return reply


def shared(prompts: list[str]) -> float:
    """The share of tokens in the longest beginning that an earlier prompt of the scene has too."""
    total = same = 0
    for place, prompt in enumerate(prompts):
        longest = 0
        for earlier in prompts[:place]:
            low, high = 0, min(len(prompt), len(earlier))
            while low < high:
                middle = (low + high + 1) // 2
                if prompt[:middle] == earlier[:middle]:
                    low = middle
                else:
                    high = middle - 1
            longest = max(longest, low)
        total += estimate_tokens(prompt)
        same += estimate_tokens(prompt[:longest]) if longest else 0
    return same / total


async def one(size: int, protocol: Any, seed: int) -> dict[str, float]:
    model = Lockstep(narrated(seed, ROUNDS * size))
    plan = PlayPlan(
        characters=lambda _name, _round: "c",
        narrator=lambda _round: "n",
        rounds=ROUNDS,
        protocol=protocol,
        sampling=PAPER_SAMPLING if protocol == "paper" else PERSONAE_SAMPLING,
        memory=lambda: MemoryStream("en"),
    )
    play = (await play_scene(model, scene(size, seed), plan)).play
    assert not [e for e in play.events if e.kind == "failure"], "the script's replies stand"
    prompts = ["\n".join(m.content for m in c.messages) for c in model.calls]
    tokens = [estimate_tokens(p) for p in prompts]
    return {
        "calls": len(model.calls),
        "depth": len(model.ticks),
        "interactions": sum(e.kind == "influence" for e in play.events),
        "turns": sum(e.kind == "action" for e in play.events),
        "tokens": sum(tokens),
        "narrator": sum(t for t, c in zip(tokens, model.calls, strict=True) if c.role == "narrator"),
        "shared": shared(prompts),
        "steps": Counter(str(c.meta["step"]) for c in model.calls),
    }  # fmt: skip


async def costs(seeds: int) -> None:
    print(f"(a) {ROUNDS} rounds, {seeds} scenes each; tokens are estimates (4 letters a token)\n")
    print("| characters | protocol | turns | upstream | interactions a turn | calls | upstream | saved | dependent steps "
          "| upstream could | prompt tokens | narrator's | in a prefix seen before |")  # fmt: skip
    print("|---" * 13 + "|")
    for size in (2, 3, 4):
        for protocol in ("personae", "paper"):
            runs = [await one(size, protocol, seed) for seed in range(seeds)]
            m = {
                k: statistics.mean(r[k] for r in runs)
                for k in ("calls", "depth", "interactions", "turns", "tokens", "narrator", "shared")
            }
            calls, turns, depth = UPSTREAM[size]
            print(
                f"| {size} | {protocol} | {m['turns']:.0f} | {turns} "
                f"| {m['interactions'] / m['turns']:.2f} | {m['calls']:.1f} "
                f"| {calls} | {1 - m['calls'] / calls:.0%} | {m['depth']:.1f} | {depth} "
                f"| {m['tokens'] / 1000:.1f} k | {m['narrator'] / m['tokens']:.0%} | {m['shared']:.0%} |"
            )  # fmt: skip


def overlap(many: int, latency: float, slots: int) -> None:
    sizes = [2] * (many // 2) + [3] * (many // 4) + [4] * (many - many // 2 - many // 4)
    scenes = [scene(size, number) for number, size in enumerate(sizes)]
    with start_stub(latency=latency, slots=slots) as stub, tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        model = f"{stub.url}#stub"
        begin, cpu = time.perf_counter(), time.process_time()
        done = asyncio.run(
            play_scenes(scenes, run, model, model, options=Options(concurrency=slots))
        )
        wall, busy = time.perf_counter() - begin, time.process_time() - cpu
        with Journal(run / JOURNAL, read_only=True) as journal:
            calls = [call for call, _ in journal.items()]
        stats = stub.stats()
    assert all(play.complete for play in done.plays)
    failures = sum(e.kind == "failure" for play in done.plays for e in play.events)
    chains: Counter[str] = Counter()
    for (
        call
    ) in calls:  # all are at one place: every call waits for the last, beliefs for each other not
        if call.meta["step"] != "belief":
            chains[str(call.meta["scene"])] += 1
    chain = max(chains.values()) + ROUNDS - 1
    limit = max(chain * latency, len(calls) * latency / slots)
    print(
        f"\n(b) {many} scenes, {len(calls)} calls, {latency:g} s latency, {slots} slots: wall {wall:.1f} s, "
        f"limit {limit:.1f} s (longest chain {chain}, {len(calls) * latency / slots:.1f} s of slots), "
        f"ratio {wall / limit:.3f}; process {busy:.1f} s CPU, peak {stats['peak_busy']} at once, "
        f"{stats['rejected_429']} rejected, {failures} replies missing"
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--latency", type=float, default=1.0)
    parser.add_argument("--slots", type=int, default=512)
    given = parser.parse_args()
    asyncio.run(costs(given.seeds))
    overlap(given.scenes, given.latency, given.slots)


if __name__ == "__main__":
    main()
