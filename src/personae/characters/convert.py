"""Between the versions of a card, and between the files it comes in, so that the way back is open.

What a version cannot hold goes into `extensions["personae/converted"]`, which every application
must keep (V2: "Character editors MUST NOT destroy unknown key-value pairs"). It is a stack of
steps (`Kept`); the step back takes its own off again. What was found is otherwise left as it is: a
conversion mends nothing but the fields that the new version demands, and those go again on the way
back unless they were filled.

Fields that have no place in a version: V1 knows six texts; V2 neither assets, nicknames, greetings
for groups, sources, dates and notes in several languages, nor regular expressions and decorators
in a lorebook (decorators are cut off the entry and kept beside it: V3, "On backfilling V2").
"""

from __future__ import annotations

import base64
import copy
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from personae.characters.card import (
    ASSET_CHUNK,
    CARD_CHUNKS,
    Card,
    Container,
    card_from_bytes,
)
from personae.characters.charx import CARD as CARD_MEMBER
from personae.characters.charx import Charx, wrong_name
from personae.characters.decorators import parse_decorators
from personae.characters.png import (
    MAX_KEYWORD_BYTES,
    MAX_PNG_BYTES,
    Png,
    from_base64,
    is_png,
    plain_picture,
    read_png,
    text_of,
)
from personae.characters.reading import (
    MANDATORY,
    MAX_JSON_CHARS,
    OLD_NAMES,
    ONLY_V3,
    SPEC_OF,
    V1_TEXTS,
    Finding,
    Version,
    old_name,
    parts_of,
)
from personae.errors import InputError
from personae.records.base import Record, content_hash
from personae.records.files import read_bytes, write_atomically

Target = Literal["v1", "v2", "v3", "charx"]
Form = Literal["v1", "v2", "v3", "json", "png", "charx"]
JSON = Any

KEPT = "personae/converted"
ICON = "assets/icon/images/main.png"
ASSET_URI = "__asset:"
EMBEDDED = ("embeded://", "embedded://")  # the first as the specification spells it

_NO_PICTURE = "a JSON file holds none; --image gives it back to a PNG"
_VERSIONS: tuple[Version, ...] = ("v1", "v2", "v3")
_DEFAULT_ASSETS = [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}]
_MEDIA = {
    "png": "image/png", "apng": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg",
    "webp": "image/webp", "gif": "image/gif", "avif": "image/avif", "mp3": "audio/mpeg",
    "wav": "audio/wav", "ogg": "audio/ogg", "mp4": "video/mp4", "webm": "video/webm",
}  # fmt: skip


class EmbeddedFile(Record):
    """Where a file stood that a card without files holds as a `data:` URI."""

    uri: str
    sha256: str


