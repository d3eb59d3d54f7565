"""The starter cast: characters and scenes that ship with the package, written for it.

Four whose first language is English, four whose first language is Chinese, and the four DISC types
(Geier 1977; CharacterBox, appendix C) once in either language. A scene names a card of these as
`starter:ID`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import get_args

from personae.characters.card import card_from_bytes, read_character
from personae.errors import InputError
from personae.records import Character, Language, Scene

SCHEME = "starter:"
DISC_SCENES = "scenes.disc.jsonl"


def starter_ids(language: Language | None = None) -> tuple[str, ...]:
    """The ids of the starter cast, by name; of one first language where that is given."""
    return tuple(name for name in _names() if language in (None, starter(name).ours.language))


@cache
def starter(name: str) -> Character:
    """One character of the starter cast by its id, with or without `starter:` before it.

    Raises:
        InputError: there is none of that id; says which there are.
    """
    wanted = name.removeprefix(SCHEME)
    if wanted not in _names():
        raise InputError(
            f"the starter cast has no {wanted!r}", mend=f"There are: {', '.join(_names())}"
        )
    file = _cast().joinpath(f"{wanted}.json")
    return card_from_bytes(file.read_bytes(), path=file.name).character


def starter_cast(language: Language | None = None) -> dict[str, Character]:
    """The starter cast by id, or those of one first language."""
    return {name: starter(name) for name in starter_ids(language)}


def starter_scenes(language: Language | None = None) -> tuple[Scene, ...]:
    """The scenes of the starter cast, the DISC scene last (CharacterBox, appendix C).

    Args:
        language: of the scenes; None takes all, English first.
    """
    names = [*(f"scenes.{one}.jsonl" for one in ("en", "zh")), DISC_SCENES]
    found = [scene for name in names for scene in _scenes(name)]
    return tuple(scene for scene in found if language in (None, scene.language))


def scenes_named(source: str) -> tuple[Scene, ...]:
    """The scenes that `starter`, `starter:en`, `starter:zh` or `starter:disc` means.

    Raises:
        InputError: none of these; a scene has more to its id than that.
    """
    wanted = source.removeprefix(SCHEME)
    if wanted == "disc":
        return tuple(_scenes(DISC_SCENES))
    for language in get_args(Language):
        if wanted == language:
            return starter_scenes(language)
    if wanted != SCHEME.removesuffix(":"):
        raise InputError(
            f"the starter cast has no scenes {source!r}",
            mend="There are: starter, starter:en, starter:zh, starter:disc; one with --scene ID",
        )
    return starter_scenes()


def card_named(reference: str, beside: Path) -> Character:
    """The card that a scene names (`SceneCharacter.card`): `starter:ID`, or a file.

    Args:
        beside: the folder of the scene file, which the path of a card is relative to.

    Raises:
        InputError: no such starter, an absolute path (a scene file may come from a stranger, who
            cannot know ours), or a file that is no card.
    """
    if reference.startswith(SCHEME):
        return starter(reference)
    if PurePosixPath(reference).is_absolute() or PureWindowsPath(reference).is_absolute():
        raise InputError(
            f"the card {reference!r} is named by an absolute path",
            mend="Name it by its path from the scene file",
        )
    return read_character(beside / reference)


def _cast() -> Traversable:
    return files("personae.data").joinpath("cast")


@cache
def _names() -> tuple[str, ...]:
    cards = (item.name for item in _cast().iterdir() if item.name.endswith(".json"))
    return tuple(sorted(name.removesuffix(".json") for name in cards))


def _scenes(name: str) -> Iterator[Scene]:
    for number, line in enumerate(_cast().joinpath(name).read_text("utf-8").splitlines(), 1):
        yield Scene.from_dict(json.loads(line), path=name, place=f"line {number}")
