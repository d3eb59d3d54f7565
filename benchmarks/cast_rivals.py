"""What a cast is measured against: PEFT one by one, PEFT's mixed batch, Neeko's gate as released.

Imported by the benchmarks of issue C8. All rivals run on one and the same frozen base (`twin`
shares its weights) and bear the same blocks as the stack, so that their tokens can be compared.

PEFT is used as its documentation shows: `set_adapter` before a character speaks, `adapter_names`
for a mixed batch, one adapter trained after the other. Over a bfloat16 base PEFT keeps adapters in
float32 (its default), as the stack does.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from personae.cast.encode import Encoded
from personae.cast.plan import Stage, TrainPlan
from personae.cast.stacked import StackedLoRA, linear_modules
from personae.cast.train import train

RANK, ALPHA, ROLES = 8, 16.0, 8
NAMES = tuple(f"role{n}" for n in range(ROLES))
CLIP, RATE = 1.0, 5e-4


# --- models -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A causal language model by its sizes; its weights are random (seed 0, nothing is fetched)."""

    family: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = True


SHAPES = {
    "tiny": Shape("qwen2", 2, 64, 128, 4, 2, 300),
    "tiny-llama": Shape("llama", 2, 64, 128, 4, 2, 300),
    "small": Shape("qwen2", 4, 256, 512, 4, 2, 2000),
    "135m": Shape("llama", 30, 576, 1536, 9, 3, 49152),
    "0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 151936),
    "8b-8-layers": Shape("llama", 8, 4096, 14336, 32, 8, 128256, tied=False),
}


def model_of(shape: Shape, *, dtype: torch.dtype, device: str = "cpu") -> Any:
    """A model with random weights, in `eval` mode, nothing of it trainable."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": shape.tied,
        "attn_implementation": "sdpa",
    }
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model: Any = (
                LlamaForCausalLM(LlamaConfig(**sizes))
                if shape.family == "llama"
                else Qwen2ForCausalLM(Qwen2Config(**sizes))
            )
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


def twin(model: Any) -> Any:
    """Another model over the same weights (none is copied)."""
    shared = {id(p): p for p in model.parameters()}
    return copy.deepcopy(model, shared)


def masked(model: Any, mask: Tensor | None) -> Any:
    """A ready mask `[rows or 1, 1, new, all]` as the model takes it; None is plainly causal."""
    return {"full_attention": mask} if model.config.model_type == "qwen2" else mask


def hidden_of(model: Any, ids: Tensor, **more: Any) -> Tensor:
    """Last hidden states `[rows, tokens, hidden]`; `model` may be PEFT's."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    states: Tensor = inner.model(input_ids=ids, **more).last_hidden_state
    return states


# --- blocks -------------------------------------------------------------------------------------


def fill(stack: StackedLoRA, seed: int = 1, size: float = 0.02) -> None:
    """Give every B random values: a block that does nothing would prove nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in stack.layers.values():
            layer.b.copy_(torch.randn(layer.b.shape, generator=generator) * size)


def merged(model: Any, state: Mapping[str, np.ndarray], slot: int) -> Any:
    """A plain model whose weights are W + alpha / r * B A of one slot: no LoRA code at all."""
    made = copy.deepcopy(model)
    for name in linear_modules(made, "all-linear"):
        a, b = (torch.from_numpy(state[f"{kind}.{name}"][slot]) for kind in "AB")
        weight = made.get_submodule(name).weight
        with torch.no_grad():
            weight.add_((ALPHA / RANK * (b.double() @ a.double())).to(weight))
    return made


def has_peft() -> str | None:
    """PEFT's version; None where it is not installed."""
    try:
        import peft
    except ImportError:
        return None
    return str(peft.__version__)


