"""Plays built by hand: two characters, a narrator, rounds that are easy to read."""

from __future__ import annotations

from collections.abc import Sequence

from personae.records import (
    CharacterState,
    Environment,
    Event,
    Failure,
    Language,
    Play,
    Scene,
    SceneCharacter,
    Secret,
    WorldState,
)
from personae.records.trajectory import Protocol

NAMES: dict[Language, tuple[str, ...]] = {
    "en": ("Ada", "Bede", "Cleo", "Dov"),
    "zh": ("阿黛", "白德", "克莱", "多夫"),
}


def a_scene(
    scene_id: str = "Ferry/extracted/0",
    *,
    names: Sequence[str] = ("Ada", "Bede"),
    language: Language = "en",
    secrets: Sequence[tuple[str, tuple[str, ...]]] = (),
) -> Scene:
    """A scene of these characters; title and origin are those of its id."""
    title, origin, _ = scene_id.split("/")
    return Scene(
        id=scene_id,
        title=title,
        language=language,
        origin="extracted" if origin == "extracted" else "generated",
        event=f"The last ferry of the night: {scene_id}",
        environment=Environment(time="Night", location="A pier", description="Fog, and a lamp."),
        characters=tuple(
            SceneCharacter(
                name=name,
                description=f"{name}, known on the river.",
                position=f"{name} stands at the rail",
                state=f"{name} is tired",
                goal=f"{name} wants to cross",
            )
            for name in names
        ),
        secrets=tuple(Secret(fact=fact, known_by=known) for fact, known in secrets),
    )


def a_play(
    scene: Scene | str = "Ferry/extracted/0",
    *,
    model: str = "test:player",
    narrator: str = "test:teller",
    rounds: int = 2,
    protocol: Protocol = "personae",
    acts: dict[str, str] | None = None,
    failing: Sequence[tuple[str, int]] = (),
    complete: bool = True,
) -> Play:
    """Each round every character acts and speaks in turn; the first one touches the next one.

    All perceive all. What is done says who does it, in which round: `Ada waves (1)`.

    Args:
        acts: what a character says, instead of its own sentence.
        failing: (character, round) whose act could not be had.
    """
    scene = a_scene(scene) if isinstance(scene, str) else scene
    names = [c.name for c in scene.characters]
    everyone = tuple(names)
    state = WorldState(
        environment=scene.environment,
        characters={n: CharacterState(place="pier", position="", state="") for n in names},
    )
    events = [
        Event(round=0, turn=0, kind="opening", text="The lamp is lit.", perceived_by=everyone,
              state=state, model=narrator)
    ]  # fmt: skip
    for number in range(1, rounds + 1):
        for turn, name in enumerate(names):
            if (name, number) in failing:
                events.append(
                    Event(round=number, turn=turn, kind="failure", actor=name, text="act",
                          failure=Failure(cause="timeout"), model=model)
                )  # fmt: skip
                continue
            said = (acts or {}).get(name, f"I am {name} and I cross ({number}).")
            others = tuple(n for n in names if n != name)
            done = f"{name} waves ({number})"
            events += [
                Event(round=number, turn=turn, kind="action", actor=name, text=done,
                      perceived_by=everyone, model=model),
                Event(round=number, turn=turn, kind="speech", actor=name, text=said,
                      to=others, perceived_by=everyone, model=model),
            ]  # fmt: skip
            if turn == 0 and others:
                events += [
                    Event(round=number, turn=turn, kind="influence", affected=others[0],
                          text=f"{others[0]} is touched ({number})", perceived_by=everyone,
                          model=narrator),
                    Event(round=number, turn=turn, kind="reaction", actor=others[0],
                          text=f"{others[0]} nods ({number})", perceived_by=everyone, model=model),
                    Event(round=number, turn=turn, kind="result",
                          text=f"They stand closer ({number})", perceived_by=everyone,
                          model=narrator),
                ]  # fmt: skip
    return Play(
        scene=scene,
        scene_hash=scene.hash,
        language=scene.language,
        protocol=protocol,
        narrator=narrator,
        models=dict.fromkeys(names, model),
        rounds=rounds,
        complete=complete,
        events=tuple(events),
    )
