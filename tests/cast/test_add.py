import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from personae.cast.add import add_character, added_rows, check_names, licences_of
from personae.cast.fuse import eq7_error, paper_fuse
from personae.cast.history import read_history
from personae.cast.plan import TrainPlan
from personae.cast.store import ADDITIONS, Cast, read_cast
from personae.characters.card import card_of
from personae.characters.starter import starter
from personae.errors import InputError, UsageError
from personae.journal.flow import NoWatcher
from personae.records import Character
from personae.records.cast import CastRow, CastTurn
from personae.records.cast_reports import Addition
from tests.cast.adding import OLD, starters_cast

NEW = "Don Quixote"
QUICK = TrainPlan(epochs=2, batch_rows=4, lr=5e-3, max_tokens=600)


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cast(tmp_path: Path, tiny_base: Path) -> Cast:
    return starters_cast(tmp_path / "cast", tiny_base)


def spoken(count: int = 4, name: str = NEW, *, licence: str | None = "CC0-1.0") -> list[CastRow]:
    return [
        CastRow(
            characters=(name,),
            turns=(
                CastTurn(text=f"What is that, number {n}?"),
                CastTurn(speaker=name, text=f"A giant, Sancho, the {n}th of them!"),
            ),
            source=f"quixote.jsonl, line {n}",
            licence=licence,
        )
        for n in range(1, count + 1)
    ]


