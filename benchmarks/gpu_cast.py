"""A cast on one GPU: built, checked and timed in one call (issue C8; research/lora.md, section 7).

Random weights of Qwen2.5-0.5B's shape, nothing is fetched; base in bfloat16, blocks in float32.
Needs torch, transformers and pydantic; rows against PEFT need `peft` and say so where it is absent.

    PYTHONPATH=src python3 benchmarks/gpu_cast.py --out gpu_cast.json
    PYTHONPATH=src python3 benchmarks/gpu_cast.py --device cpu --tiny     a smoke test, seconds

First the checks, in float32 (training: float64) on a small shape: a slot is a plain adapter, a mixed batch says what
each character says alone, training together is training apart. A check that fails ends the run
with exit code 1 after the table. Then the times: medians of interleaved rounds after warm-ups, the
device synchronised at both ends, each rival over the same weights in the same run. What does not
fit into `--minutes` is left out and named.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cast_rivals import (
    ALPHA,
    NAMES,
    RANK,
    RATE,
    SHAPES,
    Decoder,
    DenseGate,
    Reading,
    Sequential,
    Shape,
    as_dense_gate,
    as_peft,
    batches_of,
    fill,
    greedy,
    has_peft,
    hidden_of,
    interleaved,
    jointly,
    masked,
    median,
    merged,
    model_of,
    neeko_lengths,
    one_by_one,
    padded,
    paid,
    rest,
    row_of,
    twin,
)
from torch import Tensor

from personae.cast.encode import Encoded
from personae.cast.stacked import Mix, StackedLoRA

Rows = dict[str, list[Encoded]]


@dataclass
class Report:
    """The table as it grows, and what goes to the file."""

    minutes: float
    started: float = field(default_factory=time.perf_counter)
    lines: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.minutes * 60 - (time.perf_counter() - self.started)

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:5.0f} s] {text}", flush=True)

    def check(self, name: str, value: float, most: float) -> None:
        good = value <= most
        self.say(f"check  {name}: {value:.3g} (at most {most:g}) {'ok' if good else 'FAILED'}")
        self.lines.append({"check": name, "value": value, "most": most, "ok": good})
        if not good:
            self.failed.append(name)

    def row(self, name: str, value: float, unit: str, **more: Any) -> None:
        self.say(f"       {name:<66} {value:10.4g} {unit}")
        self.lines.append({"row": name, "value": value, "unit": unit, **more})

    def ratio(self, name: str, value: float, goal: float | None = None) -> None:
        reached = "" if goal is None else f"  goal {goal:g}: {'yes' if value >= goal else 'NO'}"
        self.say(f"ratio  {name:<66} {value:10.2f} x{reached}")
        self.lines.append({"ratio": name, "value": value, "goal": goal})

    def times(self, title: str, found: dict[str, list[Reading]], scale: float = 1e3) -> None:
        for name, readings in found.items():
            walls = [r.wall * scale for r in readings]
            self.row(
                f"{title}: {name}",
                median(readings) * scale,
                "ms",
                lowest=min(walls),
                highest=max(walls),
                rounds=len(walls),
            )


# --- checks -------------------------------------------------------------------------------------


def check_slots(report: Report, device: str, shape: Shape) -> None:
    """A slot's logits are those of merged weights and of PEFT; a mixed batch decodes the same."""
    model = model_of(shape, dtype=torch.float32, device=device)
    plain = twin(model)
    stack = StackedLoRA(model, NAMES, rank=RANK, alpha=ALPHA)
    fill(stack)
    state = stack.state()
    ids = torch.randint(shape.vocabulary, (len(NAMES), 24), device=device)
    weights = stack.weights([{n: 1.0} for n in NAMES], device="cpu")
    with torch.no_grad():
        base = plain(ids).logits
        with stack.speaking(weights):
            ours = model(ids).logits
        with stack.speaking(weights[:, None, :].expand(-1, ids.shape[1], -1)):
            by_token = model(ids).logits
        want = torch.stack(
            [merged(plain, state, n)(ids[n : n + 1]).logits[0] for n in range(len(NAMES))]
        )
        with stack.speaking(stack.weights([{}] * len(NAMES))):
            silent = model(ids).logits
    size = float(want.abs().max())
    moved = float((want - base).abs().max()) / size
    report.say(f"       the blocks move the logits by up to {moved:.2f} of the largest")
    report.check("blocks do something (1 - moved)", 1 - moved, 0.95)
    report.check("a slot against merged weights", float((ours - want).abs().max()) / size, 2e-5)
    report.check("... with weights by token", float((by_token - want).abs().max()) / size, 2e-5)
    report.check("no block is the base, difference", float((silent - base).abs().max()), 0.0)
    new = 24
    with stack.speaking(weights):
        mixed = greedy(model, ids, new)
        fixed = Decoder(model, len(ids), ids.shape[1] + new, graph=False)(ids, new)
    alone = torch.cat([greedy(merged(plain, state, n), ids[n : n + 1], new) for n in range(8)])
    report.check("mixed greedy tokens against merged, differing", differing(mixed, alone), 0.0)
    report.check("... over a cache of fixed size", differing(fixed, alone), 0.0)
    if device == "cuda":
        with stack.speaking(weights):
            graphed = Decoder(model, len(ids), ids.shape[1] + new, graph=True)(ids, new)
        report.check("... in a CUDA graph", differing(graphed, alone), 0.0)
    if has_peft():
        rival = as_peft(twin(plain), state, NAMES)
        with torch.no_grad():
            logits = []
            for n, name in enumerate(NAMES):
                rival.set_adapter(name, inference_mode=True)
                logits.append(rival(ids[n : n + 1]).logits[0])
            by_name = rival(ids, adapter_names=list(NAMES)).logits
        apart = torch.stack(logits)
        report.check("a slot against PEFT", float((ours - apart).abs().max()) / size, 2e-5)
        report.check("PEFT's mixed batch", float((by_name - apart).abs().max()) / size, 2e-5)
        tokens = one_by_one(rival, ids, new, NAMES)
        report.check("mixed greedy tokens against set_adapter", differing(mixed, tokens), 0.0)
    rest(device)


