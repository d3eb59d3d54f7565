from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from personae.cast.base import LoadedBase, load_base
from personae.cast.expand import (
    check_slot,
    expand,
    expanded_weights,
    first_slot,
    hot_add,
    join,
    plan_for,
    slot_of,
    with_slot,
)
from personae.cast.fuse import fused_weights
from personae.cast.plan import TrainPlan
from personae.cast.stacked import StackedLoRA
from personae.cast.store import Cast, attach
from personae.errors import UsageError
from personae.journal.flow import NoWatcher
from personae.records.cast import CastManifest, CastRow, CastTurn, How, Mode
from tests.cast.adding import OLD, random_blocks, starters_cast

NEW = "Nemo"
QUICK = TrainPlan(epochs=2, batch_rows=2, lr=5e-3, max_tokens=400)


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lines(count: int = 4, *others: str) -> list[CastRow]:
    """Dialogues of the new one, with an old one's word between where one is named."""
    said = [CastTurn(speaker=other, text="Indeed?") for other in others]
    return [
        CastRow(
            characters=(*others, NEW),
            turns=(
                CastTurn(text=f"What is number {n}?"),
                *said,
                CastTurn(speaker=NEW, text=f"Fathom {n}, and falling."),
            ),
            source=f"nemo.jsonl, line {n}",
        )
        for n in range(count)
    ]


def encoded(base: LoadedBase, mode: Mode, rows: list[CastRow]):
    from personae.cast.encode import encode_all

    return encode_all(rows, base.tokenizer, mode, 400)[0]