def bytes_of(folder: Path) -> dict[str, str]:
    """The hash of every file that is of the cast itself."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.startswith(".")
    }


# Fusion --------------------------------------------------------------------------------------


def test_a_fused_character_is_a_line_in_the_manifest_and_no_tensor(cast: Cast):
    before = bytes_of(cast.path)
    added = add_character(
        cast.path, "starter:don-quixote", "fuse", neighbours={"Alice": 3, "Ada Lovelace": 1}
    )
    after = bytes_of(cast.path)

    character = added.cast.character(NEW)
    assert character.weights == {"shared": 1.0, "Alice": 0.75, "Ada Lovelace": 0.25}
    assert character.how == "fuse"
    assert after["blocks.safetensors"] == before["blocks.safetensors"]
    assert added.record.neighbours == {"Alice": 0.75, "Ada Lovelace": 0.25}
    assert added.record.block is None
    assert added.record.forgetting.forgotten == ()


def test_the_neighbours_are_those_whose_profiles_are_nearest(cast: Cast):
    added = add_character(cast.path, starter("don-quixote"), "fuse")

    near = added.record.neighbours
    assert 2 <= len(near) <= 3
    assert sum(near.values()) == pytest.approx(1)
    assert added.cast.character(NEW).weights == pytest.approx({"shared": 1.0, **near})


def test_the_new_one_is_found_by_its_name_and_its_card_lies_in_the_cast(cast: Cast):
    added = add_character(cast.path, "starter:don-quixote", "fuse", aliases=["The Knight"])

    assert added.cast.route("Play Don Quixote.").role == NEW
    assert added.cast.route("Mr The Knight, The Knight!").role == NEW
    assert added.cast.cards[NEW].description == starter("don-quixote").description
    assert added.cast.character(NEW).aliases == ("The Knight",)
    assert [added.cast.route(f"Play {name}.").role for name in OLD] == list(OLD)


def test_a_card_file_is_taken_as_well(cast: Cast, tmp_path: Path):
    file = tmp_path / "knight.json"
    file.write_bytes(card_of(starter("don-quixote")).to_bytes())

    assert add_character(cast.path, file, "profile", name="The Don").cast.names[-1] == "The Don"


def test_a_fusion_inherits_the_licences_of_its_neighbours_data(cast: Cast):
    added = add_character(
        cast.path, "starter:don-quixote", "fuse", neighbours={"Alice": 1, "Ada Lovelace": 1}
    )

    assert added.record.licences == ("CC-BY-4.0",)
    assert added.record.unlicensed == ("ada.jsonl",)
    assert licences_of(added.cast.manifest, "Sherlock Holmes") == (("MIT",), ())


def test_a_fusion_of_a_fusion_speaks_through_blocks(cast: Cast):
    add_character(
        cast.path, "starter:don-quixote", "fuse", neighbours={"Alice": 1, "Ada Lovelace": 1}
    )
    again = add_character(cast.path, "starter:disc-steady", "fuse", neighbours={NEW: 1, "Alice": 1})

    assert again.cast.character("Grace Whitlock").weights == {
        "shared": 1.0, "Alice": 0.75, "Ada Lovelace": 0.25,
    }  # fmt: skip


def test_who_has_nothing_of_its_own_is_nobodys_neighbour(cast: Cast):
    double = starter("don-quixote").model_copy(update={"name": "His Double"})
    add_character(cast.path, double, "profile")
    added = add_character(cast.path, "starter:don-quixote", "fuse")

    assert "His Double" not in added.record.neighbours
    assert set(added.record.neighbours) <= set(OLD)


def test_one_whom_no_profile_is_like_is_refused_with_what_mends_it(cast: Cast):
    before = bytes_of(cast.path)
    with pytest.raises(UsageError, match=r"nobody to fuse it from.*--how expand.*--how profile"):
        add_character(cast.path, "starter:lin-daiyu", "fuse")

    assert bytes_of(cast.path) == before


def test_neighbours_who_are_not_there_are_refused(cast: Cast):
    with pytest.raises(UsageError, match="no 'Hamlet'"):
        add_character(cast.path, "starter:don-quixote", "fuse", neighbours={"Hamlet": 1})


# Tuning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "speaker"])
def test_tuned_weights_make_the_sample_lines_likelier(tmp_path: Path, tiny_base: Path, mode):
    cast = starters_cast(tmp_path / "cast", tiny_base, mode=mode)
    added = add_character(
        cast.path, "starter:don-quixote", "fuse", data=spoken(3), tune=True, budget=15
    )
    tuning = added.record.tuning

    assert tuning is not None
    assert tuning.lines == 3
    assert 1 < tuning.evaluations <= 15
    assert tuning.loss < tuning.start_loss
    assert added.record.neighbours != tuning.start
    assert added.cast.character(NEW).weights == pytest.approx(
        {"shared": 1.0, **added.record.neighbours}
    )


def test_the_loss_that_is_tuned_is_that_of_the_fused_character(cast: Cast, tiny_base: Path):
    from personae.cast.base import load_base
    from personae.cast.encode import encode_all
    from personae.cast.evaluate import score_rows
    from personae.cast.store import attach

    added = add_character(
        cast.path, "starter:don-quixote", "fuse", data=spoken(3), tune=True, budget=8
    )
    base = load_base(str(tiny_base))
    rows = encode_all(spoken(3), base.tokenizer, "full", 600)[0][NEW]
    stack = attach(base, added.cast)
    scored = score_rows(base, stack, rows, [added.cast.character(NEW).weights] * 3)

    assert added.record.tuning is not None
    assert added.record.tuning.loss == pytest.approx(
        sum(s.nll for s in scored) / sum(s.tokens for s in scored), rel=1e-5
    )


def test_data_that_nothing_would_be_done_with_are_refused(cast: Cast):
    with pytest.raises(UsageError, match="fuse learns nothing from data"):
        add_character(cast.path, "starter:don-quixote", "fuse", data=spoken())


def test_two_lines_are_too_few_to_tune_on(cast: Cast):
    with pytest.raises(UsageError, match="at least 3 sample lines, not 2"):
        add_character(cast.path, "starter:don-quixote", "fuse", data=spoken(2), tune=True)


def test_expansion_can_begin_from_a_tuned_mix(cast: Cast):
    added = add_character(
        cast.path, "starter:don-quixote", "expand", data=spoken(3), tune=True, budget=6,
        plan=QUICK, measured=False,
    )  # fmt: skip

    assert added.record.tuning is not None
    assert added.cast.character(NEW).weights == pytest.approx(
        {"shared": 1.0, **added.record.neighbours, NEW: 1.0}
    )


def test_held_out_lines_are_measured_for_a_fusion_too(cast: Cast):
    added = add_character(cast.path, "starter:don-quixote", "fuse", heldout=heldout())
    found = {one.name: one for one in added.record.forgetting.characters}

    assert added.record.forgetting.measured
    assert found["Alice"].nll_before == found["Alice"].nll_after
    assert found["Alice"].tokens > 0
    assert {one.logit_difference for one in found.values()} == {0.0}


# Profile -------------------------------------------------------------------------------------


def test_a_profile_speaks_through_the_shared_block_alone(cast: Cast):
    added = add_character(cast.path, "starter:lin-daiyu", "profile")

    assert added.cast.character("林黛玉").weights == {"shared": 1.0}
    assert added.cast.character("林黛玉").how == "profile"
    assert added.record.neighbours == {}
    assert "林黛玉" in added.cast.cards


def test_a_profile_takes_no_data_and_no_neighbours(cast: Cast):
    with pytest.raises(UsageError, match="profile takes the card alone"):
        add_character(cast.path, "starter:don-quixote", "profile", data=spoken())
    with pytest.raises(UsageError, match="profile takes the card alone"):
        add_character(cast.path, "starter:don-quixote", "profile", neighbours={"Alice": 1})


def test_neither_a_fusion_nor_a_profile_needs_torch(cast: Cast):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from personae.cast.add import add_character\n"
        "path = sys.argv[1]\n"
        "add_character(path, 'starter:don-quixote', 'fuse')\n"
        "print(add_character(path, 'starter:lin-daiyu', 'profile').cast.names)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(cast.path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert NEW in done.stdout


# Expansion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "speaker"])
def test_an_expanded_character_has_a_block_of_its_own_and_the_others_are_what_they_were(
    tmp_path: Path, tiny_base: Path, mode
):
    cast = starters_cast(tmp_path / "cast", tiny_base, mode=mode)
    added = add_character(
        cast.path, "starter:don-quixote", "expand", data=spoken(), plan=QUICK,
        neighbours={"Alice": 1, "Sherlock Holmes": 1}, heldout=heldout(),
    )  # fmt: skip
    old = added.record.forgetting

    assert added.cast.character(NEW).weights == {
        "shared": 1.0, "Sherlock Holmes": 0.5, "Alice": 0.5, NEW: 1.0,
    }  # fmt: skip
    assert old.measured
    assert old.forgotten == ()
    assert {one.logit_difference for one in old.characters} == {0.0}
    alice = next(one for one in old.characters if one.name == "Alice")
    assert alice.tokens > 0
    assert alice.nll_before == alice.nll_after
    assert [one.tokens for one in old.characters if one.name != "Alice"] == [0, 0]
    block = added.record.block
    assert block is not None
    assert block.loss is not None
    assert block.loss[1] < block.loss[0]
    assert [(d.source, d.licence, d.rows) for d in block.data] == [("quixote.jsonl", "CC0-1.0", 4)]
    assert added.record.licences == ("CC-BY-4.0", "CC0-1.0", "MIT")
    assert added.cast.manifest.blocks[-1] == block
    slot = {name: stack[-1] for name, stack in added.cast.tensors.items()}
    assert any(t.any() for n, t in slot.items() if n.startswith("B."))
    assert len(added.history) == block.steps
    assert read_history(added.out.with_name("Don-Quixote.history.jsonl")) == added.history
    assert added_rows(cast.path) == tuple(spoken())


def heldout() -> list[CastRow]:
    return [
        CastRow(
            characters=("Alice",),
            turns=(CastTurn(text="Tea?"), CastTurn(speaker="Alice", text="If you please.")),
            source="tea.jsonl, line 1",
        )
    ]


def test_without_data_it_learns_from_the_exchanges_on_its_card(cast: Cast):
    card = Character(
        name="Nemo",
        description="A captain.",
        mes_example="<START>\n{{user}}: Where are we?\n{{char}}: Below the ice.",
    )
    added = add_character(cast.path, card, "expand", plan=QUICK, measured=False)

    assert added.record.block is not None
    assert [(d.source, d.rows) for d in added.record.block.data] == [("card of Nemo", 1)]


def test_one_whom_no_profile_is_like_can_be_expanded_from_the_shared_block(cast: Cast):
    added = add_character(
        cast.path,
        "starter:lin-daiyu",
        "expand",
        data=spoken(2, "林黛玉"),
        plan=QUICK,
        measured=False,
    )

    assert added.cast.character("林黛玉").weights == {"shared": 1.0, "林黛玉": 1.0}
    assert added.record.neighbours == {}


@pytest.mark.parametrize(
    ("protocol", "rate"),
    [("personae", 2e-3 * (576 / 64) ** 0.775), ("paper", 2e-4)],  # the tiny base is 64 wide
)
def test_a_cast_that_does_not_say_how_it_was_trained_is_expanded_by_the_defaults_for_its_base(
    tmp_path: Path, tiny_base: Path, protocol, rate: float
):
    cast = starters_cast(tmp_path / protocol, tiny_base, protocol=protocol)
    added = add_character(
        cast.path, "starter:don-quixote", "expand", data=spoken(2), measured=False
    )
    assert max(step.lr for step in added.history) == pytest.approx(rate)


def test_dialogues_that_are_too_long_to_be_learnt_are_in_the_record(cast: Cast):
    (short,) = spoken(1)
    long = short.model_copy(
        update={"turns": (CastTurn(speaker=NEW, text="on " * 300),), "source": "long"}
    )
    talkative = short.model_copy(
        update={"turns": (CastTurn(text="Why? " * 100), *short.turns), "source": "talkative"}
    )
    added = add_character(
        cast.path, "starter:don-quixote", "expand", data=[short, talkative, long], plan=QUICK,
        measured=False,
    )  # fmt: skip

    assert added.record.too_long == ("long",)
    assert added.record.shortened == 1
    assert added.record.block is not None
    assert added.record.block.steps == 2  # of two rows, twice


def test_lines_that_do_not_fit_are_no_sample_lines(cast: Cast):
    rows = [
        row.model_copy(update={"turns": (CastTurn(speaker=NEW, text="on " * 600),)})
        for row in spoken(4)
    ]
    with pytest.raises(UsageError, match="at least 3 sample lines, not 0"):
        add_character(cast.path, "starter:don-quixote", "fuse", data=rows, tune=True)


def test_what_was_learnt_from_is_kept_even_where_the_report_fails(cast: Cast, tiny_base: Path):
    from personae.cast.base import load_base

    base = load_base(str(tiny_base))

    class Breaks(NoWatcher):
        def step(self, stage: str) -> None:
            base.model.lm_head.register_forward_hook(self.fail)

        def fail(self, module, given, found):
            if (cast.path / ADDITIONS).exists():
                raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        add_character(
            cast.path, "starter:don-quixote", "expand", data=spoken(2), plan=QUICK, base=base,
            watcher=Breaks(),
        )  # fmt: skip
    assert read_cast(cast.path).names[-1] == NEW
    assert [row.source for row in added_rows(cast.path)] == [row.source for row in spoken(2)]


def test_lines_under_an_alias_are_the_characters_own(cast: Cast):
    added = add_character(
        cast.path, "starter:don-quixote", "expand", aliases=["Quijano"],
        data=spoken(3, "Quijano"), plan=QUICK, measured=False,
    )  # fmt: skip

    assert added.record.block is not None
    assert added.record.block.data[0].rows == 3


def test_data_without_a_line_of_the_character_are_refused_by_who_is_in_them(cast: Cast):
    with pytest.raises(
        InputError, match=r"no line in these data is by .Don Quixote.; there are lines of Sancho"
    ):
        add_character(cast.path, "starter:don-quixote", "expand", data=spoken(2, "Sancho"))
    with pytest.raises(InputError, match="holds no dialogue to learn from"):
        add_character(cast.path, Character(name="Nemo", description="A captain."), "expand")


class Halt(NoWatcher):
    """Stops everything at a step of training."""

    def step(self, stage: str) -> None:
        raise KeyboardInterrupt


def test_an_addition_that_is_interrupted_leaves_the_old_cast(cast: Cast):
    before = bytes_of(cast.path)
    with pytest.raises(KeyboardInterrupt):
        add_character(
            cast.path, "starter:don-quixote", "expand", data=spoken(), plan=QUICK, watcher=Halt()
        )

    assert bytes_of(cast.path) == before
    assert read_cast(cast.path).names == OLD


class Meanwhile(NoWatcher):
    """Adds somebody else to the cast while training goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, stage: str, total: int) -> None:
        add_character(self.path, "starter:lin-daiyu", "profile")