class Kept(Record):
    """One conversion, and what it takes to undo it.

    Attributes:
        was: the form before.
        now: the form after.
        moved: fields that the new form cannot hold.
        outer: fields beside `data` that the new form would read as its own.
        frame: `spec` and `spec_version` where they were not the specification's.
        top: fields that the old form held although it does not know them.
        renamed: fields that had another name in the old form.
        added: fields that the new form demands; they stand at their defaults.
        had: what stood in the place of `extensions`, if that was no object; empty for nothing.
        decorators: the beginning of a lorebook entry that was cut off.
        assets: the files that became `data:` URIs, by the number of their asset.
        files: other files (base64) by their names.
        icon: the file of an archive that is the picture of a PNG.
        written: hash of the assets as the conversion left them.
    """

    was: Form
    now: Form
    moved: dict[str, JSON] = {}
    outer: dict[str, JSON] = {}
    frame: dict[str, JSON] | None = None
    top: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    added: tuple[str, ...] = ()
    had: tuple[JSON, ...] | None = None
    decorators: str = ""
    assets: dict[str, EmbeddedFile] = {}
    files: dict[str, str] = {}
    icon: str = ""
    written: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without what is empty."""
        return self.model_dump(mode="json", exclude_defaults=True)


def convert(
    card: Card, to: Target, container: Container, image: Png | None = None
) -> tuple[Card, list[Finding]]:
    """A card in another version or in another kind of file, and what that cannot express.

    Args:
        card: left as it is.
        to: the version; CHARX holds V3.
        container: the kind of file.
        image: the picture of a PNG, the icon of a CHARX; its own card chunks are not taken over.

    Raises:
        InputError: the two do not go together, the card's record of earlier conversions is
            damaged, or a JSON file would be too large with the card's files in it.
    """
    version: Version = "v3" if to == "charx" else to
    if container == "charx" and version != "v3":
        raise InputError(
            f"a CHARX file holds a V3 card, not {version}", mend="Use --to charx, or another --out"
        )
    if to == "charx" and container != "charx":
        raise InputError("--to charx writes a CHARX file", mend="Name it with --out NAME.charx")
    if image is not None and container == "json":
        raise InputError("a JSON file holds no picture", mend="Name a PNG with --out NAME.png")
    if card.version == version and card.container == container and image is None:
        return card, []
    work = _Work(copy.deepcopy(card.document), card.version, [])
    picture, files = _taken_apart(card)
    same = card.container == container
    packed = any(step.now == "json" for step in _stack(work.data))
    if not same and (files or packed or "charx" in (card.container, container)):
        work.to_version("v3")
        picture, files = work.change_container(card.container, container, picture, files, image)
    elif not same and container == "json" and picture is not None:
        work.lost("the picture", _NO_PICTURE)
    if container == "charx" and image is not None and same:
        work.to_version("v3")
        files |= work.with_icon(image)
    if card.charx and card.charx.before and not same:
        work.lost("the picture before the archive", "only a CHARX file holds one")
    work.to_version(version)
    made = card.with_document(work.document)
    if container == "json":
        return replace(made, png=None, charx=None), work.losses
    if container == "charx":
        before = card.charx.before if card.charx else b""
        return replace(made, png=None, charx=Charx(files, before)), work.losses
    picture = _bare(image) if image is not None else picture
    if picture is None:
        work.lost("the picture", "there is none, so a plain one is drawn; --image gives another")
        picture = plain_picture(made.character.name.encode())
    chunks = [
        (f"{ASSET_CHUNK}:{name}", base64.b64encode(data))
        for name, data in files.items()
        if name != CARD_MEMBER
    ]
    return replace(made, png=picture.with_texts((), chunks), charx=None), work.losses


def write_card(
    card: Card, path: Path | str, to: Target | None = None, *, image: Path | str | None = None
) -> list[Finding]:
    """Write a card, converted where need be; the file's ending says what kind of file.

    Args:
        path: ends in `.json`, `.png`, `.apng` or `.charx`; written whole or not at all.
        to: the version; by default the card's own.
        image: a PNG: the picture of a PNG card, the icon of a CHARX.

    Returns:
        What the written form cannot express, and where it is kept.

    Raises:
        InputError: see `convert`; also another ending, a picture that is not a PNG, and a result
            beyond the caps on cards.
        OutputError: the file cannot be written.
    """
    path = Path(path)
    container = _ENDINGS.get(path.suffix.lower())
    if container is None:
        raise InputError(
            "the name does not say what kind of card to write",
            path=path,
            mend="Let the name end in .json, .png, .apng or .charx",
        )
    if to is None:
        to = "charx" if container == "charx" else card.version
    picture = None
    if image is not None:
        raw = read_bytes(Path(image), limit=MAX_PNG_BYTES)
        if not is_png(raw):
            raise InputError("not a PNG", path=image, mend="Save the picture as PNG")
        picture = read_png(raw, path=image)
    made, losses = convert(card, to, container, picture)
    content = made.to_bytes()
    try:  # what is moved into `extensions` lies deeper there, and base64 is longer
        card_from_bytes(content, path=path)
    except InputError as error:
        raise InputError(
            f"the card in {to} could not be read again ({error.what})",
            path=path,
            place=error.place,
            mend="Nothing was written. Make the card smaller, or write another version",
        ) from None
    write_atomically(path, content)
    return losses


_ENDINGS: dict[str, Container] = {
    ".json": "json", ".png": "png", ".apng": "png", ".charx": "charx",
}  # fmt: skip


def backfill(document: dict[str, Any]) -> dict[str, Any]:
    """The V2 card that stands beside a V3 card in a PNG, for applications that know only V2."""
    work = _Work(copy.deepcopy(document), "v3", [])
    work.to_version("v2")
    made = work.document
    data = made["data"]
    for holder in (data, *_entries(data)):
        if isinstance(holder.get("extensions"), dict):
            holder["extensions"].pop(KEPT, None)
    notes = data.get("creator_notes")
    data["creator_notes"] = f"{BACKFILLED}\n\n{notes}" if notes else BACKFILLED
    return made


BACKFILLED = (
    "This is a Character Card V3 that was loaded as V2. Use an application that reads V3 to have "
    "all of it."
)


# The pieces of a file --------------------------------------------------------------------------


def _bare(png: Png) -> Png:
    """The picture without any card in it."""
    return png.with_texts({c.keyword.lower() for c in png.chunks if _is_card_chunk(c.keyword)}, ())


def _is_card_chunk(keyword: str) -> bool:
    return keyword.lower() in CARD_CHUNKS or keyword.lower().startswith(ASSET_CHUNK)


def _taken_apart(card: Card) -> tuple[Png | None, dict[str, bytes]]:
    """The picture and the files of a card.

    Raises:
        InputError: a file in a PNG is damaged.
    """
    if card.charx:
        return None, dict(card.charx.members)
    if not card.png:
        return None, {}
    files: dict[str, bytes] = {}
    for chunk in card.png.chunks:
        if chunk.keyword.lower().startswith(ASSET_CHUNK):
            name = chunk.keyword[len(ASSET_CHUNK) :].removeprefix(":")
            try:
                files[name] = from_base64(text_of(chunk, path="the PNG"))
            except ValueError as error:
                raise InputError(
                    f"not base64 ({error})", place=f"chunk {chunk.keyword!r}"
                ) from None
    return _bare(card.png), files


def _fits_a_chunk(name: str) -> bool:
    """Whether a name comes back whole from the keyword of a chunk."""
    try:
        keyword = f"{ASSET_CHUNK}:{name}".encode()
    except UnicodeEncodeError:
        return False
    return b"\0" not in keyword and len(keyword) < MAX_KEYWORD_BYTES


def _entries(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a card's lorebook that are objects."""
    book = data.get("character_book")
    entries = book.get("entries") if isinstance(book, dict) else None
    if isinstance(entries, dict):
        entries = list(entries.values())
    return [e for e in entries or () if isinstance(e, dict)] if isinstance(entries, list) else []