def logits(base: LoadedBase, stack, weights, ids, mode: Mode):
    import torch

    mixed = stack.weights([weights])
    if mode == "speaker":  # the second half of the tokens are the character's own
        mixed = mixed[:, None].repeat(1, len(ids), 1)
        mixed[:, : len(ids) // 2] = 0
    with torch.inference_mode(), stack.speaking(mixed):
        return base.model(input_ids=torch.tensor([ids])).logits


@pytest.fixture
def cast(tmp_path: Path, tiny_base: Path) -> Cast:
    return starters_cast(tmp_path / "cast", tiny_base)


@pytest.fixture
def base(tiny_base: Path) -> LoadedBase:
    return load_base(str(tiny_base), dtype="float32", device="cpu")


# The slot ------------------------------------------------------------------------------------


def test_a_block_begins_as_it_does_in_peft_and_does_nothing():
    tensors = random_blocks(2)
    slot = first_slot(tensors, seed=1)

    assert {n: t.shape for n, t in slot.items()} == {n: t.shape[1:] for n, t in tensors.items()}
    assert all(not t.any() for n, t in slot.items() if n.startswith("B."))
    for name in (n for n in slot if n.startswith("A.")):
        bound = 1 / np.sqrt(slot[name].shape[1])  # Kaiming uniform with a = sqrt(5)
        assert np.abs(slot[name]).max() <= bound
        assert slot[name].std() == pytest.approx(bound / np.sqrt(3), rel=0.15)


def test_a_blocks_beginning_depends_on_its_seed_and_on_nothing_that_is_there():
    one, other = first_slot(random_blocks(2), 1), first_slot(random_blocks(5, seed=9), 1)

    assert all(np.array_equal(one[n], other[n]) for n in one)
    again = first_slot(random_blocks(2), 2)
    assert not any(np.array_equal(one[n], again[n]) for n in one if n.startswith("A."))


def test_a_slot_more_moves_none_of_the_others():
    tensors = random_blocks(3)
    slot = {n: t[0] for n, t in random_blocks(1, seed=8).items()}
    more = with_slot(tensors, slot)

    assert all(more[n][:3].tobytes() == tensors[n].tobytes() for n in tensors)
    assert all(np.array_equal(more[n][3], slot[n]) for n in tensors)


def test_a_block_of_another_shape_is_refused_by_name():
    tensors = random_blocks(2)
    slot = first_slot(tensors, 0)
    name = next(iter(slot))

    with pytest.raises(UsageError, match="is of shape"):
        check_slot(tensors, {**slot, name: slot[name][:, :3]})
    with pytest.raises(UsageError, match="is absent"):
        check_slot(tensors, {n: t for n, t in slot.items() if n != name})
    with pytest.raises(UsageError, match=r"no 'A\.more'"):
        check_slot(tensors, {**slot, "A.more": slot[name]})


def test_a_plan_takes_from_the_cast_what_its_blocks_are(cast: Cast):
    plan = plan_for(cast.manifest, replace(QUICK, rank=64, mode="speaker"), 7)

    assert (plan.rank, plan.alpha, plan.mode, plan.seed) == (4, 8.0, "full", 7)
    assert plan.targets == cast.manifest.targets
    assert (plan.lr, plan.epochs) == (QUICK.lr, QUICK.epochs)


# Training it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "speaker"])
def test_old_characters_say_to_the_last_bit_what_they_said(
    tmp_path: Path, tiny_base: Path, base: LoadedBase, mode: Mode
):
    cast = starters_cast(tmp_path / "cast", tiny_base, mode=mode)
    stack = attach(base, cast)
    ids = list(range(3, 63))
    old = {c.name: dict(c.weights) for c in cast.manifest.characters}
    before = {name: logits(base, stack, weights, ids, mode) for name, weights in old.items()}
    kept = {n: t[: len(cast.manifest.blocks)].copy() for n, t in stack.state().items()}
    fused = fused_weights(cast.manifest, {"Alice": 0.6, "Sherlock Holmes": 0.4})

    done = expand(
        base, stack, cast.manifest, NEW, fused,
        encoded(base, mode, lines(4, "Alice") if mode == "speaker" else lines()),
        plan_for(cast.manifest, QUICK, 0),
    )  # fmt: skip

    for name, weights in old.items():
        assert logits(base, stack, weights, ids, mode).equal(before[name])
    now = stack.state()
    assert all(now[n][: len(cast.manifest.blocks)].tobytes() == kept[n].tobytes() for n in kept)
    assert any(done.slot[n].any() for n in done.slot if n.startswith("B."))
    assert done.weights == {"shared": 1.0, "Sherlock Holmes": 0.4, "Alice": 0.6, NEW: 1.0}
    assert done.block.loss is not None
    assert done.block.loss[1] < done.block.loss[0]
    assert done.block.steps == 4


def test_an_expanded_character_begins_as_the_fusion_of_its_neighbours(cast: Cast, base: LoadedBase):
    stack = attach(base, cast)
    fused = fused_weights(cast.manifest, {"Alice": 0.7, "Ada Lovelace": 0.3})
    ids = list(range(3, 40))
    as_fused = logits(base, stack, fused, ids, "full")
    hot_add(stack, NEW, first_slot(cast.tensors, 0))
    at_first = logits(base, stack, expanded_weights(fused, NEW), ids, "full")

    assert at_first.sub(as_fused).abs().max() < 1e-5
    assert as_fused.sub(logits(base, stack, {"shared": 1.0}, ids, "full")).abs().max() > 1e-2


def test_the_first_loss_of_expansion_is_that_of_the_fusion(cast: Cast, base: LoadedBase):
    from personae.cast.evaluate import score_rows

    stack = attach(base, cast)
    fused = fused_weights(cast.manifest, {"Alice": 1.0})
    rows = encoded(base, "full", lines(2))
    scored = score_rows(base, stack, rows[NEW], [fused] * 2)
    done = expand(base, stack, cast.manifest, NEW, fused, rows, plan_for(cast.manifest, QUICK, 0))

    assert done.history[0].loss == pytest.approx(
        sum(s.nll for s in scored) / sum(s.tokens for s in scored), rel=1e-4
    )


def test_expansion_with_the_same_seed_is_bit_equal(cast: Cast, tiny_base: Path):
    slots = []
    for _ in range(2):
        base = load_base(str(tiny_base), dtype="float32", device="cpu")
        done = expand(
            base, attach(base, cast), cast.manifest, NEW, {"shared": 1.0},
            encoded(base, "full", lines()), plan_for(cast.manifest, QUICK, 3),
        )  # fmt: skip
        slots.append(done.slot)

    assert all(slots[0][n].tobytes() == slots[1][n].tobytes() for n in slots[0])


def test_an_expansion_that_was_broken_off_begins_anew_or_goes_on_from_its_checkpoint(
    cast: Cast, tiny_base: Path, tmp_path: Path
):
    class Stops(NoWatcher):
        def step(self, stage: str) -> None:
            raise KeyboardInterrupt

    def fresh() -> tuple[LoadedBase, StackedLoRA, CastManifest, str, dict[str, float]]:
        base = load_base(str(tiny_base), dtype="float32", device="cpu")
        return base, attach(base, cast), cast.manifest, NEW, {"shared": 1.0}

    rows, plan = encoded(fresh()[0], "full", lines()), plan_for(cast.manifest, QUICK, 3)
    whole = expand(*fresh(), rows, plan).slot
    for checkpoint in (None, tmp_path / "checkpoint"):
        resume = checkpoint is not None
        started = fresh()
        with pytest.raises(KeyboardInterrupt):
            expand(*started, rows, plan, checkpoint=checkpoint, resume=resume, watcher=Stops())
        again = expand(*started, rows, plan, checkpoint=checkpoint, resume=resume).slot
        assert all(again[n].tobytes() == whole[n].tobytes() for n in whole)


def test_an_old_block_is_not_trained_further(cast: Cast, base: LoadedBase):
    rows = {"Alice": encoded(base, "full", lines())[NEW]}
    with pytest.raises(UsageError, match="has a block 'Alice' already"):
        expand(
            base, attach(base, cast), cast.manifest, "Alice", {"shared": 1.0}, rows,
            plan_for(cast.manifest, QUICK, 0),
        )  # fmt: skip


def test_the_papers_dropout_works_in_training_and_is_gone_afterwards(cast: Cast, tiny_base: Path):
    learnt = []
    for rate in (0.0, 0.5):
        base = load_base(str(tiny_base), dtype="float32", device="cpu")
        stack = attach(base, cast)
        base.model.eval()  # as whoever has measured it leaves it
        plan = replace(plan_for(cast.manifest, QUICK, 3), dropout=rate)
        rows = encoded(base, "full", lines())
        done = expand(base, stack, cast.manifest, NEW, {"shared": 1.0}, rows, plan)
        learnt.append(done.slot)
        ids = list(range(3, 40))
        again = [logits(base, stack, done.weights, ids, "full") for _ in range(2)]
        assert again[0].equal(again[1])

    assert any(not np.array_equal(learnt[0][n], learnt[1][n]) for n in learnt[0])


def test_a_character_without_a_line_cannot_be_trained(cast: Cast, base: LoadedBase):
    with pytest.raises(UsageError, match="no line of 'Nemo'"):
        expand(
            base, attach(base, cast), cast.manifest, NEW, {"shared": 1.0}, {},
            plan_for(cast.manifest, QUICK, 0),
        )  # fmt: skip


# Adding it to a stack that is loaded ---------------------------------------------------------


def test_a_block_added_to_a_loaded_stack_speaks_as_it_did_where_it_was_trained(
    cast: Cast, tiny_base: Path, base: LoadedBase
):
    trained_in = attach(base, cast)
    done = expand(
        base, trained_in, cast.manifest, NEW, {"shared": 1.0},
        encoded(base, "full", lines()), plan_for(cast.manifest, QUICK, 0),
    )  # fmt: skip
    other = load_base(str(tiny_base), dtype="float32", device="cpu")
    served = attach(other, cast)
    ids = list(range(3, 40))
    before = {n: logits(other, served, {"shared": 1.0, n: 1.0}, ids, "full") for n in OLD}

    hot_add(served, NEW, done.slot)

    assert logits(other, served, done.weights, ids, "full").equal(
        logits(base, trained_in, done.weights, ids, "full")
    )
    for name, was in before.items():
        assert logits(other, served, {"shared": 1.0, name: 1.0}, ids, "full").equal(was)


def test_more_blocks_than_there_is_room_for_leave_the_old_ones_as_they_were(
    cast: Cast, base: LoadedBase
):
    stack = attach(base, cast)
    ids = list(range(3, 40))
    before = logits(base, stack, {"shared": 1.0, "Alice": 1.0}, ids, "full")
    for number in range(12):
        hot_add(stack, f"new {number}", first_slot(cast.tensors, number))

    assert len(stack.slots) == 16
    assert logits(base, stack, {"shared": 1.0, "Alice": 1.0}, ids, "full").equal(before)


def test_a_block_is_taken_out_of_a_cast_by_name(cast: Cast):
    slot = slot_of(cast, "Alice")

    assert all(np.array_equal(slot[n], cast.tensors[n][2]) for n in cast.tensors)
    with pytest.raises(UsageError, match="no block 'Nobody'; there are shared, Sherlock Holmes"):
        slot_of(cast, "Nobody")


def test_a_name_that_is_taken_is_refused_by_the_loaded_stack(cast: Cast, base: LoadedBase):
    with pytest.raises(UsageError, match="has a slot 'Alice' already"):
        hot_add(attach(base, cast), "Alice", first_slot(cast.tensors, 0))


@pytest.mark.parametrize("how", ["fuse", "expand", "profile"])
def test_a_running_cast_that_is_joined_by_somebody_says_what_one_started_anew_says(
    cast: Cast, tiny_base: Path, base: LoadedBase, how: How
):
    from personae.cast.add import add_character
    from personae.cast.generate import CastGenerator, Prompt, Wanted

    ids = tuple(range(40, 60))
    running = CastGenerator(base, attach(base, cast), cast)

    def said(generator: CastGenerator, *names: str) -> list[str]:
        wanted = [
            Wanted(Prompt(ids, (name,) * len(ids)), name, max_tokens=12, temperature=0)
            for name in names
        ]
        return [one.text for one in generator.run(wanted)]

    try:
        first = said(running, *OLD)
        added = add_character(
            cast.path, "starter:don-quixote", how, name=NEW, measured=False,
            data=lines() if how == "expand" else (), plan=replace(QUICK, epochs=20),
        )  # fmt: skip
        assert join(running.stack, added.cast, NEW) == ((NEW,) if how == "expand" else ())
        running.learn(NEW, added.cast.character(NEW).weights)
        together = said(running, NEW, *OLD)
    finally:
        running.close()
    anew = load_base(str(tiny_base), dtype="float32", device="cpu")
    fresh = CastGenerator(anew, attach(anew, added.cast), added.cast)
    try:
        assert together == said(fresh, NEW, *OLD)
    finally:
        fresh.close()
    assert together[1:] == first
    if how == "expand":  # it has learnt something that nobody else says
        assert together[0] not in first
