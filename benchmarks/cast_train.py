"""Training eight characters at once against PEFT, one after the other (issue C8).

Random weights of SmolLM2-135M's shape (30 layers, 576, 1536; nothing is fetched), blocks of rank 8
on all linear layers, AdamW, one torch thread. Ours is the product's trainer: rows of all pooled by
length, logits only where something is to be predicted. PEFT is trained as its documentation shows:
each adapter by itself, rows in batches as they come, padded, Hugging Face's loss over all logits.
One figure is one optimiser step of all eight characters; rounds are interleaved; CPU seconds of the
process, and wall.

    python benchmarks/cast_train.py                   T = 64, T = 256, real lengths; float32
    python benchmarks/cast_train.py --dtypes float32 bfloat16 --rounds 3

Real lengths: the dialogues in Neeko's repository through PERSONAE_DATA, else drawn from their
quantiles; cut to an eighth, so that the run ends (the spread, and so the padding, stays), and four
rows a character in a step. "Top half" adapts the upper half of the layers only: less to go back
through; its quality is not told here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from cast_rivals import (
    ALPHA,
    NAMES,
    RANK,
    SHAPES,
    Reading,
    Sequential,
    Shape,
    as_peft,
    batches_of,
    fast_bfloat16,
    jointly,
    median,
    model_of,
    neeko_lengths,
    paid,
    row_of,
    table,
    twin,
)

from personae.cast.encode import Encoded
from personae.cast.stacked import StackedLoRA, linear_modules

GOALS = {
    ("T = 64", "float32"): 2.9,
    ("T = 256", "float32"): 2.4,
    ("real lengths", "float32"): 4.0,
    ("T = 64", "bfloat16"): 1.6,
    ("T = 256", "bfloat16"): 1.25,
    ("real lengths", "bfloat16"): 2.0,
}
"""Of research/lora.md, section 7: those against PEFT in float32 are for a bfloat16 base of ours, on
a processor that multiplies bfloat16; those against PEFT in bfloat16 for the same dtype."""

Rows = dict[str, list[Encoded]]


def settings(shape: Shape, divide: int) -> dict[str, tuple[Rows, int]]:
    """Rows by character, and how many of a character go into one step."""
    made: dict[str, tuple[Rows, int]] = {
        f"T = {length}": ({n: [row_of(length, 0.5, n, shape.vocabulary, 0)] for n in NAMES}, 1)
        for length in (64, 256)
    }
    count = 4
    lengths, source = neeko_lengths(count * len(NAMES), seed=7)
    real = {
        name: [
            row_of(max(8, length // divide), 0.6, name, shape.vocabulary, k)
            for k, length in enumerate(lengths[n * count : (n + 1) * count])
        ]
        for n, name in enumerate(NAMES)
    }
    made["real lengths"] = (real, count)
    print(f"real lengths: {source}, a {divide}th of each")
    return made


def measure(
    model: torch.nn.Module, rows: Rows, batch: int, rounds: int, *, halves: bool
) -> dict[str, list[Reading]]:
    """Readings by contender; one step of all characters each."""
    batches = {n: list(batches_of(rows[n], batch, "cpu")) for n in NAMES}
    real, whole = paid([b for one in batches.values() for b in one])
    print(f"  {real} tokens a step of all, {whole / real:.2f} with padding one by one")
    rival = Sequential(as_peft(twin(model), None, NAMES), NAMES)
    rival.model.train()
    everything = twin(model)
    stacks = {
        "ours": (
            everything,
            StackedLoRA(everything, NAMES, rank=RANK, alpha=ALPHA),
        )
    }
    if halves:
        upper = twin(model)
        modules = list(linear_modules(upper, "all-linear"))
        upper_half = modules[len(modules) // 2 :]
        stacks["ours, top half of the layers"] = (
            upper,
            StackedLoRA(upper, NAMES, rank=RANK, alpha=ALPHA, targets=upper_half),
        )
    found: dict[str, list[Reading]] = {}
    for _ in range(rounds):
        found.setdefault("PEFT, one by one", []).append(rival.all_roles(batches))
        for name, (own, stack) in stacks.items():
            laps = jointly(own, stack, rows, batch_rows=batch, steps=2, micro_tokens=2048)
            found.setdefault(name, []).append(laps[0])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="T = 64, T = 256, real lengths")
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--divide", type=int, default=8, help="of real lengths")
    parser.add_argument(
        "--halves", nargs="*", default=["T = 64"], help="where to time the top half"
    )
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"one torch thread, torch {torch.__version__}; bfloat16 in hardware: {fast_bfloat16()}")
    shape = SHAPES[args.shape]
    wanted = settings(shape, args.divide)
    for title, (rows, batch) in wanted.items():
        if args.only and title not in args.only:
            continue
        for dtype in args.dtypes:
            print(f"\n{title}, {dtype}", flush=True)
            model = model_of(shape, dtype=getattr(torch, dtype))
            found = measure(model, rows, batch, args.rounds, halves=title in args.halves)
            table(found, "PEFT, one by one")
            ratio = median(found["PEFT, one by one"], cpu=True) / median(found["ours"], cpu=True)
            print(
                f"  goal {GOALS[title, dtype]}x: {'reached' if ratio >= GOALS[title, dtype] else 'missed'}"
            )


if __name__ == "__main__":
    main()
