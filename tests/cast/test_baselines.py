"""The methods that a cast is compared with: their sizes, their files, and what they are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from personae.cast.base import LoadedBase, load_base
from personae.cast.baselines import (
    FILE,
    TRAINED,
    Retriever,
    open_method,
    read_kept,
    recipe_of,
    train_method,
)
from personae.cast.encode import Encoded
from personae.cast.evaluate import score_rows
from personae.cast.plan import TrainPlan
from personae.errors import InputError, OutputError, UsageError
from personae.journal.flow import NoWatcher
from personae.records import Character

torch.set_num_threads(1)

NAMES = ("Ada", "Bob", "Cleo")
PLAN = TrainPlan(rank=4, alpha=8.0, epochs=2, warmup=0, lr=1e-2, shared_lr=1e-2, seed=5)
CARDS = {name: Character(name=name, description=f"{name} is {name[::-1]}.") for name in NAMES}
PER_RANK = 2 * (64 + 64 + 2 * (64 + 32) + 64 + 64 + 3 * (64 + 128))
"""Features in plus out of all linear modules of the tiny base: numbers of a LoRA of rank 1."""


def rows() -> dict[str, list[Encoded]]:
    return {
        name: [
            Encoded(
                ids=(5, 6, 7 + k, *(20 + n,) * 6),
                supervised=(False,) * 3 + (True,) * 6,
                speaker=(None,) * 3 + (name,) * 6,
                character=name,
                row=f"{name}, line {k}",
            )
            for k in range(2)
        ]
        for n, name in enumerate(NAMES)
    }


@pytest.fixture
def base(tiny_base: Path) -> LoadedBase:
    return load_base(str(tiny_base), dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("method", "rank", "numbers", "active"),
    [
        ("retrained", 4, 4 * 4, 2 * 4),  # shared and three own blocks of rank 4; two at work
        ("one_shared", 16, 16, 16),  # as large as those four
        ("one_shared_active", 8, 8, 8),  # as large as the two at work
        ("one_per_character", 4, 3 * 4, 4),
    ],
)
def test_one_lora_is_as_large_as_the_cast_or_as_what_works_for_one_character(
    base: LoadedBase, tmp_path: Path, method: Any, rank: int, numbers: int, active: int
) -> None:
    made = train_method(base, method, rows(), PLAN, tmp_path)
    made.stack.detach()
    assert made.kept.rank == rank
    assert made.kept.alpha / made.kept.rank == PLAN.alpha / PLAN.rank
    assert made.kept.parameters == numbers * PER_RANK
    assert made.kept.active == active * PER_RANK
    assert made.kept.tokens == 2 * 2 * 3 * 6  # epochs, rows, characters, tokens
    assert made.kept.seconds > 0


def test_under_the_papers_protocol_one_block_works_for_a_character() -> None:
    plan = PLAN.paper()
    assert recipe_of("one_shared", plan, NAMES).plan.rank == 3 * 4
    assert recipe_of("one_shared_active", plan, NAMES).plan.rank == 4
    assert recipe_of("retrained", plan, NAMES).weights == {name: {name: 1.0} for name in NAMES}
    with pytest.raises(UsageError, match="nothing is trained"):
        recipe_of("icl", plan, NAMES)


@pytest.mark.parametrize("method", TRAINED)
def test_what_was_kept_speaks_as_what_was_trained(
    base: LoadedBase, tmp_path: Path, method: Any
) -> None:
    lines = [row for name in NAMES for row in rows()[name]]
    made = train_method(base, method, rows(), PLAN, tmp_path, cards=CARDS)
    weights = [made.weights[row.character or ""] for row in lines]
    trained = score_rows(base, made.stack, lines, weights)
    made.stack.detach()
    alone = score_rows(base, None, lines, [{}] * len(lines))
    assert sum(s.nll for s in trained) < sum(s.nll for s in alone) - 0.5
    again = open_method(base, method, rows(), PLAN, tmp_path, cards=CARDS)
    assert again is not None
    assert again.kept == made.kept
    assert score_rows(base, again.stack, lines, weights) == trained
    again.stack.detach()
    assert score_rows(base, None, lines, [{}] * len(lines)) == alone


def test_another_recipe_is_not_taken_for_the_one_that_was_trained(
    base: LoadedBase, tmp_path: Path
) -> None:
    train_method(base, "one_shared", rows(), PLAN, tmp_path).stack.detach()
    fewer = {name: of_it[:1] for name, of_it in rows().items()}
    for method, given, plan in (
        ("one_shared_active", rows(), PLAN),
        ("one_shared", fewer, PLAN),
        ("one_shared", rows(), replace(PLAN, seed=6)),
        ("one_shared", rows(), replace(PLAN, shared_lr=2e-2)),
    ):
        found: Any = open_method(base, method, given, plan, tmp_path)  # type: ignore[arg-type]  # names of methods
        assert found is None
    memory = replace(PLAN, micro_tokens=64, epochs=2.0)  # changes no result
    found = open_method(base, "one_shared", rows(), memory, tmp_path)
    assert found is not None
    found.stack.detach()


def test_seeds_and_methods_are_kept_side_by_side(base: LoadedBase, tmp_path: Path) -> None:
    for seed in (0, 1, 0):
        plan = replace(PLAN, epochs=1, seed=seed)
        train_method(base, "one_shared_active", rows(), plan, tmp_path).stack.detach()
    train_method(base, "one_shared", rows(), replace(PLAN, epochs=1), tmp_path).stack.detach()
    kept = [(k.method, k.seed) for k in read_kept(tmp_path)]
    assert sorted(kept) == [
        ("one_shared", 5), ("one_shared_active", 0), ("one_shared_active", 1),
    ]  # fmt: skip
    first, second = (
        np.fromfile(tmp_path / k.file, dtype=np.uint8) for k in read_kept(tmp_path)[:2]
    )
    assert (first.shape != second.shape) or (first != second).any()


def test_a_damaged_file_is_an_error_with_its_mend(base: LoadedBase, tmp_path: Path) -> None:
    made = train_method(base, "one_shared_active", rows(), replace(PLAN, epochs=1), tmp_path)
    made.stack.detach()
    file = tmp_path / made.kept.file
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"trained again"):
        open_method(base, "one_shared_active", rows(), replace(PLAN, epochs=1), tmp_path)
    assert score_rows(base, None, rows()["Ada"], [{}, {}])[0].tokens == 6  # and the base is bare


@pytest.mark.parametrize("method", ["one_per_character", "dense_gate"])
def test_a_method_that_cannot_be_trained_or_kept_leaves_the_model_bare(
    base: LoadedBase, tmp_path: Path, method: Any
) -> None:
    class Stops(NoWatcher):
        def step(self, stage: str) -> None:
            raise KeyboardInterrupt

    modules = [type(module) for module in base.model.modules()]
    with pytest.raises(KeyboardInterrupt):
        train_method(base, method, rows(), PLAN, tmp_path, cards=CARDS, watcher=Stops())
    assert [type(module) for module in base.model.modules()] == modules
    (tmp_path / "baselines").write_text("in the way")
    with pytest.raises(OutputError):
        train_method(base, method, rows(), replace(PLAN, epochs=1), tmp_path, cards=CARDS)
    assert [type(module) for module in base.model.modules()] == modules


def test_a_file_outside_of_the_folder_is_not_read(base: LoadedBase, tmp_path: Path) -> None:
    train_method(base, "one_shared", rows(), replace(PLAN, epochs=1), tmp_path).stack.detach()
    value = json.loads((tmp_path / FILE).read_text("utf-8"))
    value["methods"][0]["file"] = "baselines/../../secret.safetensors"
    (tmp_path / FILE).write_text(json.dumps(value), "utf-8")
    with pytest.raises(InputError, match="no file in"):
        read_kept(tmp_path)


def test_the_dense_gate_needs_a_profile_of_everybody(base: LoadedBase, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'Bob' has no card"):
        train_method(base, "dense_gate", rows(), PLAN, tmp_path, cards={"Ada": CARDS["Ada"]})


# Isolated blocks are PEFT's adapters


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft asks for it
def test_an_isolated_block_is_the_adapter_that_peft_trains_alone(
    base: LoadedBase, tmp_path: Path
) -> None:
    """The same rows, steps, rate and first values, one adapter after another, by PEFT and torch."""
    from peft import LoraConfig, get_peft_model

    plan = replace(PLAN, batch_rows=2, epochs=3, clip=None, schedule="constant")
    made: Any = train_method(base, "one_per_character", rows(), plan, tmp_path)
    trained = made.stack.state()
    made.stack.detach()
    start: Any = train_method(
        base, "one_per_character", rows(), replace(plan, lr=1e-30), tmp_path / "start"
    )
    first = start.stack.state()  # A as it was drawn, B still 0
    start.stack.detach()
    modules = [name[2:] for name in first if name.startswith("A.")]
    for k, name in enumerate(NAMES):
        config = LoraConfig(
            r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM", lora_dropout=0.0
        )
        model: Any = get_peft_model(base.model, config)
        inner = dict(model.base_model.model.named_modules())
        with torch.no_grad():
            for module in modules:
                a = inner[module].lora_A["default"].weight
                a.copy_(torch.from_numpy(first[f"A.{module}"][k]))
        optimiser = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=plan.lr, weight_decay=0.0
        )
        ids = torch.tensor([row.ids for row in rows()[name]])
        labels = torch.where(torch.tensor([row.supervised for row in rows()[name]]), ids, -100)
        for _ in range(3):
            optimiser.zero_grad()
            model(input_ids=ids, labels=labels).loss.backward()
            optimiser.step()
        for module in modules:
            pair = inner[module]
            theirs = (
                (pair.lora_B["default"].weight @ pair.lora_A["default"].weight).detach().numpy()
            )
            ours = trained[f"B.{module}"][k] @ trained[f"A.{module}"][k]
            assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
        base.model = model.unload()
        base.model.requires_grad_(False)


# Retrieval


def test_retrieval_takes_what_fits_the_question_best_first() -> None:
    card = Character(
        name="Ada",
        description="The engine weaves algebra. A dog sleeps. Dogs and the engine of dogs bark.",
    )
    found = Retriever(card)
    assert found.top("Tell me of your dogs!")[0] == "Dogs and the engine of dogs bark."
    assert "A dog sleeps." in found.top("Tell me of your dogs!")
    assert found.top("algebra") == ("The engine weaves algebra.",)
    assert found.top("The sea?", most=3) == ()
    assert len(found.top("engine dogs", most=1)) == 1


def test_retrieval_in_chinese_finds_pieces_by_their_characters() -> None:
    card = Character(name="悟空", description="他大闹天宫。他保护师父取经。他的兵器是金箍棒。")
    assert Retriever(card).top("你的兵器是什么？")[0] == "他的兵器是金箍棒。"


def test_retrieval_never_gives_away_the_line_that_is_to_be_predicted() -> None:
    card = Character(name="Ada", description="My dogs bark at  noon. My dogs sleep.")
    assert Retriever(card).top("dogs", answer="my dogs bark at noon") == ("My dogs sleep.",)
