"""Training a cast together is training each alone; what stops goes on as if it had not."""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from personae.cast.encode import Encoded
from personae.cast.history import TrainingStep, read_history, write_history
from personae.cast.plan import Stage, TrainPlan, one_per_character, one_shared, stages_of
from personae.errors import InputError, UsageError
from personae.journal.flow import NoWatcher
from personae.records.cast import BaseModelRef

# of PEFT, about transformers
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

PLAN = TrainPlan(
    rank=4,
    alpha=8.0,
    lr=1e-2,
    shared_lr=1e-2,
    epochs=4,
    batch_rows=2,
    warmup=0.2,
    seed=3,
    shared_share=0.5,
)
NAMES = ("anna", "bo", "cy")
BANDS: dict[str | None, int] = {None: 10, "anna": 50, "bo": 100, "cy": 150, "dora": 200}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class _Base:
    """A `LoadedBase` without a tokenizer."""

    model: Any
    ref: BaseModelRef
    tokenizer: Any = None
    dtype: str = "float32"


def _base(folder: Path, dtype: str = "float32") -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    return _Base(model, BaseModelRef(id="tiny", sha256="0" * 64, architecture="llama"))


def _row(name: str, tokens: int, seed: int, prompt: int = 4) -> Encoded:
    """A row that a model can learn from: a character's words are a band of the alphabet."""
    draw = random.Random(f"{name}/{seed}")
    start = BANDS[name]
    ids = [draw.randrange(3, 250) for _ in range(prompt)]
    ids += [draw.randrange(start, start + 12) for _ in range(tokens - prompt)]
    return Encoded(
        tuple(ids),
        (False,) * prompt + (True,) * (tokens - prompt),
        (None,) * prompt + (name,) * (tokens - prompt),
        name,
        f"{name}.jsonl:{seed}",
    )


def _rows(lengths: Mapping[str, Sequence[int]]) -> dict[str, list[Encoded]]:
    return {name: [_row(name, n, k) for k, n in enumerate(of)] for name, of in lengths.items()}


LENGTHS = {"anna": (9, 31, 14, 22, 12), "bo": (40, 6, 17), "cy": (11, 13, 25, 19, 8, 30, 7)}


def _updates(stack: Any, slot: str) -> dict[str, Any]:
    k, scale = stack.index(slot), stack.alpha / stack.rank
    return {
        name: (scale * layer.b[k].double() @ layer.a[k].double()).detach()
        for name, layer in stack.layers.items()
    }


