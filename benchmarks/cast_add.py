"""A new character for a loaded cast: how long, and does anybody else change? (issue C3)

Random weights of SmolLM2-135M's shape (30 layers, 576, 1536, 9 heads, 3 kv; nothing is fetched);
a shared block and eight characters of rank 8 on all linear layers, one torch thread, float32.
The goal is a hot add in under 100 ms; PEFT's `load_adapter` on the same base and with the same
block stands beside it. Then the paper's gate: what equation 8 makes of the old roles' weights.

    python benchmarks/cast_add.py [--rounds N] [--threads N] [--shape 135m]

Wall times, interleaved; on a busy machine compare within a run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from cast_rivals import ALPHA, NAMES, RANK, SHAPES, as_peft, fill, has_peft, model_of, twin
from safetensors import safe_open
from safetensors.numpy import save_file

from personae.cast.expand import hot_add
from personae.cast.forgetting import gate_drift, profile_text
from personae.cast.fuse import eq7_error, fused_weights
from personae.cast.gate import PaperRouter
from personae.cast.router import Router
from personae.cast.stacked import StackedLoRA
from personae.characters.starter import starter
from personae.records.cast import SHARED, BaseModelRef, Block, CastCharacter, CastManifest

EIGHT = (
    "sherlock-holmes", "ada-lovelace", "alice", "don-quixote",
    "sun-wukong", "zhuge-liang", "lin-daiyu", "li-qingzhao",
)  # fmt: skip
GOAL = 0.100


def timed(what: Callable[[], object]) -> float:
    before = time.perf_counter()
    what()
    return time.perf_counter() - before


def show(title: str, seconds: Sequence[float]) -> None:
    low, mid, high = min(seconds), statistics.median(seconds), max(seconds)
    print(f"  {title:<52}{mid * 1e3:9.2f} ms  ({low * 1e3:.2f} to {high * 1e3:.2f})")


def random_slot(stack: StackedLoRA, seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    made = {}
    for name, layer in stack.layers.items():
        made[f"A.{name}"] = draw.normal(0, 0.02, layer.a.shape[1:]).astype(np.float32)
        made[f"B.{name}"] = draw.normal(0, 0.02, layer.b.shape[1:]).astype(np.float32)
    return made


def logits(stack: StackedLoRA, ids: torch.Tensor, who: Sequence[str]) -> torch.Tensor:
    mixed = stack.weights([{SHARED: 1.0, name: 1.0} for name in who])
    with torch.inference_mode(), stack.speaking(mixed):
        found: torch.Tensor = stack.model(input_ids=ids, use_cache=False).logits
    return found


def adding(shape: str, rounds: int) -> None:
    model = model_of(SHAPES[shape], dtype=torch.float32)
    slots = (SHARED, *NAMES)
    stack = StackedLoRA(twin(model), slots, rank=RANK, alpha=ALPHA, spare=rounds + 1)
    fill(stack)
    state = stack.state()
    new = random_slot(stack, 7)
    size = sum(t.nbytes for t in new.values())
    print(f"\n{shape}: {len(slots)} blocks of rank {RANK}, {size / 2**20:.1f} MiB each")
    torch.manual_seed(0)
    vocabulary = SHAPES[shape].vocabulary
    one = torch.randint(0, vocabulary, (1, 24))
    both = torch.randint(0, vocabulary, (2, 24))
    before = [logits(stack, one, [name]) for name in NAMES]
    mixed = logits(stack, both, NAMES[:2])

    step = torch.randint(0, vocabulary, (1, 1))
    logits(stack, step, NAMES[:1])
    *old, joining = (starter(name) for name in EIGHT)
    router = Router.from_characters({one.name: one for one in old})
    usual, hot, first, full, read, route, peft = [], [], [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "blocks.safetensors"
        save_file({n: np.concatenate([t, new[n][None]]) for n, t in state.items()}, str(file))

        def from_file() -> dict[str, np.ndarray]:
            with safe_open(str(file), framework="np") as tensors:
                return {name: tensors.get_slice(name)[len(slots)] for name in state}

        rival = None
        if has_peft():
            rival = as_peft(twin(model), None, NAMES)
            rival.save_pretrained(folder, selected_adapters=[NAMES[0]])
        for number in range(rounds):
            usual.append(timed(lambda: logits(stack, step, NAMES[:1])))
            name = f"new {number}"
            hot.append(timed(lambda: hot_add(stack, name, new)))  # noqa: B023
            first.append(timed(lambda: logits(stack, step, [name])))  # noqa: B023
            read.append(timed(from_file))
            route.append(timed(lambda: router.with_role(joining.name, joining)))
            if rival is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    peft.append(
                        timed(lambda: rival.load_adapter(str(Path(folder) / NAMES[0]), name))  # noqa: B023
                    )
    assert np.array_equal(from_memory(stack, len(slots)), from_memory_of(new))
    now = [logits(stack, one, [name]) for name in NAMES]
    same = all(a.equal(b) for a, b in zip(before, now, strict=True))
    same_mixed = logits(stack, both, NAMES[:2]).equal(mixed)
    for number in range(max(2, rounds // 4)):
        tight = StackedLoRA(twin(model), slots, rank=RANK, alpha=ALPHA, spare=0)
        full.append(timed(lambda: hot_add(tight, f"new {number}", new)))  # noqa: B023
    show("hot add of a finished block, room for it", hot)
    show("the same, no room: all blocks move once", full)
    show("its first token after (one token's forward pass)", first)
    show("an old character's token, before", usual)
    show("reading the block out of blocks.safetensors", read)
    show("the router with one more role (the eighth)", route)
    show("all three", [a + b + c for a, b, c in zip(hot, read, route, strict=True)])
    if peft:
        show("PEFT load_adapter of such a block", peft)
        ratio = statistics.median(peft) / (statistics.median(hot) + statistics.median(read))
        print(f"  PEFT / (read and hot add): {ratio:.1f}")
    done = statistics.median(hot) < GOAL
    print(f"  under 100 ms: {'yes' if done else 'NO'} (worst {max(hot) * 1e3:.1f} ms)")
    print(f"  eight old characters' logits identical to the last bit: {same}; mixed: {same_mixed}")
    omega = [0.0, *(1 / 3 for _ in range(3)), *(0.0 for _ in range(len(NAMES) - 3))]
    print(f"  equation 7 against the exact sum, 3 random blocks: {eq7_error(state, omega):.2f}")
    if not (done and same and same_mixed):
        raise SystemExit("failed")


def from_memory(stack: StackedLoRA, number: int) -> np.ndarray:
    state = stack.state()
    return np.concatenate([state[name][number].ravel() for name in sorted(state)])


def from_memory_of(slot: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([slot[name].ravel() for name in sorted(slot)])


def choosing(rounds: int) -> None:
    """What an addition costs without the model: neighbours, and a fusion's weights."""
    *old, new = (starter(name) for name in EIGHT)
    router = Router.from_characters({one.name: one for one in old})
    manifest = CastManifest(
        version="0",
        base=BaseModelRef(id="x", sha256="0" * 64, architecture="llama"),
        rank=RANK,
        alpha=ALPHA,
        targets=("q_proj",),
        blocks=(Block(name=SHARED), *(Block(name=one.name) for one in old)),
        characters=tuple(
            CastCharacter(name=one.name, weights={SHARED: 1.0, one.name: 1.0}) for one in old
        ),
        blocks_sha256="0" * 64,
    )
    text = profile_text(new)
    near = router.neighbours(text)
    print("\nseven of the starter cast, and the eighth")
    show("neighbours of a profile", [timed(lambda: router.neighbours(text)) for _ in range(rounds)])
    show(
        "weights of the fusion (no tensor)",
        [timed(lambda: fused_weights(manifest, near)) for _ in range(rounds)],
    )


def drifting() -> None:
    """The paper's gate: the greatest omega that an old role has of its own block."""
    cast = {name: starter(name) for name in EIGHT}
    gate = PaperRouter.from_characters({name: cast[name] for name in EIGHT[:4]})
    print("\nthe paper's gate, four roles and then more (eq. 8; nothing old is trained)")
    for name in EIGHT[4:]:
        more = gate.with_role(name, cast[name])
        drift = gate_drift(gate, more, name)
        own = [one.own_after - one.own_before for one in drift]
        print(
            f"  + {name:<16} own weight of old roles {np.mean([d.own_before for d in drift]):.3f} "
            f"-> {np.mean([d.own_after for d in drift]):.3f} (worst {min(own):+.3f}), "
            f"the new one's share of theirs up to {max(d.new for d in drift):.3f}"
        )
        gate = more
    print("  ours: no gate in the layers; the weights of old characters are what they were")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="135m")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    adding(given.shape, given.rounds)
    choosing(given.rounds)
    drifting()


if __name__ == "__main__":
    main()
