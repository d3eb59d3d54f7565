"""Time to the first token after another character takes over (issue C8).

The product's generator over random weights of SmolLM2-135M's shape, blocks of rank 8 on all linear
layers, one torch thread. A dialogue of eight characters, 64 tokens a turn; then another of them
speaks, and the header of its turn (six tokens) is new. In mode `speaker` everybody's tokens stand
under their own blocks, so the cast has one cache and the header alone is computed. In mode `full` a
character reads all of it under its own blocks: at its first turn the whole history, and when its
cache is kept, what was said since it last spoke (seven turns).

    python benchmarks/cast_switch.py [--dtypes float32 bfloat16]

The first token is checked: the same prompt without any kept cache must give the same one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from cast_rivals import (
    ALPHA,
    NAMES,
    RANK,
    SHAPES,
    Clock,
    Reading,
    fast_bfloat16,
    fill,
    generator_of,
    median,
    model_of,
    table,
    twin,
)

from personae.cast.generate import Prompt, Wanted
from personae.cast.stacked import StackedLoRA

TURN, HEADER = 64, 6
GOAL = 9.0
SPEAKER, FULL, KEPT = (
    "mode speaker, one cache for all",
    "mode full, all read again",
    "mode full, a cache each, seven turns",
)


def first_token(generator: Any, ids: Sequence[int], whose: Sequence[str], who: str) -> int:
    """The next token after the ids, the last `HEADER` of which open `who`'s turn."""
    prompt = Prompt(tuple(ids), tuple(whose))
    reply = generator.run([Wanted(prompt, who, max_tokens=1, temperature=0)])[0]
    return int(reply.ids[0])


def measure(
    generator: Any, history: int, vocabulary: int, switches: int
) -> tuple[dict[str, list[Reading]], int]:
    """Readings by mode, and how many first tokens differ from those without a kept cache."""
    draw = torch.Generator().manual_seed(history)
    ids = torch.randint(vocabulary, (history,), generator=draw).tolist()
    header = torch.randint(vocabulary, (HEADER,), generator=draw).tolist()
    said = [NAMES[t // TURN % len(NAMES)] for t in range(history)]
    next_ones = [NAMES[(history // TURN + n) % len(NAMES)] for n in range(switches)]
    found: dict[str, list[Reading]] = {}
    wrong = 0

    def timed(name: str, whose: Sequence[str], who: str, text: Sequence[int]) -> int:
        clock = Clock("cpu")
        token = first_token(generator, text, whose, who)
        clock.lap()
        found.setdefault(name, []).append(clock.laps[0])
        return token

    first_token(generator, ids, said, said[-1])  # the cast has heard the history
    spoken = [timed(SPEAKER, [*said, *[w] * HEADER], w, [*ids, *header]) for w in next_ones]
    for who, token in zip(next_ones, spoken, strict=True):
        generator.forget()
        wrong += token != first_token(generator, [*ids, *header], [*said, *[who] * HEADER], who)
    for who in next_ones[: max(1, switches // 2)]:
        generator.forget()
        timed(FULL, [who] * (history + HEADER), who, [*ids, *header])
        since = history - (len(NAMES) - 1) * TURN
        if since > TURN:
            generator.forget()
            first_token(generator, ids[:since], [who] * since, who)
            timed(KEPT, [who] * (history + HEADER), who, [*ids, *header])
    generator.forget()
    return found, wrong


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtypes", nargs="*")
    parser.add_argument("--histories", nargs="*", type=int, default=[256, 1024])
    parser.add_argument("--switches", type=int, default=5)
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # Without it in hardware bfloat16 is slower than float32 and nobody would take it.
    dtypes = args.dtypes or ["float32", *(["bfloat16"] if fast_bfloat16() else [])]
    print(f"one torch thread, torch {torch.__version__}; bfloat16 in hardware: {fast_bfloat16()}")
    shape = SHAPES[args.shape]
    for dtype in dtypes:
        model = model_of(shape, dtype=getattr(torch, dtype))
        own = twin(model)
        stack = StackedLoRA(own, NAMES, rank=RANK, alpha=ALPHA)
        fill(stack)
        generator = generator_of(own, stack, {n: {n: 1.0} for n in NAMES})
        for history in args.histories:
            print(f"\nafter {history} tokens, {dtype}", flush=True)
            found, wrong = measure(generator, history, shape.vocabulary, args.switches)
            table(found, FULL)
            print(f"  first tokens that differ without a kept cache: {wrong} of {args.switches}")
            if wrong and dtype == "float32":
                raise SystemExit("a kept cache changes what is said")
            ratio = median(found[FULL]) / median(found[SPEAKER])
            reached = "" if history < 1024 else "  reached" if ratio >= GOAL else "  missed"
            goal = f"goal {GOAL}x at 1,024" if history >= 1024 else ""
            token = 2 * shape.layers * shape.kv_heads * (shape.hidden // shape.heads)
            size = token * history * getattr(torch, dtype).itemsize / 2**20
            print(f"  speaker against full: {ratio:.1f}x on the wall  {goal}{reached}")
            print(f"  keys and values (computed): {size:.0f} MiB against {len(NAMES)} times that")
        generator.close()


if __name__ == "__main__":
    main()
