"""A card as a file: the character, the JSON as it was found, and what lies around it.

`read_character` is enough for whoever only needs the character. A `Card` keeps the rest too: what
is written back is what was read, but for what was changed.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from personae.characters.charx import CARD as MEMBER
from personae.characters.charx import Charx, is_zip, read_charx
from personae.characters.png import (
    MAX_PNG_BYTES,
    Png,
    from_base64,
    is_png,
    read_png,
    text_of,
)
from personae.characters.reading import (
    V1_TEXTS,
    Finding,
    Version,
    document_of,
    json_text,
    merged,
    old_name,
    parse_json,
    read_document,
    version_of,
)
from personae.errors import InputError
from personae.records import Character
from personae.records.files import read_bytes

Container = Literal["json", "png", "charx"]

CARD_CHUNKS = ("ccv3", "chara")  # the first that is there is the card
ASSET_CHUNK = "chara-ext-asset_"
_ENCRYPTED = b"rcc||"
# Pictures that browsers and messengers make of a PNG, by what they begin with.
_PICTURES = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "WebP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "GIF": re.compile(rb"GIF8[79]a"),
    "AVIF": re.compile(rb"....ftyp(?:avif|avis)", re.DOTALL),
}


@dataclass(frozen=True)
class Card:
    """A card: what it says, and the file that it came in.

    Attributes:
        document: the JSON value, as it was found or made.
        character: what it describes.
        findings: what reading it has to say of it.
        png: the picture with all of its chunks, where the card came in one.
        charx: the members of the archive, `card.json` among them, where it came in one.
        raw: the bytes of the file, as long as nothing was changed.
    """

    document: dict[str, Any]
    character: Character
    findings: tuple[Finding, ...] = ()
    png: Png | None = None
    charx: Charx | None = None
    raw: bytes | None = field(default=None, repr=False)

    @property
    def version(self) -> Version:
        """The version that the card is written in."""
        return version_of(self.document)

    @property
    def container(self) -> Container:
        """What kind of file the card is."""
        return "png" if self.png else "charx" if self.charx else "json"

    def to_bytes(self) -> bytes:
        """The file; of a card that was not changed, the very bytes that were read.

        A V3 card in a PNG has a V2 card beside it (V3, "PNG/APNG").
        """
        from personae.characters.convert import backfill

        if self.raw is not None:
            return self.raw
        if self.png is not None:
            cards = {"chara": self.document}
            if self.version == "v3":
                cards = {"chara": backfill(self.document), "ccv3": self.document}
            texts = [(k, base64.b64encode(json_text(v).encode())) for k, v in cards.items()]
            return self.png.with_texts(CARD_CHUNKS, texts).to_bytes()
        whole = (json_text(self.document, indent=2) + "\n").encode()
        if self.charx is not None:
            return replace(self.charx, members={**self.charx.members, MEMBER: whole}).to_bytes()
        return whole

    def with_character(self, character: Character) -> Card:
        """The card with another state of its character; all that was not changed stays as found.

        Raises:
            InputError: the new state says that it is of another version (see `convert`).
        """
        if character == self.character:
            return self
        if character.spec != self.character.spec:
            raise InputError(
                f"a {self.character.spec} card cannot hold a {character.spec} character",
                mend="Convert the card first",
            )
        before, after = document_of(self.character), document_of(character)
        found = self.document
        if self.version == "v1":  # else the old name would stand beside the new one
            names = {old_name(found, name): name for name in V1_TEXTS}
            found = {names.get(name, name): value for name, value in found.items()}
        return self.with_document(merged(found, before, after))

    def with_document(self, document: dict[str, Any]) -> Card:
        """The card with another JSON value.

        Raises:
            InputError: the value is not a card.
        """
        character, findings = read_document(document)
        return replace(
            self, document=document, character=character, findings=tuple(findings), raw=None
        )


def card_of(character: Character) -> Card:
    """A card made of a character."""
    return Card(document_of(character), character)


def read_character(path: Path | str) -> Character:
    """The character of a card file: JSON (V1, V2, V3), PNG or APNG, or CHARX.

    Raises:
        InputError: the file cannot be read as a card; names file, place and mend.
    """
    return read_card(path).character


def read_card(path: Path | str) -> Card:
    """A card file, told by its content: PNG or APNG, CHARX, else JSON.

    Raises:
        InputError: the file cannot be read as a card; names file, place and mend.
    """
    path = Path(path)
    return card_from_bytes(read_bytes(path, limit=MAX_PNG_BYTES), path=path)


def card_from_bytes(raw: bytes, *, path: object) -> Card:
    """A card file's bytes; `path` is named in errors.

    Raises:
        InputError: they cannot be read as a card.
    """
    png = charx = None
    found: list[Finding] = []
    if is_png(raw):
        png = read_png(raw, path=path)
        text, place, found = _card_in_png(png, path)
    elif is_zip(raw):
        charx = read_charx(raw, path=path)
        text, place = charx.members[MEMBER], MEMBER
    else:
        _no_other_picture(raw, path)
        text, place = raw, ""
    twice: list[str] = []
    document = parse_json(_decoded(text, path, place), path=path, place=place, twice=twice)
    found += [
        _said(key[:60], "this key stands twice in an object; the last one is read")
        for key in dict.fromkeys(twice)
    ]
    character, findings = read_document(document, path=path)
    return Card(document, character, (*found, *findings), png, charx, raw)


def _no_other_picture(raw: bytes, path: object) -> None:
    for kind, begins in _PICTURES.items():
        if begins.match(raw):
            raise InputError(
                f"a {kind} picture, which holds no card",
                path=str(path),
                mend="Sites and messengers convert pictures: fetch the original PNG file",
            )


def _card_in_png(png: Png, path: object) -> tuple[bytes, str, list[Finding]]:
    """The JSON text in a PNG, the chunk that held it, and what is to be said of the chunks."""
    found: list[Finding] = []
    for wanted in CARD_CHUNKS:
        chunks = [c for c in png.chunks if c.keyword.lower() == wanted]
        if not chunks:
            continue
        chunk, place = chunks[0], f"chunk {chunks[0].keyword}"
        if len(chunks) > 1:
            found.append(_said(place, f"{len(chunks)} chunks of that name; the first is read"))
        if chunk.keyword != wanted or chunk.type != b"tEXt":
            found.append(_said(place, f"the specification asks for a tEXt chunk `{wanted}`"))
        text = text_of(chunk, path=path)
        if text.startswith(_ENCRYPTED):
            raise InputError(
                "an encrypted RisuAI card",
                path=str(path),
                place=place,
                mend="Export it from RisuAI without a password",
            )
        if text.lstrip()[:1] == b"{":
            found.append(_said(place, "JSON as it is, where base64 belongs"))
            return text, place, found
        try:
            return from_base64(text), place, found
        except ValueError as error:
            raise InputError(
                f"not base64 ({error})", path=str(path), place=place, mend="Export the card again"
            ) from None
    raise InputError(
        "a picture with no card in it (no `chara` and no `ccv3` chunk)",
        path=str(path),
        mend="Some sites and messengers strip it: fetch the original file",
    )


def _said(place: str, message: str) -> Finding:
    return Finding(level="error", place=place, message=message)


def _decoded(text: bytes, path: object, place: str) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{place}, " if place else ""
        raise InputError(
            "not UTF-8 text",
            path=str(path),
            place=f"{where}byte {error.start}",
            mend="Is this a card? A card is JSON, PNG or CHARX",
        ) from None
