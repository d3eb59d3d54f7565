"""Scenes that others published, read as they are: CharacterBox."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from personae.errors import InputError
from personae.records import Language, Scene
from personae.records.files import files_of, read_json
from personae.records.language import written_in
from personae.records.scene import Origin

Note: TypeAlias = Callable[[str], object]

SOURCE = "CharacterBox"
FOLDERS = ("extracted_scenes", "generated_data")
SHAPE = 'A file is {"title": ..., "scenes": [{"id", "event", "time", ..., "characters": [...]}]}'

# The published files have 0.7 MB at most; this is far above it and far below harm.
MAX_FILE_BYTES = 64 * 2**20

# `chunk` is the verbatim text of a book that its owners have not given away: never kept.
_SCENE_KEYS = {
    "id", "event", "time", "location", "description", "characters", "actions", "plot", "chunk",
}  # fmt: skip
_CHARACTER_KEYS = {"id", "name", "gender", "description", "position", "states", "state"}
_ACTION_KEYS = {"action_id", "character", "character_id", "action", "dialogue"}
_NOTHING = {"none", "none.", "n/a", "无", "无。"}  # what the files write for an act without words
_OTHER_LETTER = re.compile("[\u0370-\u1fff\u3040-\u30ff\uac00-\ud7af]")
_LETTER = re.compile(r"[^\W\d_]")


def import_characterbox(
    path: Path,
    *,
    origin: Origin | None = None,
    language: Language | None = None,
    note: Note | None = None,
) -> tuple[Scene, ...]:
    """CharacterBox's published scenes (section 6.1), as they are but for what is noted.

    Every file restarts its numbering, and a title has one file of either origin, so the ids are
    `TITLE/extracted/ID` and `TITLE/generated/ID`. `states` becomes `state`; `actions` and `plot`
    are kept as `script` and `plot`, which no prompt shows ("None" in an action is no words); the
    verbatim book text (`chunk`) is not kept.

    Args:
        path: one file, a folder of files, or the folder that holds `extracted_scenes` and
            `generated_data` (a clone of the public repository has them in `data`).
        origin: of all files; None takes it from the folder that a file lies in, or from its name,
            where one of them says `extracted` or `generated`.
        language: of all files; None takes it from each scene's text.
        note: hears, a line each, of what was missing, mended or left out.

    Raises:
        InputError: names file, scene and place of what cannot be mended: a scene without
            characters, a character without a name, a text that is none, two scenes of one id, an
            origin or a language that cannot be told.
    """
    scenes: dict[str, tuple[str, Scene]] = {}
    for file in _files(path):
        reader = _Reader(file, note or _unheard)
        for scene, place in reader.scenes(origin or _origin(file), language):
            if scene.id in scenes:
                raise InputError(
                    f"a second scene {scene.id!r} (see {scenes[scene.id][0]})",
                    path=file,
                    place=place,
                    mend="Give each scene of a title an id of its own",
                )
            scenes[scene.id] = f"{file.name}, {place}", scene
    return tuple(scene for _, scene in scenes.values())


def _unheard(line: str) -> None:
    """Nobody asked for the notes."""


def _files(path: Path) -> list[Path]:
    if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises without permission)
        return [path]
    folders = [base / name for base in (path, path / "data") for name in FOLDERS]
    inside = [folder for folder in folders if os.path.isdir(folder)]  # noqa: PTH112
    root = Path(os.path.realpath(path))
    found = [file for folder in inside or [path] for file in files_of(folder, ".json", root)]
    if not found:
        raise InputError(
            "holds no scenes (no .json file)",
            path=path,
            mend=f"Give a file, or the folder that holds {' and '.join(FOLDERS)}",
        )
    return found


def _origin(file: Path) -> Origin:
    folder = Path(os.path.abspath(file)).parent.name  # noqa: PTH100  (keeps links)
    for name in (folder, file.stem):
        said = [origin for origin in get_args(Origin) if origin in name.lower()]
        if len(said) == 1:
            return cast("Origin", said[0])
    raise InputError(
        "neither its folder nor its name says whether its scenes are extracted or generated "
        f"(the public folders are {', '.join(FOLDERS)})",
        path=file,
        mend="Say so with --origin",
    )


class _Reader:
    """One file: where it is read is part of each complaint and each note."""

    def __init__(self, file: Path, note: Note) -> None:
        self._file = file
        self._note = note

    def scenes(self, origin: Origin, language: Language | None) -> list[tuple[Scene, str]]:
        """The scenes, each with its place in the file."""
        content = read_json(self._file, limit=MAX_FILE_BYTES)
        if not isinstance(content, dict) or not isinstance(content.get("scenes"), list):
            raise self._wrong("not a file of scenes", "", mend=SHAPE)
        if not content["scenes"]:
            raise self._wrong("holds no scene", "", mend=SHAPE)
        title = self._text(content, "title", "the file")
        if not title:
            title = self._file.stem
            self._say("the file", f"no title; its name {title!r} is taken")
        found = []
        for number, raw in enumerate(content["scenes"]):
            place = f"scene at place {number} of the list"
            if not isinstance(raw, dict):
                raise self._wrong("not an object", place, mend=SHAPE)
            mark = self._number(raw, place, number)
            place = f"scene {mark}"
            found.append((self._scene(raw, place, title, origin, mark, language), place))
        return found

    def _scene(
        self,
        raw: dict[str, Any],
        place: str,
        title: str,
        origin: Origin,
        mark: str,
        language: Language | None,
    ) -> Scene:
        self._strange(raw, _SCENE_KEYS, place)
        rows = raw.get("characters")
        if not isinstance(rows, list) or not rows:
            raise self._wrong(
                "has no characters", place, mend="Add one, or take the scene out of the file"
            )
        names: dict[str, str] = {}
        characters = [self._character(row, i, place, names) for i, row in enumerate(rows)]
        parts = {k: self._text(raw, k, place) for k in ("event", "time", "location", "description")}
        for key, value in parts.items():
            if not value:
                self._say(place, f"no {key}")
        told = [*parts.values(), *(str(v) for c in characters for v in c.values() if v)]
        return Scene.from_dict(
            {
                "id": f"{title}/{origin}/{mark}",
                "title": title,
                "language": language or self._language(told, place),
                "origin": origin,
                "event": parts.pop("event"),
                "environment": parts,
                "characters": characters,
                "plot": self._text(raw, "plot", place),
                "script": self._script(raw.get("actions"), place, names),
                "source": f"{SOURCE}, {self._file.parent.name}/{self._file.name}, scene {mark}",
            },
            path=self._file,
            place=place,
        )

    def _character(
        self, row: Any, index: int, place: str, names: dict[str, str]
    ) -> dict[str, str | None]:
        """One character; `names` collects, by its id, what each is called in the scene."""
        place = f"{place}, character {index}"
        if not isinstance(row, dict):
            raise self._wrong("not an object", place, mend=SHAPE)
        self._strange(row, _CHARACTER_KEYS, place)
        given = self._text(row, "name", place)
        if not given:
            raise self._wrong("has no name", place, mend="Name it, or take it out of the scene")
        name = given
        if name in names.values():
            name = next(n for i in count(2) if (n := f"{given} ({i})") not in names.values())
            self._say(place, f"a second {given!r} is called {name!r}")
        mark = self._number(row, place, index)
        if mark in names:
            raise self._wrong(f"a second character with id {mark}", place)
        names[mark] = name
        gender = self._text(row, "gender", place) or None
        if gender is None:
            self._say(place, f"the gender of {name!r} is unknown")
        one, other = (self._text(row, key, place) for key in ("states", "state"))
        if one and other and one != other:
            raise self._wrong("`states` and `state` differ", place, mend="Leave one of them")
        made = {
            "name": name,
            "description": self._text(row, "description", place),
            "gender": gender,
            "position": self._text(row, "position", place),
            "state": one or other,
        }
        for key in ("description", "position", "state"):
            if not made[key]:
                self._say(place, f"no {key} of {name!r}")
        return made

    def _script(self, rows: Any, place: str, names: dict[str, str]) -> list[dict[str, str]]:
        if rows is None:
            return []
        if not isinstance(rows, list):
            raise self._wrong("`actions` is not a list", place, mend=SHAPE)
        lines = []
        for index, row in enumerate(rows):
            here = f"{place}, action {index}"
            if not isinstance(row, dict):
                raise self._wrong("not an object", here, mend=SHAPE)
            self._strange(row, _ACTION_KEYS, here)
            actor = self._text(row, "character", here)
            by_id = names.get(self._text(row, "character_id", here))
            # Of two characters of one name, the id says which.
            if by_id is not None and (not actor or by_id.startswith(f"{actor} (")):
                actor = by_id
            said = {key: self._text(row, key, here) for key in ("action", "dialogue")}
            said = {k: "" if v.casefold() in _NOTHING else v for k, v in said.items()}
            if not actor:
                self._say(here, "nobody does it; left out")
            elif not any(said.values()):
                self._say(here, "nothing is done or said; left out")
            else:
                lines.append({"character": actor, **said})
        return lines

    def _text(self, row: Mapping[str, Any], key: str, place: str) -> str:
        """A value as text; lists of texts are joined, absent is empty."""
        value = row.get(key)
        if value is None:
            return ""
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            self._say(place, f"{key!r} is a list; its parts are joined")
            value = "\n".join(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._wrong(f"{key!r} is not a text", place, mend=SHAPE)
        return str(value).strip()

    def _number(self, row: Mapping[str, Any], place: str, index: int) -> str:
        mark = self._text(row, "id", place)
        if not mark:
            mark = str(index)
            self._say(place, f"no id; {mark}, its place, is taken")
        return mark

    def _strange(self, row: Mapping[str, Any], known: set[str], place: str) -> None:
        strange = sorted(str(k)[:40] for k in row.keys() - known)
        if strange:
            self._say(place, f"left out: {', '.join(strange)}")

    def _language(self, texts: list[str], place: str) -> Language:
        whole = "\n".join(texts)
        letters, other = len(_LETTER.findall(whole)), len(_OTHER_LETTER.findall(whole))
        if not letters or other > 0.3 * letters:
            raise self._wrong(
                "neither English nor Chinese, as far as its letters say",
                place,
                mend="Say which of the two its prompts shall be in with --lang",
            )
        return written_in(texts)

    def _say(self, place: str, text: str) -> None:
        self._note(f"{self._file.name}, {place}: {text}")

    def _wrong(self, what: str, place: str, *, mend: str = "") -> InputError:
        return InputError(what, path=self._file, place=place, mend=mend)