def differing(one: Tensor, other: Tensor) -> float:
    """Share of tokens that differ."""
    return float((one != other).float().mean())


def check_training(report: Report, device: str, shape: Shape) -> None:
    """Training all together against each alone with torch's own AdamW and the model's own loss."""
    # AdamW divides a gradient by its own size: a gradient that is next to nothing makes noise large.
    # In float64 what is left is that of the blocks, which are float32.
    model = model_of(shape, dtype=torch.float64, device=device)
    draw = torch.Generator().manual_seed(3)
    rows = {
        name: [
            row_of(int(torch.randint(12, 48, (), generator=draw)), 0.5, name, shape.vocabulary, n)
            for n in range(3)
        ]
        for name in NAMES
    }
    alone = twin(model)
    stack = StackedLoRA(model, NAMES, rank=RANK, alpha=ALPHA)
    start = stack.state()
    steps = 5
    jointly(model, stack, rows, batch_rows=3, steps=steps, micro_tokens=256, lr=1e-3)
    end = stack.state()
    single = StackedLoRA(alone, ["one"], rank=RANK, alpha=ALPHA)
    worst = 0.0
    for n, name in enumerate(NAMES):
        single.load_state({key: value[n : n + 1] for key, value in start.items()})
        optimiser = torch.optim.AdamW(single.parameters(), lr=1e-3, weight_decay=0.0)
        ids, mask, labels = padded(rows[name], device)
        with single.speaking(single.weights([{"one": 1.0}] * len(ids))):
            for _ in range(steps):
                alone(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
                torch.nn.utils.clip_grad_norm_(single.parameters(), 1.0)
                optimiser.step()
                optimiser.zero_grad()
        apart = single.state()
        off = size = 0.0
        for module in single.layers:
            one, two = (
                b @ a
                for a, b in (
                    (end[f"A.{module}"][n], end[f"B.{module}"][n]),
                    (apart[f"A.{module}"][0], apart[f"B.{module}"][0]),
                )
            )
            off += float(np.square(one - two).sum())
            size += float(np.square(two).sum())
        worst = max(worst, (off / size) ** 0.5)
    report.check("joint against one by one, largest |dW - dW'| / |dW'| of a role", worst, 1e-4)
    rest(device)


# --- training -----------------------------------------------------------------------------------


class Graphed:
    """One adapter's forward and backward in a CUDA graph, logits only where supervised.

    The best that can be done for training one after the other: no launches, no padding, fused
    AdamW. It is our stack with one slot; who trains stays the same, so nothing is copied.
    """

    def __init__(self, model: Any, batch: tuple[Tensor, Tensor, Tensor], *, graph: bool) -> None:
        self.model = model
        self.stack = StackedLoRA(model, ["one"], rank=RANK, alpha=ALPHA)
        self.ids, _, labels = batch
        shifted = labels[:, 1:].flatten()
        at = (shifted != -100).nonzero()[:, 0]
        width = labels.shape[1]
        self.at = at // (width - 1) * width + at % (width - 1)
        self.labels = shifted[at]
        self.weights = self.stack.mix(
            self.stack.weights([{"one": 1.0}] * len(self.ids), device="cpu")
        )
        own = self.stack.parameters()
        self.optimiser = torch.optim.AdamW(own, lr=RATE, weight_decay=0.0, fused=graph)
        self.own = own
        self.graph = None
        if graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._work()
            torch.cuda.current_stream().wait_stream(side)
            self.optimiser.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._work()

    def _work(self) -> None:
        with self.stack.speaking(self.weights):
            states = hidden_of(
                self.model, self.ids, attention_mask=masked(self.model, None), use_cache=False
            )
        logits = self.model.lm_head(states.flatten(0, 1)[self.at])
        torch.nn.functional.cross_entropy(logits.float(), self.labels).backward()

    def step(self) -> None:
        if self.graph is None:
            self.optimiser.zero_grad()
            self._work()
        else:
            for parameter in self.own:
                assert parameter.grad is not None
            torch._foreach_zero_([p.grad for p in self.own])
            self.graph.replay()
        torch.nn.utils.clip_grad_norm_(self.own, 1.0)
        self.optimiser.step()


def equal_rows(shape: Shape, count: int, length: int) -> Rows:
    return {n: [row_of(length, 0.5, n, shape.vocabulary, k) for k in range(count)] for n in NAMES}


def mixed_rows(shape: Shape, count: int) -> tuple[Rows, str]:
    lengths, source = neeko_lengths(count * len(NAMES), seed=7)
    rows: Rows = {
        name: [
            row_of(length, 0.6, name, shape.vocabulary, k)
            for k, length in enumerate(lengths[n * count : (n + 1) * count])
        ]
        for n, name in enumerate(NAMES)
    }
    return rows, source


@dataclass(frozen=True)
class Setting:
    """How much is trained at once."""

    title: str
    rows: Rows
    batch: int
    micro: Sequence[int]
    graph: bool
    goals: tuple[float | None, float | None] = (None, None)


def time_training(report: Report, model: Any, device: str, setting: Setting, rounds: int) -> None:
    """Seconds of one optimiser step of all eight characters."""
    rows = setting.rows
    readings: dict[str, list[Reading]] = {}
    batches = {n: list(batches_of(rows[n], setting.batch, device)) for n in NAMES}
    real, whole = paid([b for one in batches.values() for b in one])
    steps = len(batches[NAMES[0]])
    report.say(
        f"training, {setting.title}: {real / len(NAMES) / steps:.0f} tokens a role-step, "
        f"{whole / real:.2f} with padding one by one"
    )
    rival = None
    if has_peft():
        rival = Sequential(as_peft(twin(model), None, NAMES), NAMES)
        rival.model.train()
    ours = twin(model)
    stack = StackedLoRA(ours, NAMES, rank=RANK, alpha=ALPHA)
    for number in range(rounds + 1):
        if rival is not None:
            found = rival.all_roles(batches)
            if number:
                readings.setdefault("PEFT one by one, eager", []).append(found)
        for micro in setting.micro:
            laps = jointly(
                ours, stack, rows, batch_rows=setting.batch, steps=steps + 1, micro_tokens=micro
            )
            if number:
                name = f"ours, {micro} tokens a pass"
                readings.setdefault(name, []).append(Reading(median(laps), median(laps, cpu=True)))
    del rival, stack, ours
    rest(device)
    if setting.graph:
        packed = real // len(NAMES) // steps
        width = min(512, packed)
        batch = padded(
            [row_of(width, 0.5, "one", model.config.vocab_size, k) for k in range(packed // width)],
            device,
        )
        one = Graphed(twin(model), batch, graph=device == "cuda")
        share = real / steps / paid([batch])[0]  # eight characters, and what the rows round off
        graphed = interleaved({"": one.step}, device, rounds=3 * rounds, warm=3)[""]
        readings["one by one, packed, CUDA graph, few logits"] = [
            Reading(r.wall * share, r.cpu * share) for r in graphed
        ]
        del one
        rest(device)
    report.times(f"8 roles, {setting.title}", readings)
    best = min((n for n in readings if n.startswith("ours")), key=lambda n: median(readings[n]))
    for name, goal in zip(
        ("PEFT one by one, eager", "one by one, packed, CUDA graph, few logits"),
        setting.goals,
        strict=True,
    ):
        if name in readings:
            value = median(readings[name]) / median(readings[best])
            report.ratio(f"{setting.title}: {best} vs {name}", value, goal)


def memory(report: Report, model: Any, device: str, shape: Shape, length: int) -> None:
    """Peak memory of training eight characters against one, the same tokens in a pass."""
    if device != "cuda":
        report.skipped.append("memory (a GPU's allocator tells it)")
        return
    peaks = {}
    for names in (NAMES[:1], NAMES):
        rows = {n: [row_of(length, 0.5, n, shape.vocabulary, k) for k in range(4)] for n in names}
        own = twin(model)
        stack = StackedLoRA(own, names, rank=RANK, alpha=ALPHA)
        rest(device)
        torch.cuda.reset_peak_memory_stats()
        jointly(own, stack, rows, batch_rows=4, steps=3, micro_tokens=4 * length)
        peaks[len(names)] = torch.cuda.max_memory_allocated() / 2**30
        report.row(f"peak memory, training {len(names)} role(s)", peaks[len(names)], "GiB")
        del stack, own
    if has_peft():
        rival = Sequential(as_peft(twin(model), None, NAMES[:1]), NAMES[:1])
        rival.model.train()
        rival.role(NAMES[0])
        batch = padded(
            [row_of(length, 0.5, NAMES[0], shape.vocabulary, k) for k in range(4)], device
        )
        rest(device)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            rival.step(batch)
        peak = torch.cuda.max_memory_allocated() / 2**30
        report.row("peak memory, PEFT training 1 role, all logits", peak, "GiB")
        del rival
    report.ratio(
        "memory: one role against eight (goal: 8 at most 1.1 of 1)", peaks[1] / peaks[8], 1 / 1.1
    )
    rest(device)


# --- decoding -----------------------------------------------------------------------------------


def time_decoding(
    report: Report, model: Any, device: str, shape: Shape, prompt: int, new: int, rounds: int
) -> None:
    """Eight characters answer at once; the cache ends where the answers end."""
    ids = torch.randint(shape.vocabulary, (len(NAMES), prompt), device=device)
    ours = twin(model)
    stack = StackedLoRA(ours, NAMES, rank=RANK, alpha=ALPHA)
    fill(stack)
    state = stack.state()
    weights = stack.mix(stack.weights([{n: 1.0} for n in NAMES], device="cpu"))
    draw = torch.Generator().manual_seed(5)
    roles = torch.randn(len(NAMES), DenseGate.EMBEDDING, generator=draw).to(ids.device, model.dtype)
    gated, _ = as_dense_gate(twin(model), state, roles)

    def mixed() -> Tensor:
        with stack.speaking(weights):
            return greedy(ours, ids, new)

    work: dict[str, Callable[[], Tensor]] = {
        "ours, mixed batch": mixed,
        "the base without LoRA": lambda: greedy(model, ids, new),
        "Neeko's dense gate": lambda: greedy(gated, ids, new),
    }
    if has_peft():
        rival = as_peft(twin(model), state, NAMES)
        work["PEFT set_adapter, one after the other"] = lambda: one_by_one(rival, ids, new, NAMES)
        work["PEFT adapter_names, mixed batch"] = lambda: greedy(
            rival, ids, new, adapter_names=list(NAMES)
        )
    if device == "cuda":
        most = prompt + new
        try:
            with stack.speaking(weights):
                quick = Decoder(ours, len(ids), most, graph=True)
            plain = Decoder(model, len(ids), most, graph=True)
            dense = Decoder(gated, len(ids), most, graph=True)
        except Exception:  # noqa: BLE001 - the other rows are worth having
            report.say(traceback.format_exc())
            report.skipped.append("decoding in CUDA graphs: the capture failed, see above")
        else:

            def replayed() -> Tensor:
                with stack.speaking(weights):  # for the prompt; the graph has its own
                    return quick(ids, new)

            work["ours, CUDA graph"] = replayed
            work["the base without LoRA, CUDA graph"] = lambda: plain(ids, new)
            work["Neeko's dense gate, CUDA graph"] = lambda: dense(ids, new)
    found = interleaved(work, device, rounds=rounds)
    report.times(f"decode 8 x {prompt}+{new}", found)
    took = {name: median(readings) for name, readings in found.items()}

    def ratio(mine: str, other: str, goal: float | None) -> None:
        if mine in took and other in took:
            report.ratio(f"decode: {mine} vs {other}", took[other] / took[mine], goal)

    ratio("ours, mixed batch", "PEFT set_adapter, one after the other", 3.0)
    ratio("ours, mixed batch", "PEFT adapter_names, mixed batch", 1.65)
    ratio("ours, mixed batch", "Neeko's dense gate", 1.4)
    ratio("ours, mixed batch", "the base without LoRA", 0.85)
    ratio("ours, CUDA graph", "PEFT set_adapter, one after the other", 3.0)
    ratio("ours, CUDA graph", "PEFT adapter_names, mixed batch", 1.65)
    ratio("ours, CUDA graph", "Neeko's dense gate, CUDA graph", 1.4)
    ratio("ours, CUDA graph", "the base without LoRA, CUDA graph", 0.85)


@torch.no_grad()
def time_switch(
    report: Report, model: Any, device: str, shape: Shape, rounds: int, tiny: bool
) -> None:
    """First token after another character takes over, its header of six tokens read."""
    from transformers import DynamicCache

    ours = twin(model)
    stack = StackedLoRA(ours, NAMES, rank=RANK, alpha=ALPHA)
    fill(stack)
    header = 6
    for rows, history in ((1, 64),) if tiny else ((1, 1024), (1, 4096), (8, 1024), (8, 4096)):
        ids = torch.randint(shape.vocabulary, (rows, history + header), device=device)
        weights = stack.mix(stack.weights([{NAMES[1]: 1.0}] * rows, device="cpu"))
        kept = DynamicCache(config=model.config)
        model(input_ids=ids[:, :history], past_key_values=kept, use_cache=True, logits_to_keep=1)

        def speaker(
            ids: Tensor = ids, kept: Any = kept, history: int = history, weights: Mix = weights
        ) -> Tensor:
            with stack.speaking(weights):
                out = ours(
                    input_ids=ids[:, history:],
                    past_key_values=kept,
                    use_cache=True,
                    logits_to_keep=1,
                )
            first: Tensor = out.logits[:, -1].argmax(-1)
            kept.crop(-header)
            return first

        def again(ids: Tensor = ids, weights: Mix = weights) -> Tensor:
            with stack.speaking(weights):
                out = ours(
                    input_ids=ids,
                    past_key_values=DynamicCache(config=model.config),
                    use_cache=True,
                    logits_to_keep=1,
                )
            first: Tensor = out.logits[:, -1].argmax(-1)
            return first

        work = {"mode speaker, the cast's cache": speaker, "mode full, all read again": again}
        if device == "cuda":
            with stack.speaking(weights):
                quick = Decoder(ours, rows, history + header, graph=True, width=header)
            with stack.speaking(None):
                quick.prefill(ids[:, :history])

            def replayed(ids: Tensor = ids, history: int = history, quick: Any = quick) -> Tensor:
                quick.place(history)
                quick.ids.copy_(ids[:, history:])
                first: Tensor = quick.step()[:, 0]
                return first

            work["mode speaker, in a CUDA graph"] = replayed
        said = {name: one() for name, one in work.items() if name.startswith("mode speaker")}
        report.say(f"       first tokens in mode speaker: {[t.tolist() for t in said.values()]}")
        found = interleaved(work, device, rounds=rounds, warm=2)
        title = f"first token after a switch, {rows} x {history}"
        report.times(title, found)
        whole = median(found["mode full, all read again"])
        for name, readings in found.items():
            if name != "mode full, all read again":
                report.ratio(f"{title}, {name}", whole / median(readings))


@torch.no_grad()
def time_new_role(report: Report, model: Any, device: str, rounds: int) -> None:
    """A new slot in a loaded stack, and that nobody else's logits move by a bit."""
    ours = twin(model)
    stack = StackedLoRA(ours, NAMES, rank=RANK, alpha=ALPHA)
    fill(stack)
    ids = torch.randint(model.config.vocab_size, (len(NAMES), 16), device=device)
    rows = [{n: 1.0} for n in NAMES]
    with stack.speaking(stack.weights(rows)):
        before = ours(ids).logits
    first = {k: v[0] for k, v in stack.state().items()}
    numbers = iter(range(1000))
    work: dict[str, Callable[[], Any]] = {
        "fresh": lambda: stack.add_slot(f"new{next(numbers)}"),
        "with given blocks": lambda: stack.add_slot(f"new{next(numbers)}", first),
    }
    found = interleaved(work, device, rounds=rounds)
    with stack.speaking(stack.weights(rows)):
        after = ours(ids).logits
    report.times("a new slot in a loaded stack", found)
    report.ratio("100 ms against it", 0.1 / median(found["with given blocks"]), 1.0)
    report.check("logits of the others moved", float((after - before).abs().max()), 0.0)


# --- all ----------------------------------------------------------------------------------------


def ceilings(report: Report) -> None:
    """What this card gives: a copy and a matrix product on random data."""
    x = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = interleaved({"copy": lambda: y.copy_(x), "matmul": lambda: a @ b}, "cuda", rounds=10)
    report.row("copy", 4 * len(x) / median(found["copy"]) / 1e12, "TB/s")
    report.row("matrix product, bf16", 2 * n**3 / median(found["matmul"]) / 1e12, "TFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes: a smoke test")
    parser.add_argument("--minutes", type=float, default=8.5, help="budget; later rows are skipped")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="*", help="parts: checks training memory decode switch new 8b"
    )
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    device, tiny = args.device, args.tiny
    if device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing was measured (--device cpu --tiny is a smoke test)")
        return
    report = Report(args.minutes)
    cuda = device == "cuda"
    where = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
    about = {
        "device": where,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": has_peft(),
        "python": platform.python_version(),
    }
    report.say(", ".join(f"{k} {v}" for k, v in about.items()))
    if has_peft() is None:
        report.skipped.append("all rows against PEFT: it is not installed")
    # TF32 would hide what the checks look for.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    shape = SHAPES["tiny" if tiny else "0.5b"]
    rounds = 1 if tiny else args.rounds
    kept: list[Any] = []

    def base() -> Any:
        if not kept:
            kept.append(
                model_of(shape, dtype=torch.float32 if tiny else torch.bfloat16, device=device)
            )
        return kept[0]

    short, long = (16, 32) if tiny else (128, 512)
    micro = (128,) if tiny else (16384,)

    def checks() -> None:
        check_slots(report, device, SHAPES["tiny" if tiny else "small"])
        check_training(report, device, SHAPES["tiny" if tiny else "small"])

    def training() -> None:
        rows, source = mixed_rows(shape, 4)
        if tiny:
            rows = {n: [row_of(len(r.ids) // 16 + 2, 0.6, n, shape.vocabulary, k) for k, r in enumerate(of)] for n, of in rows.items()}  # fmt: skip
        for setting in (
            Setting(f"4 x {long} tokens", equal_rows(shape, 4, long), 4, micro, True, (3.0, 1.3)),
            Setting(f"4 x {short} tokens", equal_rows(shape, 4, short), 4, micro[:1], True, (3.0, 1.3)),
            Setting(f"4 rows, lengths {source}", rows, 4, micro, True, (3.0, 1.3)),
        ):  # fmt: skip
            if report.left < 20:
                report.skipped.append(f"training, {setting.title}: no time left")
                continue
            time_training(report, base(), device, setting, rounds)

    def eight_billion() -> None:
        kept.clear()
        rest(device)
        large = SHAPES["tiny-llama" if tiny else "8b-8-layers"]
        model = model_of(large, dtype=torch.float32 if tiny else torch.bfloat16, device=device)
        report.say("an 8B shape, 8 of its 32 layers (the head weighs four times what it should)")
        rows, source = mixed_rows(large, 4)
        setting = Setting(f"4 x {long} tokens, 8B layers", equal_rows(large, 4, long), 4, micro[-1:], False, (1.3, None))  # fmt: skip
        time_training(report, model, device, setting, min(rounds, 2))
        if not tiny and report.left > 15:
            setting = Setting(f"4 rows, lengths {source}, 8B layers", rows, 4, micro[-1:], False, (2.0, None))  # fmt: skip
            time_training(report, model, device, setting, min(rounds, 2))

    parts: dict[str, tuple[float, Callable[[], None]]] = {
        "checks": (20, checks),
        "training": (60, training),
        "decode": (50, lambda: time_decoding(report, base(), device, shape, 96, 4 if tiny else 24, min(rounds, 2))),
        "memory": (10, lambda: memory(report, base(), device, shape, long)),
        "switch": (12, lambda: time_switch(report, base(), device, shape, max(rounds, 5), tiny)),
        "new": (5, lambda: time_new_role(report, base(), device, rounds)),
        "8b": (35, eight_billion),
    }  # fmt: skip
    if cuda:
        ceilings(report)
    for name, (needs, part) in parts.items():
        if args.only and name not in args.only:
            continue
        if report.left < needs:
            report.skipped.append(f"{name}: {report.left:.0f} s of the budget left")
            continue
        try:
            part()
        except Exception as error:  # noqa: BLE001 - reported, and the run fails
            report.say(traceback.format_exc())
            report.failed.append(f"{name}: {type(error).__name__}: {error}"[:300])
        rest(device)
        if args.out:
            write(args.out, about, report)
    for line in report.skipped:
        report.say(f"left out: {line}")
    for line in report.failed:
        report.say(f"FAILED: {line}")
    if args.out:
        write(args.out, about, report)
    report.say("done")
    sys.exit(1 if report.failed else 0)


def write(path: Path, about: dict[str, Any], report: Report) -> None:
    path.write_text(
        json.dumps(
            {
                "about": about,
                "rows": report.lines,
                "skipped": report.skipped,
                "failed": report.failed,
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
