"""Eight characters answer at once: ours against PEFT, Neeko's gate and the bare model (issue C8).

Random weights of SmolLM2-135M's shape, blocks of rank 8 on all linear layers, a prompt of 96 tokens
and 24 new ones each, greedy, one torch thread. All run over one and the same base and bear the same
blocks; ours, in a bare loop as all others and in the product's generator, must say, token for token, what PEFT says with `set_adapter` (in float32 the run fails
otherwise; in bfloat16 the share is told). Rounds are interleaved; CPU seconds of the process, wall.

    python benchmarks/cast_decode.py [--dtypes float32 bfloat16] [--rounds 3] [--shared]

`--shared`: every character speaks through the shared block as well (protocol personae), which PEFT
does with an adapter of twice the rank; here ours alone is timed so, against its plain form.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from cast_rivals import (
    ALPHA,
    NAMES,
    RANK,
    SHAPES,
    DenseGate,
    Reading,
    as_dense_gate,
    as_peft,
    fast_bfloat16,
    fill,
    generator_of,
    greedy,
    interleaved,
    median,
    model_of,
    one_by_one,
    table,
    twin,
)
from torch import Tensor

from personae.cast.generate import Prompt, Wanted
from personae.cast.stacked import StackedLoRA

OURS, BASE = "ours, mixed batch", "the base without LoRA"
PRODUCT = "ours, the product's generator"
SWITCHING, BY_NAME = "PEFT set_adapter, one after the other", "PEFT adapter_names, mixed batch"
DENSE = "Neeko's dense gate as released"
GOALS = {
    "float32": {SWITCHING: 3.0, BY_NAME: 1.4, DENSE: 1.8, BASE: 0.92},
    "bfloat16": {SWITCHING: 3.0, BY_NAME: 1.65, DENSE: 1.4, BASE: 0.88},
}
"""research/lora.md, section 7: at least so many times as fast."""


def contenders(
    model: torch.nn.Module, ids: Tensor, new: int, *, shared: bool
) -> dict[str, Callable[[], Tensor]]:
    """Ways to answer the same prompts, over the same base, with the same blocks."""
    ours = twin(model)
    stack = StackedLoRA(ours, ["shared", *NAMES], rank=RANK, alpha=ALPHA)
    fill(stack)
    state = {key: value[1:] for key, value in stack.state().items()}
    roles = torch.randn(
        len(NAMES), DenseGate.EMBEDDING, generator=torch.Generator().manual_seed(5)
    ).to(next(model.parameters()).dtype)
    gated, _ = as_dense_gate(twin(model), state, roles)
    rival = as_peft(twin(model), state, NAMES)

    def mixed(more: dict[str, float]) -> Tensor:
        with stack.speaking(stack.weights([{**more, n: 1.0} for n in NAMES])):
            return greedy(ours, ids, new)

    work: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: mixed({}),
        SWITCHING: lambda: one_by_one(rival, ids, new, NAMES),
        BY_NAME: lambda: greedy(rival, ids, new, adapter_names=list(NAMES)),
        DENSE: lambda: greedy(gated, ids, new),
        BASE: lambda: greedy(model, ids, new),
    }
    generator = generator_of(ours, stack, {n: {n: 1.0} for n in NAMES})
    wanted = [
        Wanted(Prompt(tuple(row), (name,) * len(row)), name, max_tokens=new, temperature=0)
        for row, name in zip(ids.tolist(), NAMES, strict=True)
    ]

    def whole() -> Tensor:
        generator.forget()
        return torch.tensor([reply.ids for reply in generator.run(wanted)])

    work[PRODUCT] = whole
    if shared:
        work["ours, with the shared block"] = lambda: mixed({"shared": 1.0})
    return work


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtypes", nargs="*", choices=GOALS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--prompt", type=int, default=96)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--shared", action="store_true")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # Without it in hardware bfloat16 is slower than float32 and nobody would take it.
    dtypes = args.dtypes or ["float32", *(["bfloat16"] if fast_bfloat16() else [])]
    print(f"one torch thread, torch {torch.__version__}; bfloat16 in hardware: {fast_bfloat16()}")
    shape = SHAPES[args.shape]
    for dtype in dtypes:
        print(f"\n8 x {args.prompt}+{args.new}, {dtype}", flush=True)
        model = model_of(shape, dtype=getattr(torch, dtype))
        ids = torch.randint(
            shape.vocabulary,
            (len(NAMES), args.prompt),
            generator=torch.Generator().manual_seed(4),
        )
        work = contenders(model, ids, args.new, shared=args.shared)
        # The check is the warm-up of the two that it compares.
        ours, product, alone, base = (work[n]() for n in (OURS, PRODUCT, SWITCHING, BASE))
        same = min(float((one == alone).float().mean()) for one in (ours, product))
        print(f"  tokens as PEFT with set_adapter: {same:.4f}", end="")
        print(f" (as the bare base: {float((base == alone).float().mean()):.4f})")
        if dtype == "float32" and same < 1:
            raise SystemExit("a mixed batch does not say what each character says alone")
        found: dict[str, list[Reading]] = interleaved(work, "cpu", rounds=args.rounds, warm=0)
        table(found, SWITCHING)
        mine = median(found[OURS], cpu=True)
        for name, goal in GOALS[dtype].items():
            ratio = median(found[name], cpu=True) / mine
            print(
                f"  ours against {name:<42} {ratio:5.2f}x"
                f"  goal {goal}: {'reached' if ratio >= goal else 'missed'}"
            )


if __name__ == "__main__":
    main()
