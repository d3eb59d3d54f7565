"""Scenes: where a play begins (CharacterBox, section 3.1: S = {E, C})."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from personae.records.base import Record, content_hash
from personae.records.benchmark import Language, NotBlank
from personae.records.character import Secret

Origin = Literal["extracted", "generated"]


class Environment(Record):
    """E of the paper: when, where, and what there is to be perceived."""

    time: str = ""
    location: str = ""
    description: str = ""


class SceneCharacter(Record):
    """One character of a scene.

    Attributes:
        description: what anyone in the scene knows of this character. What only the character
            itself knows belongs into its card, its `goal`, or a secret.
        position: where exactly it is; all who are at the same place see it.
        place: the part of the scene within which one hears and sees each other; None is the
            scene's one place. Characters at different places do not perceive each other.
        state: body and mind at the start; known to the character itself and to the narrator.
        goal: what it wants; known to itself and to the narrator.
        card: the character's card: `starter:ID`, or a path relative to the scene file.
    """

    name: NotBlank
    description: str = ""
    gender: str | None = None
    position: str = ""
    place: str | None = None
    state: str = ""
    goal: str | None = None
    card: str | None = None


class ScriptLine(Record):
    """What a character did and said in the source that a scene was taken from."""

    character: str
    action: str = ""
    dialogue: str = ""


class Scene(Record):
    """A scene as it is before the play (section 3.1, and section 6.1 for the two origins).

    Attributes:
        id: unique in its file. Scenes of CharacterBox are `TITLE/extracted/ID` or
            `TITLE/generated/ID`.
        title: the book or world that it belongs to.
        event: what is going on, in a line.
        origin: taken from a text, or invented.
        secrets: facts and who knows them, beside those of the characters' cards.
        plot, script: how the source goes on. For people and comparisons; never in a prompt, since
            it would give away what the characters are to find out.
        source: where it is from and who wrote it.
    """

    id: str = Field(min_length=1)
    title: str = ""
    language: Language = "en"
    origin: Origin = "generated"
    event: str = ""
    environment: Environment
    characters: tuple[SceneCharacter, ...] = Field(min_length=1)
    secrets: tuple[Secret, ...] = ()
    plot: str = ""
    script: tuple[ScriptLine, ...] = ()
    source: str = ""

    @model_validator(mode="after")
    def _names_are_unique_and_known(self) -> Scene:
        names = [c.name for c in self.characters]
        if len(set(names)) != len(names):
            twice = min(n for n in names if names.count(n) > 1)
            raise ValueError(f"two characters are called {twice!r}")
        for secret in self.secrets:
            for name in secret.known_by:
                if name not in names:
                    raise ValueError(f"a secret is known by {name!r}, who is not in the scene")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 over all that a play can depend on (not plot, script and source)."""
        kept: dict[str, Any] = self.to_dict()
        return content_hash({k: v for k, v in kept.items() if k not in _NOT_PLAYED})


_NOT_PLAYED = frozenset({"plot", "script", "source"})