def as_peft(model: Any, state: Mapping[str, np.ndarray] | None, names: Sequence[str]) -> Any:
    """PEFT over `model` with one adapter a name, filled from a stack's state (None: B is 0)."""
    from peft import LoraConfig, get_peft_model

    targets = sorted({n.rpartition(".")[2] for n in linear_modules(model, "all-linear")})

    def config() -> Any:
        return LoraConfig(
            r=RANK,
            lora_alpha=ALPHA,
            target_modules=targets,
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )

    made = get_peft_model(model, config(), adapter_name=names[0])
    for name in names[1:]:
        made.add_adapter(name, config())
    if state is not None:
        with torch.no_grad():
            for path, module in made.get_base_model().named_modules():
                if not hasattr(module, "lora_A"):
                    continue
                for slot, name in enumerate(names):
                    for kind, part in (("A", module.lora_A), ("B", module.lora_B)):
                        values = torch.from_numpy(state[f"{kind}.{path}"][slot])
                        part[name].weight.copy_(values)
    return made.eval()


class DenseGate(nn.Module):
    """Neeko's layer as released: all blocks work on every token, mixed by a softmax of its own.

    Source: the repository's `moelora/tuners/moelora.py`, 701-725, and `tuners/gating.py`: A's
    output as `[rows, tokens, E, r / E]`, every block's B over it, `[rows, tokens, E, out]`, times
    `softmax(W role)`, summed, times alpha / (r / E). W maps a role's embedding of 1024 numbers.
    """

    EMBEDDING = 1024

    def __init__(
        self, base: nn.Module, a: Tensor, b: Tensor, scale: float, speaking: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.base, self.scale, self._speaking = base, scale, speaking
        self.a, self.b = nn.Parameter(a), nn.Parameter(b)  # [E, r, in], [E, out, r]
        weight = torch.randn(len(a), self.EMBEDDING, generator=torch.Generator().manual_seed(0))
        self.gate = nn.Parameter((weight / self.EMBEDDING**0.5).to(a))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        gate = torch.softmax(self._speaking["roles"] @ self.gate.T, -1)  # [rows, E]
        low = (x @ self.a.flatten(0, 1).T).view(*x.shape[:-1], *self.a.shape[:2])
        each = torch.einsum("bter,eor->bteo", low, self.b)
        mixed: Tensor = (each * gate[:, None, :, None]).sum(-2)
        return out + mixed * self.scale


def as_dense_gate(
    model: Any, state: Mapping[str, np.ndarray], roles: Tensor
) -> tuple[Any, dict[str, Tensor]]:
    """`model` with Neeko's layers over it; `roles` `[rows, 1024]` are who speaks in each row."""
    speaking = {"roles": roles}
    for name in linear_modules(model, "all-linear"):
        module = model.get_submodule(name)
        a, b = (torch.from_numpy(state[f"{kind}.{name}"]).to(module.weight) for kind in "AB")
        parent, _, last = name.rpartition(".")
        setattr(
            model.get_submodule(parent),
            last,
            DenseGate(module, a, b, ALPHA / RANK, speaking),
        )
    return model, speaking


# --- decoding -----------------------------------------------------------------------------------


@torch.no_grad()
def greedy(model: Any, ids: Tensor, new: int, **more: Any) -> Tensor:
    """`[rows, new]` greedy tokens after prompts of equal length, with an ordinary growing cache."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    made = []
    inner = model.get_base_model() if hasattr(model, "get_base_model") and not more else model
    for _ in range(new):
        out = inner(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **more)
        ids = out.logits[:, -1].argmax(-1, keepdim=True)
        made.append(ids)
    return torch.cat(made, 1)


class Decoder:
    """Greedy decoding over a cache of fixed size; on CUDA one step is captured once and replayed.

    Args:
        most: tokens of prompt and answer together.
        width: tokens that a step reads: 1 to decode, more to read the header of a turn.
    """

    def __init__(self, model: Any, rows: int, most: int, *, graph: bool, width: int = 1) -> None:
        from transformers import StaticCache

        self.model, self.graph = model, None
        self.device = next(model.parameters()).device
        self.cache = StaticCache(config=model.config, max_cache_len=most)
        self.ids = torch.zeros(rows, width, dtype=torch.long, device=self.device)
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=self.device)
        self.at = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        self.steps = torch.arange(width, device=self.device)[None]
        self.places = torch.arange(most, device=self.device)[None, None, None]
        if graph:
            self._capture()

    @torch.no_grad()
    def _step(self) -> None:
        at = self.at + self.steps
        out = self.model(
            input_ids=self.ids,
            position_ids=at,
            attention_mask=masked(self.model, self.places <= at[None, :, :, None]),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
        if self.ids.shape[1] == 1:
            self.ids.copy_(self.token)
        self.at.add_(self.ids.shape[1])

    def place(self, at: int) -> None:
        """Go on behind so many tokens; what comes after them is forgotten."""
        self.at.fill_(at)
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(at)

    def _capture(self) -> None:
        self.prefill(torch.zeros(len(self.ids), 4, dtype=torch.long, device=self.device))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.place(4)
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.place(4)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    @torch.no_grad()
    def prefill(self, ids: Tensor) -> None:
        """Read a prompt from the beginning; `token` is what follows."""
        if self.cache.layers[0].is_initialized:
            self.place(0)
        length = ids.shape[1]
        mask = self.places <= torch.arange(length, device=self.device)[None, None, :, None]
        out = self.model(
            input_ids=ids,
            position_ids=torch.arange(length, device=self.device)[None],
            attention_mask=masked(self.model, mask),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
        self.place(length)

    def step(self) -> Tensor:
        """One step over `ids`: the next token of each row, `[rows, 1]`."""
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()
        return self.token

    def __call__(self, ids: Tensor, new: int) -> Tensor:
        """`[rows, new]` greedy tokens."""
        self.prefill(ids)
        self.ids.copy_(self.token)
        made = [self.token.clone()]
        made += [self.step().clone() for _ in range(new - 1)]
        return torch.cat(made, 1)


def one_by_one(model: Any, ids: Tensor, new: int, names: Sequence[str]) -> Tensor:
    """PEFT with `set_adapter` before each row: rows are answered one after the other."""
    made = []
    for row, name in zip(ids, names, strict=True):
        model.set_adapter(name, inference_mode=True)
        made.append(greedy(model, row[None], new))
    return torch.cat(made)


class Letters:
    """A stand-in tokenizer for random weights: each id is a character, nothing ends a turn."""

    eos_token_id = None
    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids: Sequence[int], **_more: Any) -> str:
        return "".join(chr(0x4E00 + int(one) % 20000) for one in ids)

    def convert_tokens_to_ids(self, _token: str) -> None:
        return None


def generator_of(model: Any, stack: StackedLoRA, weights: Mapping[str, Mapping[str, float]]) -> Any:
    """The product's own generator (`personae.cast.generate`) over random weights."""
    from personae.cast.generate import CastGenerator

    cast = SimpleNamespace(
        manifest=SimpleNamespace(
            characters=[SimpleNamespace(name=n, weights=w) for n, w in weights.items()]
        )
    )
    base = SimpleNamespace(model=model, tokenizer=Letters())
    return CastGenerator(base, stack, cast)  # type: ignore[arg-type]


# --- training -----------------------------------------------------------------------------------


def row_of(length: int, supervised: float, role: str, vocabulary: int, seed: int) -> Encoded:
    """Random tokens: two turns of context and answer, so that about that share is predicted."""
    draw = random.Random(f"{seed}/{role}/{length}")
    ids = tuple(draw.randrange(vocabulary) for _ in range(length))
    half = max(2, length // 2)
    learnt = [t % half >= half * (1 - supervised) and t > 0 for t in range(length)]
    learnt[-1] = True
    return Encoded(ids, tuple(learnt), (role,) * length, role, f"random/{seed}")


# Tokens of the dialogues in Neeko's repository (300 of several turns, 555 of one turn; SmolLM2's
# tokenizer), as quantiles: what the benchmark draws from where the data are absent.
MULTI = (508, 663, 720, 776, 866, 965, 1043, 1099, 1255)
MULTI_AT = (0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 1)
SINGLE = (20, 51, 62, 80, 100, 119, 525)
SINGLE_AT = (0, 0.10, 0.25, 0.50, 0.75, 0.90, 1)
SUPERVISED = {"multi": 0.64, "single": 0.8}


def neeko_lengths(count: int, seed: int) -> tuple[list[int], str]:
    """Lengths in tokens of `count` dialogues, a third of them of several turns, and their source."""
    draw = np.random.default_rng(seed)
    several = draw.random(count) < 300 / 855
    data = Path(os.environ.get("PERSONAE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    folder = data / "neeko" / "gen_results"
    if folder.is_dir():
        multi = [
            sum(len(m["content"]) // 5 + 5 for turn in json.loads(line)["content"] for m in turn["turn_content"])
            for file in sorted((folder / "interview_multi" / "chatgpt").glob("*.jsonl"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]  # fmt: skip
        single = [
            (len(row["question"]) + len(row["reply"]["content"])) // 5 + 10
            for file in sorted((folder / "icl_interview_single" / "chatgpt").glob("*.json"))
            for row in json.loads(file.read_text(encoding="utf-8"))
        ]
        picked = [int(draw.choice(multi if s else single)) for s in several]
        return (
            picked,
            f"of {len(multi) + len(single)} dialogues of Neeko's repository (5 characters a token)",
        )
    at = draw.random(count)
    picked = [
        round(float(np.interp(u, MULTI_AT, MULTI) if s else np.interp(u, SINGLE_AT, SINGLE)))
        for s, u in zip(several, at, strict=True)
    ]
    return picked, "drawn from the quantiles of Neeko's dialogues (the data are absent)"


def padded(rows: Sequence[Encoded], device: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, attention mask and labels (-100 where nothing is predicted), `[rows, longest]` each."""
    most = max(len(r.ids) for r in rows)
    ids = torch.zeros(len(rows), most, dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for n, row in enumerate(rows):
        own = torch.tensor(row.ids)
        ids[n, : len(own)], mask[n, : len(own)] = own, 1
        labels[n, : len(own)] = torch.where(torch.tensor(row.supervised), own, -100)
    return ids.to(device), mask.to(device), labels.to(device)


class Sequential:
    """PEFT as people train it: one adapter after the other, Hugging Face's loss over all logits."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        self.model, self.names = model, list(names)
        self.device = next(model.parameters()).device
        self.optimisers: dict[str, Any] = {}

    def role(self, name: str) -> None:
        """Turn to a character (outside of what is timed: once a training, not once a step)."""
        self.model.set_adapter(name)
        if name not in self.optimisers:
            own = [p for p in self.model.parameters() if p.requires_grad]
            self.optimisers[name] = torch.optim.AdamW(own, lr=RATE, weight_decay=0.0)
        self.optimiser = self.optimisers[name]
        self.own = self.optimiser.param_groups[0]["params"]

    def step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """One optimiser step of the character under way; ids, mask, labels as `padded` gives them."""
        ids, mask, labels = batch
        out = self.model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.own, CLIP)
        self.optimiser.step()
        self.optimiser.zero_grad()
        loss: Tensor = out.loss.detach()
        return loss

    def all_roles(self, batches: Mapping[str, Sequence[tuple[Tensor, Tensor, Tensor]]]) -> Reading:
        """Time of one optimiser step of every character, the mean over its batches.

        Characters are trained one after the other; turning to the next is not timed.
        """
        wall = cpu = 0.0
        for name in self.names:
            self.role(name)
            clock = Clock(self.device)
            for batch in batches[name]:
                self.step(batch)
            clock.lap()
            wall += clock.laps[0].wall / len(batches[name])
            cpu += clock.laps[0].cpu / len(batches[name])
        return Reading(wall, cpu)


def paid(batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[int, int]:
    """Tokens of batches: real ones, and with padding."""
    return sum(int(m.sum()) for _, m, _ in batches), sum(i.numel() for i, _, _ in batches)


def jointly(
    model: Any,
    stack: StackedLoRA,
    rows: Mapping[str, Sequence[Encoded]],
    *,
    batch_rows: int,
    steps: int,
    micro_tokens: int,
    lr: float = RATE,
) -> list[Reading]:
    """The product's own trainer (`personae.cast.train.train`) on isolated blocks; each step's time.

    The first step is left out: the trainer checks itself and makes its state there.
    """
    names = list(rows)
    plan = TrainPlan(
        rank=stack.rank,
        alpha=stack.alpha,
        lr=lr,
        epochs=batch_rows * steps / len(rows[names[0]]),
        batch_rows=batch_rows,
        micro_tokens=micro_tokens,
        max_tokens=8192,
        clip=CLIP,
        warmup=0.0,
    )
    stages = (Stage("own", {n: {n: 1.0} for n in names}, tuple(names), lr),)
    clock = Clock(stack.device)
    base: Any = SimpleNamespace(model=model)
    train(base, rows, plan, stages=stages, stack=stack, hear=lambda _: clock.lap())
    return clock.laps[1:]


# --- clocks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Seconds of a piece of work: on the wall, and of this process's CPUs."""

    wall: float
    cpu: float


class Clock:
    """Times from one `lap` to the next, with the device's work done."""

    def __init__(self, device: Any) -> None:
        self.cuda = torch.device(device).type == "cuda"
        self.laps: list[Reading] = []
        self._last = self._now()

    def _now(self) -> Reading:
        if self.cuda:
            torch.cuda.synchronize()
        return Reading(time.perf_counter(), time.process_time())

    def start(self) -> None:
        self._last = self._now()

    def lap(self) -> None:
        now = self._now()
        self.laps.append(Reading(now.wall - self._last.wall, now.cpu - self._last.cpu))
        self._last = now


def interleaved(
    work: Mapping[str, Callable[[], Any]], device: Any, *, rounds: int, warm: int = 1
) -> dict[str, list[Reading]]:
    """Each piece of work once a round, in turns, so that a noisy minute meets them all."""
    for _ in range(warm):
        for one in work.values():
            one()
    clocks = {name: Clock(device) for name in work}
    for _ in range(rounds):
        for name, one in work.items():
            clocks[name].start()
            one()
            clocks[name].lap()
    return {name: clock.laps for name, clock in clocks.items()}


def median(readings: Sequence[Reading], *, cpu: bool = False) -> float:
    return statistics.median(r.cpu if cpu else r.wall for r in readings)


def rest(device: Any) -> None:
    """Give back what is no longer used."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def batches_of(
    rows: Sequence[Encoded], batch: int, device: Any
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """A role's rows as they come, `batch` at a time, padded to the longest of each batch."""
    for first in range(0, len(rows), batch):
        yield padded(rows[first : first + batch], device)


def table(found: Mapping[str, Sequence[Reading]], against: str) -> None:
    """Medians in CPU seconds and on the wall, and how many times as fast as one of them."""
    one = median(found[against], cpu=True)
    for name, readings in found.items():
        cpu = [r.cpu for r in readings]
        print(
            f"  {name:<42} {median(readings, cpu=True):8.3f} CPU s ({min(cpu):.3f} to {max(cpu):.3f})"
            f"  {median(readings):8.3f} s wall  {one / median(readings, cpu=True):6.2f}x",
            flush=True,
        )


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 (else torch emulates it, slower than float32)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
