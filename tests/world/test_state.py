"""Patches of the state: what keeps to its bounds is applied, what does not changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.records import CharacterState, Environment, WorldState
from personae.world.state import (
    Bounds,
    CharacterPatch,
    Patch,
    RefusedError,
    apply_patch,
    first_state,
    labels,
    move,
    moves,
    read_patch,
    together,
)
from tests.world.stage import scene

KNOWN = ("Ann", "Bob", "Cid", "Dee")
names = st.sampled_from((*KNOWN, "Zoe", "ann", ""))
texts = st.sampled_from(("", " ", "by the door", "x" * 50))
places = st.sampled_from(("", "cellar", "attic", "moon", "*"))
patches = st.builds(
    Patch,
    characters=st.lists(
        st.builds(CharacterPatch, who=names, position=texts, state=texts, place=places), max_size=4
    ).map(tuple),
    environment=st.builds(Environment, time=texts, location=texts, description=texts),
    surroundings=texts,
)
bounds = st.builds(
    Bounds,
    names=st.lists(st.sampled_from(KNOWN), unique=True).map(tuple),
    visible=st.booleans(),
    place=st.sampled_from(("", "cellar")),
    places=st.sampled_from(((), ("cellar", "attic"))),
    alone=st.booleans(),
)
states = st.builds(
    WorldState,
    environment=st.builds(Environment, time=texts, location=texts, description=texts),
    places=st.dictionaries(st.sampled_from(("cellar", "attic")), texts, max_size=2),
    characters=st.fixed_dictionaries(
        {n: st.builds(CharacterState, place=places, position=texts, state=texts) for n in KNOWN}
    ),
)


@given(states, patches, bounds)
def test_a_patch_changes_nothing_outside_its_bounds_or_is_refused_and_changes_nothing(
    state, patch, within
):
    before = state.to_json()
    try:
        after = apply_patch(state, patch, within)
    except RefusedError:
        assert state.to_json() == before
        return
    assert state.to_json() == before
    assert set(after.characters) == set(KNOWN)
    for name in KNOWN:
        old, new = state.characters[name], after.characters[name]
        assert new.place == old.place
        if name not in within.names:
            assert new == old
        if not within.visible:
            assert new.position == old.position
    if not (within.alone and within.visible):
        assert after.environment == state.environment
    changed = {k for k in after.places if after.places[k] != state.places.get(k)}
    assert changed <= ({within.place} if within.visible else set())
    assert set(moves(patch, within)) <= set(within.names)
    assert set(moves(patch, within).values()) <= {*within.places} - {within.place}


@given(states, patches, bounds)
def test_what_is_empty_in_a_patch_stays_as_it_was_and_what_is_not_is_taken(state, patch, within):
    try:
        after = apply_patch(state, patch, within)
    except RefusedError:
        return
    for one in patch.characters:
        old, new = state.characters[one.who], after.characters[one.who]
        assert new.position == (one.position.strip() or old.position)
        assert new.state == (one.state.strip() or old.state)
    for field in ("time", "location", "description"):
        assert getattr(after.environment, field) == (
            getattr(patch.environment, field).strip() or getattr(state.environment, field)
        )


@given(states, st.lists(st.tuples(patches, bounds), max_size=5))
def test_an_empty_patch_and_a_refused_one_leave_the_very_same_state(state, many):
    now = state
    for patch, within in many:
        try:
            now = apply_patch(now, patch, within)
        except RefusedError:
            continue
    assert apply_patch(now, Patch(), Bounds(KNOWN)) == now


@pytest.mark.parametrize(
    ("patch", "within", "why"),
    [
        ({"changes": [{"who": "Zoe", "state": "x"}]}, Bounds(KNOWN), "only Ann, Bob, Cid, Dee can"),
        ({"changes": [{"who": "Ann"}, {"who": "Ann"}]}, Bounds(KNOWN), "'Ann' is changed twice"),
        (
            {"changes": [{"who": "Ann", "position": "there"}]},
            Bounds(KNOWN, visible=False),
            "after a whisper",
        ),
        ({"changes": [{"who": "Ann", "place": "moon"}]}, Bounds(KNOWN), "'moon' is no place"),
        (
            {"environment": {"time": "dawn"}},
            Bounds(KNOWN, visible=False),
            "a whisper does not change the surroundings",
        ),
        (
            {"environment": {"time": "dawn"}},
            Bounds(("Ann",), alone=False),
            "shared with characters elsewhere",
        ),
    ],
)
def test_a_refusal_says_why(patch, within, why):
    with pytest.raises(RefusedError, match=why):
        apply_patch(first_state(scene(4)), read_patch(patch), within)


def test_characters_are_together_by_place_in_the_scenes_order():
    apart = scene(4, places={"Bob": "attic", "Dee": "attic"})
    assert together(first_state(apart)) == {"": ("Ann", "Cid"), "attic": ("Bob", "Dee")}
    assert labels(apart) == ("*", "attic")
    assert labels(scene(4)) == ()


def test_whoever_goes_to_the_place_without_a_name_arrives_there():
    apart = scene(2, places={"Bob": "attic"})
    within = Bounds(("Bob",), place="attic", places=labels(apart), alone=False)
    goes = moves(Patch(characters=(CharacterPatch(who="Bob", place="*"),)), within)
    assert goes == {"Bob": ""}
    assert together(move(first_state(apart), goes)) == {"": ("Ann", "Bob")}
    stays = moves(Patch(characters=(CharacterPatch(who="Bob", place="attic"),)), within)
    assert stays == {}