def _gap(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Largest difference over the largest number, worst module."""
    assert one.keys() == other.keys()
    assert all(u.abs().max() > 1e-3 for u in one.values())
    return max(float((one[n] - other[n]).abs().max() / one[n].abs().max()) for n in one)


def _with_peft(
    model: Any,
    slot: str,
    rows: Mapping[str, Sequence[Encoded]],
    orders: Sequence[Mapping[str, Sequence[int]]],
    plan: TrainPlan,
    highest: float,
) -> dict[str, Any]:
    """Train a plain adapter: stock PEFT, torch's AdamW and clipping, one unpadded row at a time.

    Args:
        orders: for each step, the numbers of each character's rows.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    from personae.cast.stacked import StackedLoRA

    begun = StackedLoRA(model, [slot], rank=plan.rank, alpha=plan.alpha, seed=plan.seed)
    first = {name: layer.a[0].detach().clone() for name, layer in begun.layers.items()}
    begun.detach()
    adapted: Any = get_peft_model(
        model,
        LoraConfig(r=plan.rank, lora_alpha=int(plan.alpha), target_modules=[*first]),
    )
    with torch.no_grad():
        for name, a in first.items():
            adapted.base_model.model.get_submodule(name).lora_A["default"].weight.copy_(a)
    learning = [p for p in adapted.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        learning, lr=highest, eps=plan.eps, weight_decay=plan.weight_decay
    )
    warm = math.ceil(plan.warmup * len(orders))
    for step, order in enumerate(orders):
        optimiser.zero_grad()
        total: Any = 0.0
        for name, numbers in order.items():
            count = sum(rows[name][n].learnt for n in numbers)
            for n in numbers:
                row = rows[name][n]
                ids = torch.tensor([row.ids])
                labels = torch.where(torch.tensor([row.supervised]), ids, -100)
                mean = adapted(input_ids=ids, labels=labels).loss
                total = total + mean * row.learnt / count / len(order)
        total.backward()
        torch.nn.utils.clip_grad_norm_(learning, plan.clip or math.inf)
        climb = (step + 1) / warm if step < warm else 1.0
        if plan.schedule == "cosine" and step >= warm:
            climb = (1 + math.cos(math.pi * (step - warm) / (len(orders) - warm))) / 2
        optimiser.param_groups[0]["lr"] = highest * climb
        optimiser.step()
    found = {}
    for name in first:
        layer = adapted.base_model.model.get_submodule(name)
        a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
        found[name] = (plan.alpha / plan.rank * b @ a).detach()
    return found


def _orders(
    rows: Mapping[str, Sequence[Encoded]], plan: TrainPlan, stage: Stage
) -> list[dict[str, list[int]]]:
    """Which rows of whom each step takes."""
    from personae.cast.batches import rows_of
    from personae.cast.order import draws_of

    chosen = {name: rows[name] for name in stage.weights}
    places = [(name, n) for name, of in chosen.items() for n in range(len(of))]
    made = []
    for draw in draws_of(rows_of(chosen, plan, [stage]), stage, plan):
        order: dict[str, list[int]] = {}
        for number in draw.rows:
            name, n = places[number]
            order.setdefault(name, []).append(n)
        made.append(order)
    return made


@pytest.mark.parametrize("micro", [24, 4096])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_training_together_is_training_each_alone_with_peft(
    tiny_base: Path, micro: int, schedule: Any
) -> None:
    from personae.cast.train import train

    plan = replace(PLAN, schedule=schedule, clip=0.5, micro_tokens=micro, weight_decay=0.01)
    rows = _rows(LENGTHS)
    trained = train(_base(tiny_base), rows, plan, stages=one_per_character(NAMES, plan.lr))
    for name in NAMES:
        (alone,) = one_per_character((name,), plan.lr)
        orders = _orders(rows, plan, alone)
        assert len(orders) >= 5
        assert sum(len(order[name]) for order in orders) == 4 * len(rows[name])
        peft = _with_peft(_base(tiny_base).model, name, rows, orders, plan, plan.lr)
        assert _gap(_updates(trained.stack, name), peft) < 1e-4


def test_the_shared_block_learns_the_mean_of_all_and_the_rest_is_each_ones_own(
    tiny_base: Path,
) -> None:
    import torch

    from personae.cast.train import train

    # a larger eps: merging rounds, and AdamW blows up what is nearly 0
    plan = replace(PLAN, eps=1e-4)
    rows = _rows(LENGTHS)
    trained = train(_base(tiny_base), rows, plan)
    shared, own = stages_of(plan, NAMES)
    of_all = _with_peft(
        _base(tiny_base).model, "shared", rows, _orders(rows, plan, shared), plan, plan.shared_lr
    )
    assert _gap(_updates(trained.stack, "shared"), of_all) < 1e-4
    for name in NAMES:
        merged = _base(tiny_base).model
        with torch.no_grad():
            for module, update in of_all.items():
                merged.get_submodule(module).weight += update.float()
        alone = Stage("own", {name: own.weights[name]}, (name,), plan.lr, own.share)
        peft = _with_peft(merged, name, rows, _orders(rows, plan, alone), plan, plan.lr)
        assert _gap(_updates(trained.stack, name), peft) < 1e-3


def test_what_was_learnt_is_whose_it_is(tiny_base: Path) -> None:
    import torch

    from personae.cast.train import train

    base = _base(tiny_base)
    plan = replace(PLAN, epochs=30, lr=0.02, shared_lr=0.02, batch_rows=6)
    rows = _rows(dict.fromkeys(NAMES, (14,) * 6))
    trained = train(base, rows, plan)
    losses = {}
    for speaker in NAMES:
        row = rows[speaker][0]
        ids = torch.tensor([row.ids])
        for through in NAMES:
            weights = trained.stack.weights([{"shared": 1.0, through: 1.0}])
            with torch.no_grad(), trained.stack.speaking(weights):
                logits = base.model(input_ids=ids).logits[0]
            each = torch.nn.functional.cross_entropy(logits[3:-1], ids[0, 4:])
            losses[speaker, through] = float(each)
    for speaker in NAMES:
        others = [losses[speaker, through] for through in NAMES if through != speaker]
        assert losses[speaker, speaker] < min(others) - 0.1
    for block in trained.blocks:
        assert block.loss is not None
        assert block.loss[1] < block.loss[0]


def test_the_history_says_what_each_step_was(tiny_base: Path, tmp_path: Path) -> None:
    from personae.cast.train import train

    rows = _rows(LENGTHS)
    told: list[TrainingStep] = []
    trained = train(_base(tiny_base), rows, PLAN, hear=told.extend)
    assert tuple(told) == trained.history
    shared, own = stages_of(PLAN, NAMES)
    for stage in (shared, own):
        orders = _orders(rows, PLAN, stage)
        for step, order in enumerate(orders, 1):
            records = [r for r in told if (r.stage, r.step) == (stage.name, step)]
            assert {r.character for r in records} == set(order)
            for record in records:
                tokens = sum(rows[record.character][n].learnt for n in order[record.character])
                assert record.tokens == tokens
                assert 0 < record.lr <= 1e-2
                assert record.loss is not None
                assert record.dev_loss is None
    blocks = {block.name: block for block in trained.blocks}
    assert [*blocks] == ["shared", *NAMES]
    every = {name: sum(row.learnt for row in of) for name, of in rows.items()}
    assert blocks["shared"].tokens == 2 * sum(every.values())  # 4 epochs, half of them shared
    assert {name: blocks[name].tokens for name in NAMES} == {n: 2 * t for n, t in every.items()}
    assert blocks["bo"].steps == 2 * 2  # 3 rows by 2 are 2 steps an epoch
    assert blocks["cy"].steps == blocks["shared"].steps == 2 * 4
    assert 0 < trained.padding < 0.5
    write_history(tmp_path / "history.jsonl", trained.history)
    assert read_history(tmp_path / "history.jsonl") == trained.history


def test_a_budget_of_tokens_ends_with_the_step_that_reaches_it(tiny_base: Path) -> None:
    from personae.cast.train import train

    rows = _rows(LENGTHS)
    plan = replace(PLAN, tokens_per_role=120)
    trained = train(_base(tiny_base), rows, plan)
    for stage in ("shared", "own"):
        for name in NAMES:
            seen = [r.tokens for r in trained.history if (r.stage, r.character) == (stage, name)]
            assert sum(seen) >= 60
            assert sum(seen[:-1]) < 60


def test_one_block_for_all_and_one_for_each_are_trained_alike(tiny_base: Path) -> None:
    from personae.cast.train import train

    rows = _rows(LENGTHS)
    wide = train(_base(tiny_base), rows, replace(PLAN, rank=12), stages=one_shared(NAMES, 1e-2))
    assert wide.stack.slots == ("shared",)
    assert wide.stack.rank == 12
    each = train(_base(tiny_base), rows, PLAN, stages=one_per_character(NAMES, 1e-2))
    assert each.stack.slots == NAMES
    paper = train(_base(tiny_base), rows, replace(PLAN.paper(), epochs=1))
    assert paper.stack.slots == NAMES
    assert len(paper.stack.layers) == 2 * 2  # queries and values of two layers
    assert paper.stack.layers["model.layers.0.self_attn.q_proj"].a.shape == (3, 4, 64)


def test_dropout_is_of_the_blocks_alone_and_the_same_each_time(tiny_base: Path) -> None:
    import torch

    from personae.cast.train import train

    rows = _rows(LENGTHS)
    plan = replace(PLAN, dropout=0.3, epochs=2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = train(_base(tiny_base), rows, plan)
    assert torch.rand(3).equal(expected)  # nobody else's random numbers are used
    two = train(_base(tiny_base), rows, plan)
    dry = train(_base(tiny_base), rows, replace(plan, dropout=0.0))
    assert _same(one.stack, two.stack)
    assert not _same(one.stack, dry.stack)
    assert all(layer.dropout == 0 and not layer.training for layer in one.stack.layers.values())


def _same(one: Any, other: Any) -> bool:
    first, second = one.state(), other.state()
    return first.keys() == second.keys() and all(
        first[name].tobytes() == second[name].tobytes() for name in first
    )


class _Interrupts(NoWatcher):
    """Ctrl-C after so many steps of all stages."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, stage: str) -> None:
        self.after -= 1
        if self.after == 0:
            raise KeyboardInterrupt


WATCHED = replace(PLAN, development=0.3, patience=2, check_every=2, dropout=0.1)


@pytest.mark.parametrize("plan", [PLAN, WATCHED], ids=["plain", "watched"])
@pytest.mark.parametrize("after", [1, 5, 8, 11])
def test_an_interrupted_training_goes_on_bit_for_bit(
    tiny_base: Path, tmp_path: Path, plan: TrainPlan, after: int
) -> None:
    from personae.cast.train import train

    rows = _rows(LENGTHS)
    whole = train(_base(tiny_base), rows, plan)
    with pytest.raises(KeyboardInterrupt):
        train(_base(tiny_base), rows, plan, checkpoint=tmp_path / "c", watcher=_Interrupts(after))
    resumed = train(_base(tiny_base), rows, plan, checkpoint=tmp_path / "c", resume=True)
    assert _same(resumed.stack, whole.stack)
    assert resumed.history == whole.history
    assert resumed.blocks == whole.blocks
    assert (resumed.stopped, resumed.padding) == (whole.stopped, whole.padding)
    again = train(_base(tiny_base), rows, plan, checkpoint=tmp_path / "c", resume=True)
    assert _same(again.stack, whole.stack)
    assert again.history == whole.history


def test_a_training_interrupted_before_a_check_makes_up_for_it(
    tiny_base: Path, tmp_path: Path
) -> None:
    from personae.cast.train import train

    rows, heard = _rows(LENGTHS), 0

    def hear(records: Sequence[TrainingStep]) -> None:
        nonlocal heard
        heard += 1
        if heard == 3:  # a check, a step, and the step before the next check
            raise KeyboardInterrupt

    whole = train(_base(tiny_base), rows, WATCHED)
    with pytest.raises(KeyboardInterrupt):
        train(_base(tiny_base), rows, WATCHED, checkpoint=tmp_path, hear=hear)
    resumed = train(_base(tiny_base), rows, WATCHED, checkpoint=tmp_path, resume=True)
    assert resumed.history == whole.history
    assert _same(resumed.stack, whole.stack)


def test_a_checkpoint_of_something_else_is_not_taken(tiny_base: Path, tmp_path: Path) -> None:
    from personae.cast.train import train

    rows, folder = _rows(LENGTHS), tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        train(_base(tiny_base), rows, PLAN, checkpoint=folder, watcher=_Interrupts(2))
    with pytest.raises(UsageError, match="resume it"):
        train(_base(tiny_base), rows, PLAN, checkpoint=folder)
    for other in (
        lambda: train(
            _base(tiny_base), rows, replace(PLAN, lr=1e-3), checkpoint=folder, resume=True
        ),
        lambda: train(
            _base(tiny_base),
            {**rows, "bo": rows["bo"][:2]},
            PLAN,
            checkpoint=folder,
            resume=True,
        ),
    ):
        with pytest.raises(UsageError, match="another training"):
            other()
    (tensors,) = folder.glob("tensors-*")
    raw = bytearray(tensors.read_bytes())
    raw[-1] ^= 1
    tensors.write_bytes(bytes(raw))
    with pytest.raises(InputError, match=r"state\.json: damaged.*Remove the directory"):
        train(_base(tiny_base), rows, PLAN, checkpoint=folder, resume=True)
    (folder / "state.json").write_text("[]")
    with pytest.raises(InputError, match=r"state\.json"):
        train(_base(tiny_base), rows, PLAN, checkpoint=folder, resume=True)


def test_a_loss_that_is_no_number_names_its_character_and_loses_nothing(
    tiny_base: Path, tmp_path: Path
) -> None:
    from personae.cast.train import train

    rows, base = _rows(LENGTHS), _base(tiny_base)
    done: list[TrainingStep] = []

    def hear(records: Sequence[TrainingStep]) -> None:
        done.extend(records)
        if len({r.step for r in done if r.stage == "own"}) == 2:
            bo = trained_stack.index("bo")
            trained_stack.layers["model.layers.1.mlp.up_proj"].b.data[bo, 0, 0] = math.nan

    from personae.cast.stacked import StackedLoRA

    trained_stack = StackedLoRA(base.model, ("shared", *NAMES), rank=4, alpha=8.0, seed=3, spare=0)
    message = r"the loss of 'bo' is not a finite number at step 3 of stage 'own'.*lower"
    with pytest.raises(UsageError, match=message):
        train(base, rows, PLAN, stack=trained_stack, checkpoint=tmp_path, hear=hear)
    turn = json.loads((tmp_path / "state.json").read_text())["turn"]
    before = read_history(tmp_path / f"history-{turn}.jsonl")
    assert before[-1].step == 2
    assert list(before) == done


def test_a_block_stops_when_its_development_loss_does_not_fall(tiny_base: Path) -> None:
    from personae.cast.train import train

    # anna's development rows are in her own band, bo's words are all over: bo cannot generalise
    rows = _rows({"anna": (20,) * 8})
    draw = random.Random(7)
    noise = [
        replace(_row("bo", 20, k), ids=tuple(draw.randrange(3, 250) for _ in range(20)))
        for k in range(8)
    ]
    rows["bo"] = noise
    plan = replace(PLAN, epochs=40, development=0.25, patience=2, check_every=3, lr=2e-2)
    base = _base(tiny_base)
    trained = train(base, rows, plan, stages=one_per_character(("anna", "bo"), plan.lr))
    assert "bo" in trained.stopped
    steps = {block.name: block.steps for block in trained.blocks}
    assert steps["bo"] < steps["anna"]
    checks = [r for r in trained.history if r.character == "bo" and r.dev_loss is not None]
    best = min(checks, key=lambda r: r.dev_loss or math.inf)
    assert checks[-1].step == steps["bo"]
    assert [r.step for r in checks[checks.index(best) + 1 :]] == [best.step + 3, best.step + 6]
    # stopped or not, each block is in its best state: whoever goes on begins with that loss
    names = ("anna", "bo")
    later = train(base, rows, plan, stack=trained.stack, stages=one_per_character(names, 1e-12))
    for name in names:
        own = [r for r in trained.history if r.character == name and r.dev_loss is not None]
        least = min(r.dev_loss for r in own if r.dev_loss is not None)
        begin = next(r for r in later.history if r.character == name)
        assert begin.step == 0
        assert begin.dev_loss == pytest.approx(least, abs=1e-6)
        assert own[-1].dev_loss is not None
        assert own[-1].dev_loss > least + 1e-5


def test_development_rows_are_not_learnt_from(tiny_base: Path) -> None:
    from personae.cast.train import train

    rows = _rows({"anna": (20,) * 10, "bo": (12,) * 5})
    plan = replace(PLAN, development=0.2, epochs=2)
    trained = train(_base(tiny_base), rows, plan, stages=one_per_character(("anna", "bo"), 1e-3))
    learnt = {block.name: block.tokens for block in trained.blocks}
    assert learnt == {"anna": 2 * 8 * 16, "bo": 2 * 4 * 8}
    watched = {r.character: r.tokens for r in trained.history if r.dev_loss is not None}
    assert watched == {"anna": 2 * 16, "bo": 8}
    with pytest.raises(UsageError, match="'bo' has one row"):
        train(_base(tiny_base), {**rows, "bo": rows["bo"][:1]}, plan)


def test_one_slot_of_a_cast_is_trained_and_all_else_stays_bit_for_bit(tiny_base: Path) -> None:
    from personae.cast.train import train

    rows = _rows(LENGTHS)
    base = _base(tiny_base)
    stack = train(base, rows, PLAN).stack
    before = stack.state()
    stack.add_slot("dora")
    new = {"dora": [_row("dora", 20, k) for k in range(6)]}
    stage = Stage("expand", {"dora": {"shared": 1, "bo": 0.5, "dora": 1}}, ("dora",), 1e-2)
    trained = train(base, new, PLAN, stages=(stage,), stack=stack)
    after = stack.state()
    assert trained.stack is stack
    assert [block.name for block in trained.blocks] == ["dora"]
    assert all(after[name][:4].tobytes() == tensor.tobytes() for name, tensor in before.items())
    assert all(after[name][4].any() for name in after if name.startswith("B."))
    losses = [r.loss for r in trained.history if r.loss is not None]
    assert losses[-1] < losses[0] - 0.1


def _scene(lines: Sequence[tuple[str | None, int]], seed: int, source: str) -> Encoded:
    """A dialogue in mode speaker: a two-token header of each turn under its speaker's block."""
    draw = random.Random(seed)
    ids: list[int] = [5, 6]
    supervised, speaker = [False, False], [None, None]
    for who, count in lines:
        start = BANDS[who]
        ids += [7, 8] + [draw.randrange(start, start + 12) for _ in range(count)]
        supervised += [False] * 2 + [who is not None] * count
        speaker += [who] * (count + 2)  # type: ignore[list-item]  # None or a name
    return Encoded(tuple(ids), tuple(supervised), tuple(speaker), None, source)


def test_a_scene_teaches_everybody_who_speaks_in_it_once(tiny_base: Path) -> None:
    import torch

    from personae.cast.stacked import StackedLoRA
    from personae.cast.train import train

    scene = _scene([(None, 5), ("anna", 6), ("bo", 4), (None, 3), ("anna", 3)], 1, "scene:1")
    solo = _scene([(None, 4), ("bo", 9)], 2, "scene:2")
    rows = {"anna": [scene], "bo": [scene, solo]}
    plan = replace(PLAN, mode="speaker", epochs=1, batch_rows=4, clip=None, warmup=0)
    stages = one_per_character(("anna", "bo"), plan.lr)
    told: list[TrainingStep] = []
    trained = train(_base(tiny_base), rows, plan, stages=stages, hear=told.extend)
    assert [(r.character, r.tokens) for r in told] == [("anna", 9), ("bo", 13)]
    assert trained.padding > 0
    assert [block.steps for block in trained.blocks] == [1, 1]

    # the same step by hand: row by row, all logits, torch's AdamW
    model = _base(tiny_base).model
    stack = StackedLoRA(model, ("anna", "bo"), rank=4, alpha=8.0, seed=3, spare=0)
    total: Any = 0.0
    means: dict[str, float] = {}
    for row in (scene, solo):
        weights = torch.zeros(1, len(row.ids), 2)
        for t, who in enumerate(row.speaker):
            if who is not None:
                weights[0, t, ("anna", "bo").index(who)] = 1
        with stack.speaking(weights):
            logits = model(input_ids=torch.tensor([row.ids])).logits[0]
        nll = torch.nn.functional.cross_entropy(
            logits[:-1], torch.tensor(row.ids[1:]), reduction="none"
        )
        for who, count in (("anna", 9), ("bo", 13)):
            own = torch.tensor(
                [s and w == who for s, w in zip(row.supervised, row.speaker, strict=True)][1:]
            )
            part = nll[own].sum() / count
            means[who] = means.get(who, 0.0) + float(part.detach())
            total = total + part
    total.backward()
    torch.optim.AdamW(stack.parameters(), lr=plan.lr, weight_decay=0.0).step()
    assert {r.character: r.loss for r in told} == pytest.approx(means, rel=1e-5)
    for name in ("anna", "bo"):
        for module, layer in stack.layers.items():
            ours = trained.stack.layers[module]
            k, own_k = stack.index(name), trained.stack.index(name)
            torch.testing.assert_close(ours.a[own_k], layer.a[k], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours.b[own_k], layer.b[k], rtol=1e-3, atol=2e-4)


def test_somebody_who_learns_nothing_speaks_through_his_own_block_in_a_scene(
    tiny_base: Path,
) -> None:
    from personae.cast.train import train

    scene = _scene([("anna", 6), ("bo", 4), ("anna", 3)], 1, "scene:1")
    base = _base(tiny_base)
    plan = replace(PLAN, mode="speaker", epochs=3)
    stack = train(base, {"anna": [scene], "bo": [scene]}, plan).stack
    before = stack.state()
    losses = []
    for voice in ({"shared": 1.0, "bo": 1.0}, {}):
        copied = stack.state()
        weights: dict[str, dict[str, float]] = {"anna": {"shared": 1.0, "anna": 1.0}, "bo": voice}
        stage = Stage("more", weights, ("anna",), 1e-3)
        trained = train(base, {"anna": [scene]}, plan, stages=(stage,), stack=stack)
        losses.append(trained.history[0].loss)
        assert [r.character for r in trained.history] == ["anna"] * 3
        after = stack.state()
        bo = stack.index("bo")
        assert all(after[n][bo].tobytes() == before[n][bo].tobytes() for n in after)
        stack.load_state(copied)
    assert losses[0] != losses[1]  # anna reads what bo said through bo's block, or without


@pytest.mark.parametrize("kind", ["gemma2", "cohere", "gpt2", "odd"])
def test_losses_are_those_of_the_full_logits_whatever_is_done_to_them(
    kind: str, tiny_base: Path
) -> None:
    import torch
    import transformers as t

    from personae.cast.train import train

    torch.manual_seed(0)
    small: dict[str, Any] = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
        "max_position_embeddings": 64,
    }  # fmt: skip
    model: Any
    if kind == "gemma2":
        model = t.Gemma2ForCausalLM(
            t.Gemma2Config(**small, head_dim=8, final_logit_softcapping=0.5)
        )
    elif kind == "cohere":
        model = t.CohereForCausalLM(t.CohereConfig(**small, logit_scale=3.0))
    elif kind == "gpt2":
        model = t.GPT2LMHeadModel(
            t.GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=4)
        )
    else:  # its output embedding sees a sequence turned around: positions cannot be dropped
        model = _base(tiny_base).model

        class _Odd(torch.nn.Module):
            def __init__(self, head: Any) -> None:
                super().__init__()
                self.head = head
                self.weight = head.weight

            def forward(self, x: Any) -> Any:
                return self.head(x).cumsum(1)

        model.set_output_embeddings(_Odd(model.get_output_embeddings()))
    base = _Base(model.eval(), BaseModelRef(id="t", sha256="0" * 64, architecture=kind))
    row = _row("anna", 21, 0)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row.ids])).logits[0]
    expected = torch.nn.functional.cross_entropy(logits[3:-1], torch.tensor(row.ids[4:]))
    given: Any = base
    trained = train(given, {"anna": [row]}, replace(PLAN, epochs=1, shared_share=0.5))
    assert trained.history[0].loss == pytest.approx(float(expected), rel=1e-5)


