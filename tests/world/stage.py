"""A stage for tests: scenes of any size, a narrator and characters that do as a test says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from personae.records import Call, Environment, Play, Scene, SceneCharacter, Secret
from personae.world.engine import (
    PAPER_SAMPLING,
    PERSONAE_SAMPLING,
    Player,
    PlayPlan,
    play_scene,
)
from personae.world.memory import MemoryStream

_PATH = Path(__file__).parents[2] / "benchmarks" / "lockstep.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("lockstep", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lockstep"] = module
    spec.loader.exec_module(module)
    return module


Lockstep = _load().Lockstep

NAMES = ("Ann", "Bob", "Cid", "Dee")


def scene(
    count: int = 2,
    *,
    places: Mapping[str, str] | None = None,
    secrets: tuple[Secret, ...] = (),
    **fields: Any,
) -> Scene:
    """A scene of that many characters, at one place or at those given by name."""
    return Scene(
        id=f"test/{count}",
        event="A storm comes up.",
        environment=Environment(time="dusk", location="an inn", description="A low room."),
        characters=tuple(
            SceneCharacter(
                name=name,
                description=f"{name} is a guest.",
                position=f"{name} sits",
                state=f"{name} is well",
                place=(places or {}).get(name),
            )
            for name in NAMES[:count]
        ),
        secrets=secrets,
        **fields,
    )


def answer(call: Call, **changes: Any) -> dict[str, Any]:
    """A reply that does little: the act is open, touches nobody and changes nothing.

    Texts name who, when and which step, so that a test can tell them apart.
    """
    assert call.reply_schema is not None
    meta = call.meta
    mark = f"{meta['character']} {meta['step']} {meta['round']}"
    value: dict[str, Any] = {}
    for name, part in call.reply_schema.body["properties"].items():
        if name in changes:
            value[name] = changes[name]
        elif name == "affected":
            value[name] = meta["character"]
        elif name == "perceived_by":
            value[name] = list(part["items"]["enum"])
        elif name == "environment" and part["type"] == "object":
            value[name] = {"time": "", "location": "", "description": ""}
        elif name in ("changes", "to"):
            value[name] = []
        elif name in ("influence", "position", "state", "surroundings"):
            value[name] = ""
        elif name == "concluded":
            value[name] = False
        elif name == "place":
            value[name] = part["enum"][0]
        elif name == "manner":
            value[name] = "open"
        else:
            value[name] = f"{name} of {mark}"
    return value


def scripted(**by_step: Callable[[Call], dict[str, Any] | None]) -> Callable[[Call], Any]:
    """`answer`, with what a test says for a step in place of it."""

    def reply(call: Call) -> Any:
        rule = by_step.get(str(call.meta["step"]))
        changes = rule(call) if rule is not None else None
        return changes if not isinstance(changes, dict) else answer(call, **changes)

    def total(call: Call) -> Any:
        given = reply(call)
        return answer(call) if given is None else given

    return total


async def played(
    played_scene: Scene,
    reply: Callable[[Call], Any] = answer,
    *,
    rounds: int = 2,
    protocol: str = "personae",
    memory: bool = True,
    players: Mapping[str, Player] | None = None,
    **fields: Any,
) -> tuple[Play, Any]:
    """The play of a scene, and the model that played it."""
    model = Lockstep(reply)
    plan = PlayPlan(
        characters=lambda name, _round: f"model of {name}",
        narrator=lambda _round: "the narrator",
        rounds=rounds,
        protocol=protocol,  # type: ignore[arg-type]  # tests name it in words
        language=played_scene.language,
        sampling=PAPER_SAMPLING if protocol == "paper" else PERSONAE_SAMPLING,
        memory=(lambda: MemoryStream(played_scene.language)) if memory else None,
        **fields,
    )
    done = await play_scene(model, played_scene, plan, players)
    return done.play, model


def steps(model: Any, character: str | None = None) -> list[str]:
    """The steps that were asked for, in their order."""
    return [
        str(call.meta["step"])
        for call in model.calls
        if character is None or call.meta["character"] == character
    ]


def text_of(call: Call) -> str:
    """All of a prompt."""
    return "\n".join(message.content for message in call.messages)