def test_a_cast_that_somebody_else_changed_meanwhile_is_not_written_over(cast: Cast):
    with pytest.raises(UsageError, match="was changed while"):
        add_character(
            cast.path, "starter:don-quixote", "expand", data=spoken(), plan=QUICK,
            measured=False, watcher=Meanwhile(cast.path),
        )  # fmt: skip

    assert read_cast(cast.path).names == (*OLD, "林黛玉")


def test_the_base_is_free_again_after_an_addition(cast: Cast, tiny_base: Path):
    from personae.cast.base import load_base
    from personae.cast.stacked import StackedLinear

    base = load_base(str(tiny_base))
    add_character(cast.path, "starter:don-quixote", "expand", data=spoken(2), plan=QUICK, base=base)

    assert not [m for m in base.model.modules() if isinstance(m, StackedLinear)]


# Protocol paper ------------------------------------------------------------------------------


def test_the_papers_fusion_is_a_block_by_equation_7_with_the_gates_weights(
    tmp_path: Path, tiny_base: Path
):
    cast = starters_cast(tmp_path / "cast", tiny_base, protocol="paper")
    added = add_character(cast.path, "starter:don-quixote", "fuse")
    omega = list(added.record.neighbours.values())

    assert list(added.record.neighbours) == list(OLD)
    assert sum(omega) == pytest.approx(1)
    assert added.cast.character(NEW).weights == {NEW: 1.0}
    block = paper_fuse(cast.tensors, omega)
    assert all(np.array_equal(added.cast.tensors[n][-1], block[n]) for n in block)
    assert added.record.eq7_error == pytest.approx(eq7_error(cast.tensors, omega))
    assert added.record.eq7_error is not None
    assert added.record.eq7_error > 0.5
    assert added.record.unlicensed == ("ada.jsonl",)
    assert added.record.licences == ("CC-BY-4.0", "MIT")