def test_a_bf16_base_is_trained_with_fp32_blocks(tiny_base: Path) -> None:
    import torch

    from personae.cast.train import train

    rows = _rows(LENGTHS)
    exact = train(_base(tiny_base), rows, PLAN)
    trained = train(_base(tiny_base, "bfloat16"), rows, PLAN)
    assert {p.dtype for p in trained.stack.parameters()} == {torch.float32}
    for one, other in zip(exact.history, trained.history, strict=True):
        assert one.loss is not None
        assert other.loss == pytest.approx(one.loss, rel=0.02)


@pytest.mark.parametrize("plan", [PLAN, WATCHED], ids=["plain", "watched"])
def test_a_training_on_a_gpu_has_the_losses_of_one_on_a_cpu(
    tiny_base: Path, plan: TrainPlan
) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from personae.cast.train import train

    rows = _rows(LENGTHS)
    plan = replace(plan, eps=1e-4, dropout=0.0)
    here, there = _base(tiny_base), _base(tiny_base)
    there.model.to("cuda")
    one, other = (train(base, rows, plan) for base in (here, there))
    assert {p.device.type for p in other.stack.parameters()} == {"cuda"}
    assert len(one.history) == len(other.history)
    for a, b in zip(one.history, other.history, strict=True):
        assert (b.loss or b.dev_loss) == pytest.approx(a.loss or a.dev_loss, rel=1e-4)


