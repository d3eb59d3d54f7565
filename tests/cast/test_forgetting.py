import contextlib
from pathlib import Path

import numpy as np
import pytest

from personae.cast.base import LoadedBase, load_base
from personae.cast.forgetting import (
    blocks_identical,
    change_of,
    compare_routes,
    forgetting,
    gate_drift,
    language_of,
    measure,
    own_words,
    probes_of,
    profile_text,
)
from personae.cast.store import Cast, attach, read_cast, write_cast
from personae.characters.starter import starter
from personae.prompts import names
from personae.records import Character
from personae.records.cast import CastCharacter, CastRow, CastTurn, Routed
from personae.records.cast_reports import Forgetting
from tests.cast.adding import OLD, starters_cast

NEW = "Don Quixote"


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


@pytest.fixture
def base(tiny_base: Path) -> LoadedBase:
    return load_base(str(tiny_base), dtype="float32", device="cpu")


def copied(cast: Cast, folder: Path, *, name=NEW, card=None, tensors=None, weights=None) -> Cast:
    """The cast with one more character, written elsewhere; old ones with what is given."""
    manifest = cast.manifest
    card = card or starter("don-quixote")
    old = [
        one.model_copy(update={"weights": (weights or {}).get(one.name, one.weights)})
        for one in manifest.characters
    ]
    return write_cast(
        folder,
        base=manifest.base,
        rank=manifest.rank,
        alpha=manifest.alpha,
        blocks=manifest.blocks,
        characters=[*old, CastCharacter(name=name, how="profile", weights={"shared": 1.0})],
        tensors=tensors or cast.tensors,
        cards={**cast.cards, name: card},
        mode=manifest.mode,
        protocol=manifest.protocol,
        router=cast.router.with_role(name, card, (name,)),
        gate=cast.gate.with_role(name, card) if cast.gate else None,
    )


# Blocks --------------------------------------------------------------------------------------


def test_a_written_cast_with_one_more_has_the_old_blocks_byte_for_byte(cast: Cast, tmp_path: Path):
    after = copied(cast, tmp_path / "after")
    found = forgetting(cast, after, NEW)

    assert [one.name for one in found.characters] == list(OLD)
    assert all(one.blocks_identical for one in found.characters)
    assert found.forgotten == ()
    assert not found.measured
    assert {one.logit_difference for one in found.characters} == {None}


def test_a_block_of_which_a_single_bit_differs_is_forgotten(cast: Cast, tmp_path: Path):
    tensors = {name: stack.copy() for name, stack in cast.tensors.items()}
    name = next(iter(tensors))
    tensors[name][2, 0, 0] = np.nextafter(tensors[name][2, 0, 0], np.float32(1))  # Alice's
    after = copied(cast, tmp_path / "after", tensors=tensors)

    assert forgetting(cast, after, NEW).forgotten == ("Alice",)
    assert blocks_identical(cast, after, "Ada Lovelace")


def test_a_change_in_the_shared_block_is_everybodys(cast: Cast, tmp_path: Path):
    tensors = {name: stack.copy() for name, stack in cast.tensors.items()}
    next(iter(tensors.values()))[0, 0, 0] += 1
    after = copied(cast, tmp_path / "after", tensors=tensors)

    assert forgetting(cast, after, NEW).forgotten == OLD


def test_other_weights_of_the_same_blocks_are_a_change(cast: Cast, tmp_path: Path):
    after = copied(cast, tmp_path / "after", weights={"Alice": {"shared": 1.0, "Alice": 0.9}})

    assert forgetting(cast, after, NEW).forgotten == ("Alice",)


# The model -----------------------------------------------------------------------------------


def test_there_are_the_same_probes_in_both_languages():
    alice = CastCharacter(name="Alice")
    en, zh = probes_of(alice, "en"), probes_of(alice, "zh")

    assert len(en) == len(zh) >= 4
    assert {row.turns[1].speaker for row in en + zh} == {"Alice"}
    assert {"cast/probes", "cast/ask_for"} <= set(names("en", "cast")) & set(names("zh", "cast"))


def test_a_character_is_probed_in_its_own_language():
    assert language_of(starter("lin-daiyu")) == "zh"
    assert language_of(Character(name="Ann")) == "en"
    assert language_of(None) == "en"


@pytest.mark.parametrize("mode", ["full", "speaker"])
def test_what_is_measured_twice_is_identical_to_the_last_bit(
    tmp_path: Path, tiny_base: Path, base: LoadedBase, mode
):
    cast = starters_cast(tmp_path / "cast", tiny_base, mode=mode)
    after = copied(cast, tmp_path / "after")
    measured = []
    for one in (cast, after):
        stack = attach(base, one)
        measured.append(measure(base, stack, one.manifest, names=OLD, cards=one.cards))
        stack.detach()
    found = forgetting(cast, after, NEW, (measured[0], measured[1]))

    assert found.measured
    assert {one.logit_difference for one in found.characters} == {0.0}
    assert {one.probes for one in found.characters} == {4}
    assert measured[0].logits.keys() == set(OLD)
    assert {len(found.forgotten), sum(one.tokens for one in found.characters)} == {0}