def test_the_papers_gate_gets_its_dimension_and_the_drift_is_told(tmp_path: Path, tiny_base: Path):
    cast = starters_cast(tmp_path / "cast", tiny_base, protocol="paper")
    added = add_character(
        cast.path, "starter:don-quixote", "expand", data=spoken(), plan=QUICK, measured=False
    )
    drift = added.record.forgetting.gate

    assert added.cast.character(NEW).weights == {NEW: 1.0}
    assert added.cast.gate is not None
    assert added.cast.gate.roles == (*OLD, NEW)
    assert [one.name for one in drift] == list(OLD)
    assert all(one.own_after < one.own_before for one in drift)
    assert added.record.forgetting.forgotten == ()


def test_the_paper_does_not_tune(tmp_path: Path, tiny_base: Path):
    cast = starters_cast(tmp_path / "cast", tiny_base, protocol="paper")
    with pytest.raises(UsageError, match="from its gate: no tuning"):
        add_character(cast.path, "starter:don-quixote", "fuse", data=spoken(), tune=True)


# Names and records ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "aliases", "said"),
    [
        ("Alice", [], "has 'Alice' already"),
        ("ALICE", [], "has 'ALICE' already"),
        ("Shared", [], "so is the shared block"),
        ("Somebody", ["Ada  Lovelace"], "already"),
        ("  ", [], "has no name"),
    ],
)
def test_a_name_that_is_taken_is_refused(cast: Cast, name, aliases, said):
    with pytest.raises(UsageError, match=said):
        add_character(cast.path, "starter:don-quixote", "profile", name=name, aliases=aliases)


def test_an_alias_of_somebody_is_taken_too(cast: Cast):
    added = add_character(cast.path, "starter:don-quixote", "profile", aliases=["The Don"])

    with pytest.raises(UsageError, match=r"'the don' already \(it is 'Don Quixote'\)"):
        check_names(added.cast, "the don")


def test_another_way_than_the_three_is_refused(cast: Cast):
    with pytest.raises(UsageError, match="fuse, expand or profile, not 'trained'"):
        add_character(cast.path, "starter:don-quixote", "trained")


def test_the_record_lies_in_the_cast_and_stays_there(cast: Cast):
    first = add_character(cast.path, "starter:don-quixote", "fuse")
    second = add_character(cast.path, "starter:lin-daiyu", "profile")

    assert first.out.parent == second.out.parent == cast.path / ADDITIONS
    for one in (first, second):
        assert Addition.from_dict(json.loads(one.out.read_text("utf-8"))) == one.record
    assert added_rows(cast.path) == ()
    assert first.record.cast_after == second.record.cast_before
    assert first.record.cast_before != first.record.cast_after
