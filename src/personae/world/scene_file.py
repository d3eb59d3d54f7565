"""The scene file: JSONL, a `Scene` a line and no header, so that people can write it by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from personae.errors import InputError
from personae.records import Scene
from personae.records.files import read_jsonl, write_atomically


def read_scenes(path: Path) -> tuple[Scene, ...]:
    """The scenes of a file, in its order.

    Raises:
        InputError: names the line that is no scene, or whose id stands on an earlier line too;
            also when the file holds none.
    """
    found: dict[str, tuple[int, Scene]] = {}
    for number, line in read_jsonl(path):
        place = f"line {number}"
        scene = Scene.from_dict(line, path=path, place=place)
        if scene.id in found:
            raise InputError(
                f"a scene {scene.id!r} stands on line {found[scene.id][0]} already",
                path=path,
                place=place,
                mend="Give each scene an id of its own",
            )
        found[scene.id] = number, scene
    if not found:
        raise InputError("holds no scene", path=path, mend="Write one scene a line, as JSON")
    return tuple(scene for _, scene in found.values())


def write_scenes(scenes: Iterable[Scene], path: Path) -> None:
    """Write a scene file, whole or not at all.

    Raises:
        ValueError: two scenes have the same id.
        OutputError: the file cannot be written.
    """
    kept = tuple(scenes)
    if len({scene.id for scene in kept}) != len(kept):
        raise ValueError("two scenes have the same id")
    write_atomically(path, (scene.to_json() + "\n" for scene in kept))