def test_logits_are_those_of_the_model_under_the_characters_blocks(cast: Cast, base: LoadedBase):
    import torch

    from personae.cast.encode import encode

    stack = attach(base, cast)
    found = measure(base, stack, cast.manifest, names=["Alice"]).logits["Alice"]
    (row,) = encode(probes_of(cast.character("Alice"), "en")[0], base.tokenizer, "full", 4096)
    with torch.no_grad(), stack.speaking(stack.weights([{"shared": 1.0, "Alice": 1.0}])):
        whole = base.model(input_ids=torch.tensor([row.ids])).logits[0]
    first = row.supervised.index(True)

    assert len(found[0]) == row.learnt
    assert found[0] == pytest.approx(whole[first - 1 : first - 1 + row.learnt].numpy(), abs=1e-5)


def test_a_changed_block_shows_in_its_own_characters_logits_alone(cast: Cast, tmp_path, base):
    tensors = {name: stack.copy() for name, stack in cast.tensors.items()}
    for blocks in tensors.values():
        blocks[2] *= 1.5  # Alice's
    after = copied(cast, tmp_path / "after", tensors=tensors)
    measured = []
    for one in (cast, after):
        stack = attach(base, one)
        measured.append(measure(base, stack, one.manifest, names=OLD))
        stack.detach()
    found = forgetting(cast, after, NEW, (measured[0], measured[1]))
    by_name = {one.name: one.logit_difference for one in found.characters}

    assert by_name["Alice"] is not None
    assert by_name["Alice"] > 1e-3
    assert by_name["Sherlock Holmes"] == by_name["Ada Lovelace"] == 0.0


def heard(mode, *texts: str):
    return [
        CastRow(
            characters=("Alice", "Ada Lovelace"),
            turns=(
                CastTurn(text=text),
                CastTurn(speaker="Alice", text=f"Curious: {text}"),
                CastTurn(speaker="Ada Lovelace", text="It can be computed, and will be."),
            ),
            source=f"heard, {mode}",
        )
        for text in texts
    ]


@pytest.mark.parametrize("mode", ["full", "speaker"])
def test_the_likelihood_of_held_out_lines_is_that_of_ones_own_words(
    tmp_path: Path, tiny_base: Path, base: LoadedBase, mode
):
    from personae.cast.encode import encode_all
    from personae.cast.evaluate import token_nlls

    cast = starters_cast(tmp_path / "cast", tiny_base, mode=mode)
    stack = attach(base, cast)
    rows, _ = encode_all(heard(mode, "a", "bc"), base.tokenizer, mode, 500)
    found = measure(base, stack, cast.manifest, names=OLD, heldout=rows).scored

    assert found.keys() == {"Alice", "Ada Lovelace"}
    own = [own_words(row, "Alice") for row in rows["Alice"]]
    assert found["Alice"].tokens == sum(row.learnt for row in own)
    # "Curious: a" and "Curious: bc", each with the token that ends the turn
    assert all(len("Curious: a") <= row.learnt <= len(" Curious: bc") + 2 for row in own)
    alone = token_nlls(base.model, own, lambda _batch, _width: contextlib.nullcontext())
    assert found["Alice"].nll != pytest.approx(sum(float(n.sum()) for n in alone), rel=1e-3)


# Routes --------------------------------------------------------------------------------------


def routed(decision, role=None):
    return Routed(decision=decision, role=role, confidence=0.5)


@pytest.mark.parametrize(
    ("before", "after", "meant", "change"),
    [
        (routed("accept", "Ann"), routed("accept", "Ann"), "Ann", None),
        (routed("reject"), routed("reject"), None, None),
        (routed("accept", "Ann"), routed("accept", "New"), "Ann", "stolen"),
        (routed("ask", "Ann"), routed("ask", "New"), "Ann", "stolen"),
        (routed("ask", "Ann"), routed("ask", "New"), None, "moved"),
        (routed("ask", "Ann"), routed("ask", "New"), "Bob", "moved"),
        (routed("accept", "Ann"), routed("accept", "New"), "New", "found"),
        (routed("reject"), routed("accept", "New"), "New", "found"),
        (routed("reject"), routed("ask", "New"), None, "moved"),
        (routed("accept", "Ann"), routed("ask", "Ann"), "Ann", "lost"),
        (routed("ask", "Ann"), routed("reject"), "Ann", "lost"),
        (routed("accept", "Ann"), routed("accept", "Bob"), "Ann", "lost"),
        (routed("ask", "Ann"), routed("accept", "Ann"), "Ann", "found"),
        (routed("accept", "Ann"), routed("accept", "Bob"), "Bob", "found"),
        (routed("reject"), routed("accept", "Ann"), "Ann", "found"),
        (routed("reject"), routed("accept", "Ann"), None, "moved"),
    ],
)
def test_a_change_of_a_route_has_a_name(before, after, meant, change):
    assert change_of(before, after, "New", meant) == change


