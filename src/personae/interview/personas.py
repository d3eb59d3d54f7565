"""Who is interviewed: personas from a file, or written by a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from personae.characters.importers import is_card_file, read_characters
from personae.characters.prompt import persona_line
from personae.errors import InputError
from personae.prompts import render
from personae.prompts.schemas import personas_schema
from personae.records import Call, Language, Model, Persona, Sampling, Shortfall, content_hash
from personae.records.files import read_jsonl, read_text
from personae.records.similarity import Distinct, normalised

MAX_PERSONA_CHARS = 20_000
BATCH = 10
DRY_BATCHES = 3
FEW = 0.2


def persona_id(description: str) -> str:
    """A readable, stable id: the first words and six hex digits of the description's hash."""
    words = re.findall(r"\w+", normalised(description))[:5]
    return "-".join([*"-".join(words)[:48].split("-"), content_hash(description)[:6]])


def character(description: str, source: str = "") -> Persona:
    """A character from its description alone."""
    text = " ".join(description.split())
    return Persona(id=persona_id(text), description=text, source=source)


def read_personas(path: Path) -> tuple[Persona, ...]:
    """Personas from a text file, JSONL, a character card, or a folder of cards.

    A text file has one a line (empty lines and lines with # left out). A JSONL line is
    `{"description": text, "id": optional}` (`persona` is accepted for `description`). A card
    (`.json`, `.png`, `.apng`, `.charx`) becomes one line, see `persona_line`.

    Raises:
        InputError: no persona, one that stands twice, one too long, not a text file, not a card.
    """
    found: list[tuple[str, Persona]]
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        found = [(f"line {n}", made) for n, made in _of_jsonl(path)]
    elif is_card_file(path) or os.path.isdir(path):  # noqa: PTH112  (Path.is_dir may raise)
        found = [
            (file.name, persona_line(one, source=file.name)) for file, one in read_characters(path)
        ]
    else:
        found = [
            (f"line {number}", character(line, path.name))
            for number, line in enumerate(read_text(path).splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
    if not found:
        raise InputError("holds no persona", path=path, mend="Write one persona a line")
    seen: dict[str, str] = {}
    for place, person in found:
        if len(person.description) > MAX_PERSONA_CHARS:
            raise InputError(
                f"a persona of {len(person.description):,} characters "
                f"(at most {MAX_PERSONA_CHARS:,})",
                path=path,
                place=place,
            )
        if person.id in seen:
            raise InputError(
                f"the same persona as {seen[person.id]}",
                path=path,
                place=place,
                mend="Leave one of them",
            )
        seen[person.id] = place
    return tuple(person for _, person in found)


def _of_jsonl(path: Path) -> Iterator[tuple[int, Persona]]:
    for number, line in read_jsonl(path):
        place = f"line {number}"
        text = line.get("description", line.get("persona"))
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                "no persona on this line",
                path=path,
                place=place,
                mend='Each line is {"description": "..."}',
            )
        made = character(text, path.name)
        given = line.get("id")
        if given is not None:
            made = Persona.from_dict({**made.to_dict(), "id": given}, path=path, place=place)
        yield number, made


async def generate_personas(
    model: Model, examiner: str, count: int, *, language: Language, sampling: Sampling
) -> tuple[tuple[Persona, ...], tuple[Shortfall, ...]]:
    """Have `count` diverse personas written (PersonaGym, "Environment and Question Generation").

    Near-duplicates are refused. When three replies in a row bring hardly anything new, diversity
    has run out (the paper met that at about 200): what there is is returned with the shortfall.
    """
    distinct = Distinct()
    people: list[Persona] = []
    poor, repeat, failures = 0, 0, 0
    refused = 0
    cause = ""
    while len(people) < count and poor < DRY_BATCHES:
        wanted = min(BATCH, count - len(people))
        # The newest stand for all: a list of two hundred would crowd out the request itself.
        accepted = [p.description for p in people[-40:]]
        reply = await model.ask(
            Call(
                role="examiner",
                model=examiner,
                messages=render("personas", language, count=wanted, accepted=accepted),
                reply_schema=personas_schema(wanted),
                sampling=sampling,
                repeat=repeat,
                meta={"stage": "personas"},
            )
        )
        repeat += 1
        fresh = 0
        if reply.ok:
            for text in reply.value["personas"]:
                if len(people) < count and text.strip() and distinct.add(text):
                    people.append(character(text, f"written by {examiner}"))
                    fresh += 1
                else:
                    refused += 1
            cause = (
                f"diversity ran out after {len(people)} personas "
                f"({refused} near-duplicates were refused)"
            )
        else:
            assert reply.failure is not None
            failures += 1
            cause = f"the examiner failed: {reply.failure.cause}"
        poor = poor + 1 if fresh < max(1, FEW * wanted) else 0
    if len(people) == count:
        return tuple(people), ()
    short = Shortfall(what="personas", wanted=count, got=len(people), cause=cause)
    return tuple(people), (short,)