# The steps -------------------------------------------------------------------------------------


@dataclass
class _Work:
    """A document on its way; `losses` says what the forms on the way cannot express."""

    document: dict[str, Any]
    version: Version
    losses: list[Finding]

    @property
    def data(self) -> dict[str, Any]:
        return parts_of(self.document, self.version)[0]

    def lost(self, place: str, message: str) -> None:
        self.losses.append(Finding(level="hint", place=place, message=message))

    def to_version(self, wanted: Version) -> None:
        while self.version != wanted:
            here, there = _VERSIONS.index(self.version), _VERSIONS.index(wanted)
            step = {
                ("v1", "v2"): self._v1_to_v2,
                ("v2", "v3"): self._v2_to_v3,
                ("v3", "v2"): self._v3_to_v2,
                ("v2", "v1"): self._v2_to_v1,
            }[self.version, _VERSIONS[here + (1 if there > here else -1)]]
            step()

    # V1 and V2

    def _v1_to_v2(self) -> None:
        top, kept = self.document, _top(self.document, "v2", "v1")
        if kept:
            _pop(top)
        data: dict[str, Any] = {}
        outer: dict[str, Any] = {}
        moved: dict[str, Any] = {}
        renamed = {new: old for new in V1_TEXTS if (old := old_name(top, new))}
        own = {*MANDATORY["v3"], *ONLY_V3, "character_book"}
        for name, value in top.items():
            if name in own:
                data[name] = value
            elif name in renamed.values():
                data[next(n for n, o in renamed.items() if o == name)] = value
            elif name in _FRAME:
                moved[name] = value
            else:
                outer[name] = value
        frame = dict(zip(_FRAME, SPEC_OF["v2"], strict=False))
        if kept:
            data = {**kept.moved, **data}
            frame = frame if kept.frame is None else kept.frame
            self.document = {**moved, **frame, **kept.outer, **outer, "data": data}
        else:
            had = set(data) - set(V1_TEXTS) - {"extensions"}
            self.document = {**frame, **outer, "data": data}
            _push(
                data,
                Kept(
                    was="v1",
                    now="v2",
                    moved=moved,
                    top=tuple(sorted(had)),
                    renamed=renamed,
                    added=_fill(data, "v2"),
                ),
            )
        self.version = "v2"

    def _v2_to_v1(self) -> None:
        data, kept = self.data, _top(self.data, "v1", "v2")
        outer = {k: v for k, v in self.document.items() if k not in _FRAME}
        frame = _odd_frame(self.document, "v2")
        if kept and frame is None and self._only_what_was_added(kept, data, outer):
            _pop(data)
            _drop(kept.added, data, "v2")
            names = {kept.renamed.get(name, name): value for name, value in data.items()}
            self.document = {**outer, **kept.moved, **names}
        else:
            own = {*V1_TEXTS, "extensions"}
            moved = {k: v for k, v in data.items() if k not in own}
            self._say_moved("V1", moved, "data.")
            flat = {k: v for k, v in data.items() if k in own}
            clash = _read_in_v1(flat)
            kept_outer = {k: v for k, v in outer.items() if k in clash}
            _push(flat, Kept(was="v2", now="v1", moved=moved, outer=kept_outer, frame=frame))
            self.document = {**{k: v for k, v in outer.items() if k not in clash}, **flat}
        self.version = "v1"

    def _only_what_was_added(self, kept: Kept, data: dict[str, Any], outer: dict[str, Any]) -> bool:
        """Whether V1 can hold all of a V2 card that was V1 before."""
        own = {*V1_TEXTS, "extensions", *kept.top}
        known = _read_in_v1(set(data) - set(kept.added))
        return (
            _at_default(set(kept.added) - set(V1_TEXTS), data, "v2")
            and set(data) <= own | set(kept.added)
            and set(kept.top) <= set(data)
            and not set(outer) & (known | set(kept.moved))
        )

    # V2 and V3

    def _v2_to_v3(self) -> None:
        data, kept = self.data, _top(self.data, "v3", "v2")
        if kept:
            _pop(data)
            for name, value in kept.moved.items():
                data.setdefault(name, value)
            self._frame("v3", kept.frame)
        else:
            frame = _odd_frame(self.document, "v2")
            had = tuple(sorted(set(data) & set(ONLY_V3)))
            added = _fill(data, "v3")
            _push(data, Kept(was="v2", now="v3", frame=frame, top=had, added=added))
            self._frame("v3", None)
        for entry in _entries(data):
            if mark := _top(entry, "v3", "v2"):
                _pop(entry)
                entry |= {k: v for k, v in mark.moved.items() if k not in entry}
                if mark.decorators and isinstance(entry.get("content"), str):
                    entry["content"] = mark.decorators + entry["content"]
            elif "use_regex" not in entry:
                entry["use_regex"] = False
                _push(entry, Kept(was="v2", now="v3", added=("use_regex",)))
        self.version = "v3"

    def _v3_to_v2(self) -> None:
        data, kept = self.data, _top(self.data, "v2", "v3")
        marks = [(entry, _top(entry, "v2", "v3")) for entry in _entries(data)]
        back = (
            kept is not None
            and _odd_frame(self.document, "v3") is None
            and _at_default(set(kept.added) & set(ONLY_V3), data, "v3")
            and set(data) & set(ONLY_V3) == set(kept.top) | (set(kept.added) & set(ONLY_V3))
            and all(mark is None or entry.get("use_regex") is False for entry, mark in marks)
        )
        if kept and back:
            _pop(data)
            _drop(kept.added, data, "v3")
            for entry, mark in marks:
                if mark:
                    _pop(entry)
                    entry.pop("use_regex", None)
            self._frame("v2", kept.frame)
        else:
            moved = {k: data.pop(k) for k in ONLY_V3 if k in data}
            self._say_moved("V2", moved, "data.")
            _push(
                data, Kept(was="v3", now="v2", moved=moved, frame=_odd_frame(self.document, "v3"))
            )
            self._frame("v2", None)
            self._entries_to_v2(data)
        self.version = "v2"

    def _entries_to_v2(self, data: dict[str, Any]) -> None:
        regex = decorated = 0
        for entry in _entries(data):
            regex += entry.get("use_regex") is True
            moved = {"use_regex": entry.pop("use_regex")} if "use_regex" in entry else {}
            content = entry.get("content")
            text = parse_decorators(content).text if isinstance(content, str) else ""
            head = content[: len(content) - len(text)] if isinstance(content, str) else ""
            if head:
                decorated += 1
                entry["content"] = text
            # Also where nothing is kept: on the way back such an entry is told from a new one.
            _push(entry, Kept(was="v3", now="v2", moved=moved, decorators=head))
        place = "data.character_book.entries"
        if regex:
            self.lost(
                place, f"V2 knows no regular expressions: it takes those of {regex} as plain keys"
            )
        if decorated:
            self.lost(place, f"V2 knows no decorators: those of {decorated} are kept aside")

    def _frame(self, version: Version, odd: dict[str, Any] | None) -> None:
        spec, number = SPEC_OF[version]
        rest = {k: v for k, v in self.document.items() if k not in ("spec", "spec_version")}
        frame = {"spec": spec, "spec_version": number} if odd is None else odd
        self.document = {**frame, **rest}

    def _say_moved(self, version: str, moved: dict[str, Any], prefix: str) -> None:
        for name, value in moved.items():
            if value not in (None, "", [], {}):
                self.lost(f"{prefix}{name}", f"{version} has no such field; kept in extensions")

    # JSON, PNG and CHARX (in V3)

    def change_container(
        self,
        was: Container,
        now: Container,
        picture: Png | None,
        files: dict[str, bytes],
        image: Png | None,
    ) -> tuple[Png | None, dict[str, bytes]]:
        """Take the files of a V3 card into another kind of file; the picture and the files then."""
        files = {**self._unpacked(), **{k: v for k, v in files.items() if k != CARD_MEMBER}}
        kept = _top(self.data, now, was)
        if now != "json" and kept and kept.written == content_hash(self.data.get("assets")):
            icon = self._assets_back(kept)
        else:
            found = copy.deepcopy(self.data.get("assets"))
            had = "assets" in self.data
            for asset in self._assets():
                if asset["uri"].startswith(ASSET_URI):
                    asset["uri"] = EMBEDDED[0] + asset["uri"].removeprefix(ASSET_URI)
            if now == "json":
                if picture is not None:
                    self.lost("the picture", _NO_PICTURE)
                self._packed(was, files)
                return None, {}
            icon = self._icon_out(files) if now == "png" else self._icon_in(files, picture)
            if now == "png":
                self._as_chunks(files)
            if self.data.get("assets") != found or icon:
                moved = {"assets": found} if had else {}
                written = content_hash(self.data.get("assets"))
                form = cast("Form", was)
                _push(self.data, Kept(was=form, now=now, moved=moved, icon=icon, written=written))
        if now == "png":
            if icon and icon in files:
                picture = read_png(files.pop(icon), path=icon)
            return picture, files
        icon = icon or self._icon_in(files, picture)
        if icon and picture is not None:
            files[icon] = picture.to_bytes()
        if image is not None:
            files |= self.with_icon(image)
        return None, {CARD_MEMBER: b"", **self._safe(files)}

    def _assets_back(self, kept: Kept) -> str:
        """Undo the last change of file; the name of the file that is the picture in the other."""
        _pop(self.data)
        self.data.pop("assets", None)
        if "assets" in kept.moved:
            self.data["assets"] = kept.moved["assets"]
        return kept.icon

    def _icon_out(self, files: dict[str, bytes]) -> str:
        """Which file becomes the picture of a PNG: the main icon, else the first that is a PNG."""
        icons = [a for a in self._assets() if a["type"] == "icon"]
        for asset in sorted(icons, key=lambda a: a.get("name") != "main"):
            name = _inside(asset["uri"]) or ""
            if is_png(files.get(name, b"")):
                bare = _bare(read_png(files[name], path=name))
                if bare.to_bytes() == files[name]:
                    asset["uri"] = "ccdefault:"
                    return name
        return ""

    def _icon_in(self, files: dict[str, bytes], picture: Png | None) -> str:
        """Under which name the picture of a PNG goes into an archive, as what its assets say."""
        if picture is None:
            return ""
        name = ICON if ICON not in files else ICON.replace("main", f"picture-{len(files)}")
        if not isinstance(self.data.get("assets"), list):
            self.data["assets"] = copy.deepcopy(_DEFAULT_ASSETS)
        icons = [a for a in self._assets() if a["type"] == "icon" and a["uri"] == "ccdefault:"]
        if not icons:  # it has another icon, or none
            taken = any(a["type"] == "icon" for a in self._assets())
            icons = [{**_DEFAULT_ASSETS[0], "name": "picture" if taken else "main"}]
            self.data["assets"].append(icons[0])
        for asset in icons:
            asset |= {"uri": f"{EMBEDDED[0]}{name}", "ext": "png"}
        return name

    def with_icon(self, icon: Png) -> dict[str, bytes]:
        """Make a picture the main icon; the file to be added."""
        if not isinstance(self.data.get("assets"), list):
            self.data["assets"] = copy.deepcopy(_DEFAULT_ASSETS)
        mains = [a for a in self._assets() if a["type"] == "icon" and a.get("name") == "main"]
        if not mains:
            mains = [copy.deepcopy(_DEFAULT_ASSETS[0])]
            self.data["assets"].append(mains[0])
        mains[0] |= {"uri": f"{EMBEDDED[0]}{ICON}", "ext": "png"}
        return {ICON: _bare(icon).to_bytes()}

    def _as_chunks(self, files: dict[str, bytes]) -> None:
        for asset in self._assets():
            if (name := _inside(asset["uri"])) in files:
                asset["uri"] = f"{ASSET_URI}{name}"

    def _assets(self) -> list[dict[str, Any]]:
        """The assets that are objects with texts for type and URI."""
        assets = self.data.get("assets")
        return [
            a
            for a in (assets if isinstance(assets, list) else ())
            if isinstance(a, dict)
            and isinstance(a.get("uri"), str)
            and isinstance(a.get("type"), str)
        ]

    def _safe(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """The files under names that an archive may have.

        Raises:
            InputError: one has no such name.
        """
        for name in files:
            if wrong_name(name):
                raise InputError(
                    "a file of that name cannot be put into an archive",
                    place=f"file {name[:200]!r}",
                    mend="Rename it in the card, or write a PNG or a JSON file",
                )
        return files

    def _packed(self, was: Container, files: dict[str, bytes]) -> None:
        """The files into the JSON: as `data:` URIs, the others into the record.

        Raises:
            InputError: they are too large for that.
        """
        if sum(map(len, files.values())) * 4 // 3 > MAX_JSON_CHARS * 3 // 4:
            raise InputError(
                "the card's files are too large to be written into JSON",
                mend="Write a PNG or a CHARX file",
            )
        rest = dict(files)
        packed: dict[str, EmbeddedFile] = {}
        listed = self.data.get("assets")
        for n, asset in enumerate(listed if isinstance(listed, list) else ()):
            if not isinstance(asset, dict) or not isinstance(asset.get("uri"), str):
                continue
            name = _inside(asset["uri"])
            if name is None or name not in files:
                continue
            rest.pop(name, None)
            ending = name.rpartition(".")[2].lower()
            text = base64.b64encode(files[name]).decode()
            packed[str(n)] = EmbeddedFile(
                uri=asset["uri"], sha256=hashlib.sha256(files[name]).hexdigest()
            )
            asset["uri"] = f"data:{_MEDIA.get(ending, 'application/octet-stream')};base64,{text}"
        if packed or rest:
            texts = {name: base64.b64encode(data).decode() for name, data in rest.items()}
            _push(self.data, Kept(was=cast("Form", was), now="json", assets=packed, files=texts))

    def _unpacked(self) -> dict[str, bytes]:
        """The files that `_packed` put away."""
        kept = _top(self.data, "charx", "json") or _top(self.data, "png", "json")
        if not kept:
            return {}
        _pop(self.data)
        try:
            files = {name: from_base64(text.encode()) for name, text in kept.files.items()}
        except ValueError as error:
            raise InputError(
                f"a kept file is not base64 ({error})", place=f'extensions["{KEPT}"]'
            ) from None
        listed = self.data.get("assets")
        for n, asset in enumerate(listed if isinstance(listed, list) else ()):
            found = kept.assets.get(str(n))
            if not found or not isinstance(asset, dict) or not isinstance(asset.get("uri"), str):
                continue
            head, _, text = asset["uri"].partition(";base64,")
            name = _inside(found.uri)
            if not head.startswith("data:") or name is None:
                continue
            try:
                data = from_base64(text.encode())
            except (ValueError, UnicodeEncodeError):
                continue
            if hashlib.sha256(data).hexdigest() == found.sha256:
                files[name] = data
                asset["uri"] = found.uri
        for name in files:
            if not _fits_a_chunk(name):
                raise InputError(
                    "a kept file has a name that no file can have",
                    place=f'extensions["{KEPT}"], file {name[:200]!r}',
                    mend="Remove it from the card",
                )
        return files


_FRAME = ("spec", "spec_version", "data")


def _odd_frame(document: dict[str, Any], version: Version) -> dict[str, Any] | None:
    """`spec` and `spec_version` as found, where they are not the specification's."""
    found: dict[str, Any] = {k: document[k] for k in _FRAME[:2] if k in document}
    spec, number = SPEC_OF[version]
    return None if found == {"spec": spec, "spec_version": number} else found


def _read_in_v1(names: Collection[str]) -> set[str]:
    """The names that a V1 card with these fields would be asked for."""
    old = {OLD_NAMES[new] for new in V1_TEXTS if new in OLD_NAMES and new not in names}
    return {*MANDATORY["v3"], *ONLY_V3, "character_book"} | old


def _fill(data: dict[str, Any], version: Version) -> tuple[str, ...]:
    """Add the fields that the version demands, but for `extensions`; the names of the new ones."""
    added = [n for n in MANDATORY[version] if n not in data and n != "extensions"]
    data |= {name: copy.copy(MANDATORY[version][name]) for name in added}
    return tuple(added)


def _at_default(names: Iterable[str], data: dict[str, Any], version: Version) -> bool:
    return all(name in data and data[name] == MANDATORY[version].get(name) for name in names)


def _drop(names: Iterable[str], data: dict[str, Any], version: Version) -> None:
    """Take away fields that were added and never filled."""
    for name in names:
        if _at_default([name], data, version):
            del data[name]


def _inside(uri: str) -> str | None:
    """The name of the file in the archive that a URI points to."""
    for scheme in EMBEDDED:
        if uri.startswith(scheme):
            return uri.removeprefix(scheme)
    return None


# The record of conversions ---------------------------------------------------------------------


def _stack(holder: dict[str, Any]) -> list[Kept]:
    extensions = holder.get("extensions")
    found = extensions.get(KEPT, []) if isinstance(extensions, dict) else []
    place = f'extensions["{KEPT}"]'
    if not isinstance(found, list):
        raise InputError(
            "this is not what Personae keeps here", place=place, mend="Remove it from the card"
        )
    return [Kept.from_dict(step, place=place) for step in found]


def _top(holder: dict[str, Any], was: Form, now: Form) -> Kept | None:
    """The last conversion of the card or entry, if it was that one."""
    stack = _stack(holder)
    return stack[-1] if stack and (stack[-1].was, stack[-1].now) == (was, now) else None


def _push(holder: dict[str, Any], kept: Kept) -> None:
    extensions = holder.get("extensions")
    if not isinstance(extensions, dict):
        kept = kept.model_copy(update={"had": (extensions,) if "extensions" in holder else ()})
        extensions = {}
    stack = [step.to_dict() for step in (*_stack(holder), kept)]
    holder["extensions"] = {**extensions, KEPT: stack}


def _pop(holder: dict[str, Any]) -> None:
    *rest, last = _stack(holder)
    extensions = {k: v for k, v in holder["extensions"].items() if k != KEPT}
    if rest:
        extensions[KEPT] = [step.to_dict() for step in rest]
    holder["extensions"] = extensions
    if last.had is not None and not extensions:
        del holder["extensions"]
        if last.had:
            holder["extensions"] = last.had[0]
