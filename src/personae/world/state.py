"""The typed state of the world, and the only way it changes: patches that the narrator proposes.

A patch is refused whole if it touches anything outside its `Bounds`: an unknown name, a character
elsewhere, what a whisper may not show. What is empty in a patch stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from personae.records import CharacterState, Environment, Record, Scene, WorldState

UNNAMED_PLACE = "*"
"""How prompts and replies call the one place that has no name (it is `""` in the state)."""


class RefusedError(ValueError):
    """A reply that meets its schema and still cannot stand; the message says why to the model."""


class CharacterPatch(Record):
    """What changes about one character; empty fields stay as they are.

    Attributes:
        place: where it goes (a label, see `place_label`); it is there from the next round on.
    """

    who: str
    position: str = ""
    state: str = ""
    place: str = ""


class Patch(Record):
    """What a narrator wants changed.

    Attributes:
        environment: fields that are empty stay as they are.
        surroundings: what is to be perceived at the group's place, where places differ.
    """

    characters: tuple[CharacterPatch, ...] = ()
    environment: Environment = Environment()
    surroundings: str = ""


@dataclass(frozen=True)
class Bounds:
    """What a patch may touch.

    Attributes:
        names: the characters whose state may change.
        visible: whether that may change which all around would see: positions, places,
            surroundings. It may not after a whisper.
        place: where the group is (`""` for a place without a name).
        places: the labels of all places that one can go to; empty where there is one only.
        alone: the group is the only one, so that it may change the environment itself.
    """

    names: tuple[str, ...]
    visible: bool = True
    place: str = ""
    places: tuple[str, ...] = ()
    alone: bool = True


def first_state(scene: Scene) -> WorldState:
    """The state at the beginning of a scene."""
    return WorldState(
        environment=scene.environment,
        characters={
            c.name: CharacterState(place=c.place or "", position=c.position, state=c.state)
            for c in scene.characters
        },
    )


def place_label(place: str) -> str:
    """How prompts and replies call a place."""
    return place or UNNAMED_PLACE


def labels(scene: Scene) -> tuple[str, ...]:
    """The labels of a scene's places in the order of its characters; empty if there is one."""
    found = tuple(dict.fromkeys(place_label(c.place or "") for c in scene.characters))
    return found if len(found) > 1 else ()


def together(state: WorldState) -> dict[str, tuple[str, ...]]:
    """The characters by place, in the scene's order."""
    groups: dict[str, tuple[str, ...]] = {}
    for name, one in state.characters.items():
        groups[one.place] = (*groups.get(one.place, ()), name)
    return groups


def read_patch(value: Mapping[str, Any]) -> Patch:
    """The patch inside a narrator's reply (`prompts/world_schemas.py`, `changes`)."""
    return Patch(
        characters=tuple(CharacterPatch.model_validate(c) for c in value.get("changes", ())),
        environment=Environment.model_validate(value.get("environment", {})),
        surroundings=value.get("surroundings", ""),
    )


def check_patch(patch: Patch, bounds: Bounds) -> None:
    """Whether a patch keeps to its bounds.

    Raises:
        RefusedError: it does not; names what and why.
    """
    seen: set[str] = set()
    for one in patch.characters:
        if one.who not in bounds.names:
            raise RefusedError(
                f"{one.who!r} cannot be changed here; only {', '.join(bounds.names)} can"
            )
        if one.who in seen:
            raise RefusedError(f"{one.who!r} is changed twice; give all its changes in one entry")
        seen.add(one.who)
        if not bounds.visible and (one.position.strip() or one.place.strip()):
            raise RefusedError(
                f"after a whisper only the state of those who heard it can change, "
                f"not the position of {one.who!r}"
            )
        if one.place.strip() and one.place not in (*bounds.places, place_label(bounds.place)):
            raise RefusedError(
                f"{one.place!r} is no place of this scene; "
                f"there are {', '.join(bounds.places) or place_label(bounds.place)}"
            )
    changes_all = any(v.strip() for v in patch.environment.to_dict().values())
    if not bounds.visible and (changes_all or patch.surroundings.strip()):
        raise RefusedError("a whisper does not change the surroundings")
    if changes_all and not bounds.alone:
        raise RefusedError(
            "the environment is shared with characters elsewhere; change the surroundings here"
        )


def apply_patch(state: WorldState, patch: Patch, bounds: Bounds) -> WorldState:
    """The state after a patch; where characters go (`moves`) happens at the end of the round.

    Raises:
        RefusedError: see `check_patch`; nothing has changed then.
    """
    check_patch(patch, bounds)
    characters = dict(state.characters)
    for one in patch.characters:
        old = characters[one.who]
        characters[one.who] = old.model_copy(
            update={
                "position": one.position.strip() or old.position,
                "state": one.state.strip() or old.state,
            }
        )
    wanted = {k: v.strip() for k, v in patch.environment.to_dict().items() if v.strip()}
    places = dict(state.places)
    if patch.surroundings.strip():
        places[bounds.place] = patch.surroundings.strip()
    return WorldState(
        environment=state.environment.model_copy(update=wanted),
        places=places,
        characters=characters,
    )


def moves(patch: Patch, bounds: Bounds) -> dict[str, str]:
    """Who goes to which other place."""
    goes = {c.who: c.place for c in patch.characters if c.place.strip()}
    return {
        who: "" if label == UNNAMED_PLACE else label
        for who, label in goes.items()
        if label != place_label(bounds.place)
    }


def move(state: WorldState, goes: Mapping[str, str]) -> WorldState:
    """The state once everyone has arrived."""
    return state.model_copy(
        update={
            "characters": {
                name: one.model_copy(update={"place": goes.get(name, one.place)})
                for name, one in state.characters.items()
            }
        }
    )


def in_order(names: Sequence[str], scene: Scene) -> tuple[str, ...]:
    """Names in the scene's order, each once."""
    return tuple(c.name for c in scene.characters if c.name in names)
