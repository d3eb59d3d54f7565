"""Characters that others published, and files of cards: each becomes a `Character`.

Neeko's profiles, PersonaGym's persona lines, the characters of CharacterBox's scenes. What a source
does not say stays empty; nothing is made up for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from personae.characters.card import read_character
from personae.errors import InputError
from personae.records import Character, Language, Persona, PersonaeExtension, Scene, Secret
from personae.records.files import files_of, read_text

CARD_ENDINGS = (".json", ".png", ".apng", ".charx")
PROFILE_KEY = "personae/profile"
PERSONA_KEY = "personae/persona"

# The published profiles have 57 kB at most.
MAX_PROFILE_BYTES = 2**20
# Half of the published profiles introduce their person in this; one has no sections at all.
DESCRIPTION_CHARS = 4_000
NAME_CHARS = 80

_TITLE = re.compile(r"#\s+(\S.*)")
_HEADING = re.compile(r"#{1,6}\s")
_CLAUSE = re.compile(r"[,，。;；:：]|\.\s")


def import_neeko(path: Path, *, language: Language | None = "en") -> tuple[Character, ...]:
    """Neeko's profiles, `wiki_*.txt`: "# Full Name", then paragraphs under headings.

    The name is the first line's. The description is the paragraphs before the first heading, as
    many whole ones as have 4,000 characters together (the first in any case): a profile is many
    times what a prompt can hold. All paragraphs, headings among them, are kept under
    `extensions["personae/profile"]`.

    Args:
        path: one profile, or a folder of them.

    Raises:
        InputError: a file has no name or no paragraph (names it), a folder has no profile, or two
            profiles are of one name.
    """
    if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises without permission)
        return (_profile(path, language),)
    root = Path(os.path.realpath(path))
    files = [file for file in files_of(path, ".txt", root) if file.name.startswith("wiki_")]
    if not files:
        raise InputError(
            "holds no profile (no wiki_*.txt)", path=path, mend="Give Neeko's folder data/profiles"
        )
    found: dict[str, tuple[Path, Character]] = {}
    for file in files:
        made = _profile(file, language)
        if made.name in found:
            raise InputError(
                f"the same character as {found[made.name][0].name}: {made.name}",
                path=file,
                mend="Leave one of the two files",
            )
        found[made.name] = file, made
    return tuple(character for _, character in found.values())


def _profile(path: Path, language: Language | None) -> Character:
    lines = read_text(path, limit=MAX_PROFILE_BYTES).splitlines()
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    title = _TITLE.fullmatch(lines[first].strip()) if lines else None
    if title is None:
        raise InputError(
            "does not begin with the character's name",
            path=path,
            place=f"line {first + 1}",
            mend="The first line of a profile is # Full Name",
        )
    parts = [line.strip() for line in lines[first + 1 :] if line.strip()]
    described: list[str] = []
    for part in parts:
        if _HEADING.match(part):
            if described:
                break
            continue
        if described and sum(map(len, described)) + len(part) > DESCRIPTION_CHARS:
            break
        described.append(part)
    if not described:
        raise InputError("says nothing of the character", path=path, mend="Add a paragraph")
    return _made(
        name=title[1].strip(),
        description="\n\n".join(described),
        ours=PersonaeExtension(language=language),
        source=path.name,
        more={PROFILE_KEY: parts},
    )


def from_persona(person: Persona, *, language: Language | None = None) -> Character:
    """A persona line as a character (PersonaGym: "A 36-year-old ... from Australia, who ...").

    Such a line has no name: its first clause stands for one. The persona's id is kept under
    `extensions["personae/persona"]`, so that the way back finds it (`read_personas` gives a line
    its id).
    """
    clause = _CLAUSE.split(person.description, maxsplit=1)[0].strip()
    return _made(
        name=(clause or person.description)[:NAME_CHARS].strip(),
        description=person.description,
        ours=PersonaeExtension(language=language),
        source=person.source,
        more={PERSONA_KEY: person.id},
    )


def from_scenes(scenes: Iterable[Scene]) -> dict[str, Character]:
    """The characters of scenes, by `TITLE/NAME`: those of CharacterBox have no other profile.

    A character of several scenes of one title is one: its different descriptions follow each other
    in the order of the scenes. What is of the moment (position, state, goal) stays in the scenes.
    Secrets are the scenes' that it knows; gender and title become tags.
    """
    found: dict[str, list[tuple[Scene, int]]] = {}
    for scene in scenes:
        for n, one in enumerate(scene.characters):
            found.setdefault(f"{scene.title}/{one.name}", []).append((scene, n))
    return {key: _of_scenes(parts) for key, parts in found.items()}


def _of_scenes(parts: list[tuple[Scene, int]]) -> Character:
    ones = [scene.characters[n] for scene, n in parts]
    name = ones[0].name
    secrets: dict[Secret, None] = {}
    for scene, _ in parts:
        secrets |= dict.fromkeys(s for s in scene.secrets if name in s.known_by)
    first = parts[0][0]
    genders = [one.gender for one in ones if one.gender]
    return _made(
        name=name,
        description="\n\n".join(dict.fromkeys(one.description for one in ones if one.description)),
        ours=PersonaeExtension(language=first.language, secrets=tuple(secrets)),
        source=", ".join(dict.fromkeys(s.source for s, _ in parts if s.source)),
        tags=tuple(dict.fromkeys(tag for tag in (first.title, *genders) if tag)),
    )


def _made(
    *,
    name: str,
    description: str,
    ours: PersonaeExtension,
    source: str,
    tags: tuple[str, ...] = (),
    more: dict[str, object] | None = None,
) -> Character:
    return Character(
        spec_version="3.0",
        name=name,
        description=description,
        tags=tags,
        source=(source,) if source else None,
        extensions={"personae": ours.to_dict(), **(more or {})},
    )


def is_card_file(path: Path) -> bool:
    """Whether the name is one that a card can have; what is in it is told by reading it."""
    return path.suffix.lower() in CARD_ENDINGS


def read_characters(path: Path) -> tuple[tuple[Path, Character], ...]:
    """A card, or all cards of a folder (`characters_of`), each with its file.

    Raises:
        InputError: as `characters_of`.
    """
    if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises without permission)
        return ((path, read_character(path)),)
    return characters_of(path)


def characters_of(folder: Path) -> tuple[tuple[Path, Character], ...]:
    """All cards of a folder in the order of their names, each with its file.

    Raises:
        InputError: a file cannot be read as a card (nothing is left out in silence), the folder
            has none, or there is no such folder.
    """
    root = Path(os.path.realpath(folder))
    files = sorted({file for ending in CARD_ENDINGS for file in files_of(folder, ending, root)})
    if not files:
        raise InputError(
            f"holds no card (no {', '.join(CARD_ENDINGS)} file)",
            path=folder,
            mend="Give a folder of character cards",
        )
    return tuple((file, read_character(file)) for file in files)