def test_one_who_is_like_nobody_takes_no_route_by_name(cast: Cast, tmp_path: Path):
    routes = compare_routes(cast, copied(cast, tmp_path / "after"), NEW)

    # Each old one by its name and by "I want you to act like ...": nothing else has another name.
    assert routes.names >= 2 * len(OLD)
    assert routes.dev > 200
    assert not [one for one in routes.changes if one.origin == "name"]
    assert {one.meant for one in routes.changes if one.change == "found"} >= {NEW}
    assert all(one.before != one.after for one in routes.changes)


def test_a_namesake_steals_or_spoils_the_route_by_name_and_it_is_told(cast: Cast, tmp_path: Path):
    liddell = starter("don-quixote").model_copy(
        update={"name": "Alice Liddell", "nickname": "Alice"}
    )
    routes = compare_routes(
        cast, copied(cast, tmp_path / "after", name="Alice Liddell", card=liddell), "Alice Liddell"
    )
    spoilt = [one for one in routes.changes if one.origin == "name"]

    assert {one.meant for one in spoilt} == {"Alice"}
    assert {one.change for one in spoilt} <= {"lost", "stolen"}
    assert routes.count("lost") + routes.count("stolen") >= len(spoilt) > 0


def test_a_double_makes_descriptions_of_the_old_one_doubtful(cast: Cast, tmp_path: Path):
    double = starter("sherlock-holmes").model_copy(update={"name": "Basil Rathbone"})
    routes = compare_routes(
        cast, copied(cast, tmp_path / "after", name="Basil Rathbone", card=double), "Basil Rathbone"
    )
    doubtful = [one for one in routes.changes if one.meant == "Sherlock Holmes"]

    assert routes.count("lost") + routes.count("stolen") == len(doubtful) > 3
    assert {one.change for one in doubtful} == {"lost"}
    assert {one.origin for one in doubtful} >= {"profile", "dev"}


def test_a_double_who_says_it_louder_steals_the_route(cast: Cast, tmp_path: Path):
    card = starter("sherlock-holmes")
    double = card.model_copy(
        update={
            "name": "Basil Rathbone",
            "tags": (*card.tags, "detective"),
            "description": f"A consulting detective of Baker Street. {card.description}",
        }
    )
    routes = compare_routes(
        cast, copied(cast, tmp_path / "after", name="Basil Rathbone", card=double), "Basil Rathbone"
    )
    stolen = [one for one in routes.changes if one.change == "stolen"]

    assert {(one.before.role, one.meant) for one in stolen} == {("Sherlock Holmes",) * 2}
    assert {one.after.role for one in stolen} == {"Basil Rathbone"}
    assert routes.tried == routes.names + routes.profiles + routes.dev
    assert routes.profiles >= 3


# The paper's gate ----------------------------------------------------------------------------


def test_equation_8_moves_every_old_roles_weights_though_its_parameters_stay(
    tmp_path: Path, tiny_base: Path
):
    cast = starters_cast(tmp_path / "cast", tiny_base, protocol="paper")
    card = starter("don-quixote")
    assert cast.gate is not None
    gate = cast.gate.with_role(NEW, card)

    drift = gate_drift(cast.gate, gate, NEW)

    assert np.array_equal(gate.gate.weights[:3], cast.gate.gate.weights)
    assert [one.name for one in drift] == list(OLD)
    for number, one in enumerate(drift):
        old, new = cast.gate.gate.contributions(number), gate.gate.contributions(number)
        assert one.own_before == old[number]
        assert one.own_after == new[number]
        assert one.new == new[3] > 0
        # A softmax with one term more: every old weight falls by the same share.
        assert new[:3] == pytest.approx(old * (1 - one.new))
        assert one.greatest == pytest.approx(max(old) * one.new)


# The record ----------------------------------------------------------------------------------


def test_the_record_goes_through_json_and_back(cast: Cast, tmp_path: Path):
    import json

    found = forgetting(cast, copied(cast, tmp_path / "after"), NEW)

    assert Forgetting.from_dict(json.loads(found.to_json())) == found


def test_a_profile_is_one_text_of_the_card_without_its_secrets():
    card = starter("alice")
    text = profile_text(card)

    assert card.name in text
    assert not [secret.fact for secret in card.ours.secrets if secret.fact in text]


def test_reading_a_cast_back_forgets_nothing(cast: Cast):
    again = read_cast(cast.path)

    assert all(blocks_identical(cast, again, name) for name in OLD)
    assert not blocks_identical(cast, again, "Nobody")