def test_a_training_that_fails_leaves_the_model_bare(tiny_base: Path) -> None:
    import torch

    from personae.cast.train import train

    base = _base(tiny_base)
    base.model.train()
    frozen = base.model.model.layers[0].self_attn.eval()
    modules = [type(module) for module in base.model.modules()]
    with pytest.raises(KeyboardInterrupt):
        train(base, _rows(LENGTHS), PLAN, watcher=_Interrupts(2))

    assert [type(module) for module in base.model.modules()] == modules
    assert base.model.training
    assert not frozen.training
    done = train(base, _rows(LENGTHS), replace(PLAN, epochs=1))
    assert not any(isinstance(p.grad, torch.Tensor) for p in done.stack.parameters())


def test_what_does_not_fit_together_is_refused_before_anything_is_trained(tiny_base: Path) -> None:
    from personae.cast.train import train

    rows = _rows(LENGTHS)
    base = _base(tiny_base)
    long = _row("bo", 60, 0)
    scene = _scene([("anna", 3)], 0, "scene:1")
    for wrong, plan, stages, message in (
        (rows, PLAN, one_per_character(("dora",), 1e-3), "'dora' is to be trained, and no row"),
        ({**rows, "bo": [long]}, replace(PLAN, max_tokens=50), None, r"bo.jsonl:0.* 60 tokens"),
        ({**rows, "cy": rows["bo"]}, PLAN, None, "a row of 'bo'.*stands under 'cy'"),
        ({**rows, "anna": [scene]}, PLAN, None, "a row of None"),
        ({**rows, "shared": rows["bo"]}, PLAN, None, "no character may be named 'shared'"),
        (rows, PLAN, (), "needs stages"),
    ):
        with pytest.raises(UsageError, match=message):
            train(base, wrong, plan, stages=stages)
    with pytest.raises(UsageError, match="nobody speaks through 'bo'"):
        Stage("own", {"anna": {"anna": 1.0}}, ("bo",), 1e-3)
    stack = train(base, rows, replace(PLAN, epochs=0.1)).stack
    stranger = Stage("own", {"anna": {"dora": 1.0}}, ("dora",), 1.0)
    with pytest.raises(UsageError, match="no slot 'dora'"):
        train(base, rows, PLAN, stack=stack, stages=(stranger,))
    wrongs: tuple[dict[str, Any], ...] = (
        {"rank": 0},
        {"lr": 0.0},
        {"development": 1.0},
        {"batch_rows": 0},
    )
    for given in wrongs:
        with pytest.raises(UsageError, match=next(iter(given))):
            replace(PLAN, **given)
    with pytest.raises(UsageError, match="patience needs rows"):
        replace(PLAN, patience=2)
