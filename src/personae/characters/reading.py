"""The JSON of a card into a `Character`, and back: lenient in, by the specification out.

Cards are written by many programs and by hand. What a value plainly means is taken as meant, and a
`Finding` says so:

- `null`, and an empty value of another type (`[]` for `{}`), is an absent field;
- a number or a truth value where text belongs is its JSON spelling; a number or a truth value
  written as text is read;
- one text where a list of texts belongs is a list: tags and keys are split at commas;
- what cannot be read so is set aside, if nothing that a model is told hangs on it (the value stays
  in `extra` under its own name), and refused with its place otherwise.

None of this changes the card itself: see `personae.characters.card.Card`.

Sources: Character Card V1 and V2 (github.com/malfoyslastname/character-card-spec-v2), Character
Card V3 (github.com/kwaroran/character-card-spec-v3).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from personae.errors import InputError
from personae.records import Asset, Character, Lorebook, LoreEntry
from personae.records.base import Record

Version = Literal["v1", "v2", "v3"]
Level = Literal["error", "hint"]
Value = TypeVar("Value")

SPECS: dict[str, Version] = {"chara_card_v2": "v2", "chara_card_v3": "v3"}
SPEC_OF: dict[Version, tuple[str, str]] = {
    "v2": ("chara_card_v2", "2.0"),
    "v3": ("chara_card_v3", "3.0"),
}

V1_TEXTS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")
V2_TEXTS = (
    "creator_notes", "system_prompt", "post_history_instructions", "creator", "character_version",
)  # fmt: skip
MANDATORY: dict[Version, dict[str, Any]] = {
    "v1": dict.fromkeys(V1_TEXTS, ""),
    "v2": {
        **dict.fromkeys((*V1_TEXTS, *V2_TEXTS), ""),
        "alternate_greetings": [],
        "tags": [],
        "extensions": {},
    },
}
MANDATORY["v3"] = {**MANDATORY["v2"], "group_only_greetings": []}
ONLY_V3 = (
    "assets", "nickname", "creator_notes_multilingual", "source", "group_only_greetings",
    "creation_date", "modification_date",
)  # fmt: skip
# What TavernAI's and Pygmalion's first cards called the fields of V1.
OLD_NAMES = {
    "name": "char_name",
    "description": "char_persona",
    "scenario": "world_scenario",
    "first_mes": "char_greeting",
    "mes_example": "example_dialogue",
}

MAX_JSON_CHARS = 32 * 2**20
MAX_DEPTH = 100
MAX_NAME_CHARS = 500
MAX_PARTS = 2_000_000
# Fields that a card or an entry must have, of those that may be left unread.
_NEEDED = frozenset(
    {
        "creator_notes", "creator", "character_version", "tags", "extensions", "enabled",
        "insertion_order", "use_regex",
    }
)  # fmt: skip
_COMMAS = re.compile(r"[,，]")


class Finding(Record):
    """Something about a card that its author should know.

    Attributes:
        level: `error` breaks the specification or can never work; `hint` may be meant.
        place: the field, as `data.character_book.entries[3].keys`.
    """

    level: Level
    place: str
    message: str


# JSON ------------------------------------------------------------------------------------------


def parse_json(text: str, *, path: object, place: str = "", twice: list[str] | None = None) -> Any:
    """The value of a stranger's JSON text.

    Args:
        twice: takes the keys that stand twice in an object; the last one counts, as everywhere.

    Raises:
        InputError: not JSON, too long, too deep, of too many parts, or a number is out of range.
    """
    where = f"{place}, " if place else ""

    def refused(what: str, at: str = place, mend: str = "") -> InputError:
        return InputError(what, path=str(path), place=at, mend=mend)

    if len(text) > MAX_JSON_CHARS:
        raise refused(f"the JSON is longer than the {MAX_JSON_CHARS:,} characters allowed")
    if sum(map(text.count, "[{,")) > MAX_PARTS:
        raise refused(f"the JSON has more than the {MAX_PARTS:,} parts allowed")

    def no_constant(name: str) -> Any:
        raise refused(f"{name} is not a number in JSON")

    def finite(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            raise refused(f"the number {digits[:20]} is too large")
        return value

    def whole(digits: str) -> int:
        value = int(digits)
        if not _finite(value):
            raise refused(f"the number {digits[:20]} is too large")
        return value

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if twice is not None and len(made) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice.extend(key for key, count in counts.items() if count > 1)
        return made

    try:
        value = json.loads(
            text,
            parse_constant=no_constant,
            parse_float=finite,
            parse_int=whole,
            object_pairs_hook=None if twice is None else noted,
        )
    except json.JSONDecodeError as error:
        at = f"{where}line {error.lineno}, column {error.colno}"
        raise refused(f"not JSON ({error.msg})", at, "Is this a card?") from None
    except RecursionError:
        raise refused(f"the JSON is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # Python refuses an integer of thousands of digits
        raise refused("a number in the JSON is too large") from None
    if _deeper_than(value, MAX_DEPTH):
        raise refused(f"the JSON is nested deeper than {MAX_DEPTH} levels")
    return value


def _deeper_than(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return any(isinstance(value, dict | list) for value in layer)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that UTF-8 can hold; half of a surrogate pair is escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, indent=indent)
    return text


# The shape of a card ---------------------------------------------------------------------------


def version_of(document: Any, *, path: object = None) -> Version:
    """The version that a card is read in.

    A card with `data` and a `spec` that is not known is read as V3, as that version asks for its
    successors; one without any `spec` as V2. Without `data` it is a V1 card.

    Raises:
        InputError: this is no card.
    """
    if not isinstance(document, dict):
        raise InputError("a card is a JSON object", path=_named(path), mend="Is this a card?")
    spec = document.get("spec")
    if isinstance(spec, str) and spec.startswith("lorebook"):
        raise InputError(
            "this is a lorebook, not a card", path=_named(path), place="spec", mend="Give the card"
        )
    if isinstance(document.get("data"), dict):
        if spec is None:
            return "v2"
        return SPECS.get(spec, "v3") if isinstance(spec, str) else "v3"
    if any(document.get(name) for name in ("name", "char_name")):
        return "v1"
    if isinstance(document.get("entries"), dict | list):
        raise InputError("this is a lorebook, not a card", path=_named(path), mend="Give the card")
    raise InputError(
        "this is no character card: neither `data` nor a name",
        path=_named(path),
        mend="A card has a name at the top (V1) or in `data` (V2, V3)",
    )


def old_name(data: dict[str, Any], name: str) -> str | None:
    """What a V1 card without a field of V1 calls it instead."""
    old = OLD_NAMES.get(name)
    return old if name not in data and old in data else None


def parts_of(document: dict[str, Any], version: Version) -> tuple[dict[str, Any], str]:
    """The object that holds the fields, and the prefix of its places."""
    return (document, "") if version == "v1" else (document["data"], "data.")


def _named(path: object) -> str | None:
    return None if path is None else str(path)


class _Reader:
    """Reads values of a card and collects what is to be said of them."""

    def __init__(self, path: object) -> None:
        self.path = path
        self.findings: list[Finding] = []

    def say(self, place: str, message: str, level: Level = "error") -> None:
        self.findings.append(Finding(level=level, place=place, message=message))

    def refused(self, place: str, wanted: str, value: Any) -> InputError:
        return InputError(
            f"{wanted} belongs here, not {_kind(value)}",
            path=_named(self.path),
            place=place,
            mend="Mend it in the editor that made the card",
        )

    def text(self, value: Any, place: str) -> str:
        if isinstance(value, str):
            return self.unicode(value, place)
        if self.absent(value, place, "text"):
            return ""
        if isinstance(value, bool | int | float):
            self.say(place, f"{_kind(value)} where text belongs; read as its spelling")
            return json.dumps(value)
        raise self.refused(place, "text", value)

    def unicode(self, value: str, place: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.say(place, "half of a surrogate pair; read as U+FFFD")
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value

    def absent(self, value: Any, place: str, wanted: str) -> bool:
        """Whether a value of the wrong type is one that stands for none."""
        if value is None or (isinstance(value, str | list | dict) and not value):
            self.say(place, f"{_kind(value)} where {wanted} belongs; read as absent")
            return True
        return False

    def texts(self, value: Any, place: str, *, split: bool = False) -> tuple[str, ...]:
        if isinstance(value, list):
            return tuple(self.text(v, f"{place}[{n}]") for n, v in enumerate(value))
        if self.absent(value, place, "a list of texts"):
            return ()
        if isinstance(value, str):
            self.say(place, "one text where a list of texts belongs")
            value = self.unicode(value, place)
            parts = [p.strip() for p in _COMMAS.split(value)] if split else [value]
            return tuple(p for p in parts if p)
        raise self.refused(place, "a list of texts", value)

    def mapping(self, value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        if self.absent(value, place, "an object"):
            return {}
        raise self.refused(place, "an object", value)

    def number(self, value: Any, place: str) -> int | float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if isinstance(value, str):
            try:
                read = json.loads(value)
            except (ValueError, RecursionError):
                read = None
            if isinstance(read, int | float) and not isinstance(read, bool) and _finite(read):
                self.say(place, "a number written as text")
                return read
        raise self.refused(place, "a number", value)

    def count(self, value: Any, place: str) -> int:
        found = self.number(value, place)
        if found < 0 or found != int(found):
            raise self.refused(place, "a whole number from 0", value)
        return int(found)

    def truth(self, value: Any, place: str) -> bool:
        if isinstance(value, bool):
            return value
        known: dict[Any, bool] = {0: False, 1: True, "0": False, "1": True}
        known |= {"true": True, "false": False}
        key = value.strip().lower() if isinstance(value, str) else value
        if isinstance(key, str | int | float) and key in known:
            self.say(place, f"{_kind(value)} where true or false belongs")
            return known[key]
        raise self.refused(place, "true or false", value)

    def optional(
        self,
        source: dict[str, Any],
        name: str,
        place: str,
        read: Callable[[Any, str], Value],
        aside: dict[str, Any],
    ) -> Value | None:
        """A field on which no prompt hangs: unreadable, it is set aside and said."""
        if name not in source:
            return None
        value, where = source[name], place + name
        if value is None:
            message = "null; read as absent"
            self.say(where, message, "error" if name in _NEEDED else "hint")
            return None
        try:
            return read(value, where)
        except InputError as error:
            if value in ("", [], {}):
                self.say(where, f"{_kind(value)} here; read as absent")
                return None
            self.say(where, f"{error.what}; set aside")
            aside[name] = value
            return None


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond a double
        return False


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    kind = "list" if isinstance(value, list) else "object"
    return f"{'an' if not value or kind == 'object' else 'a'} {'empty ' if not value else ''}{kind}"


# Reading ---------------------------------------------------------------------------------------


def read_document(document: Any, *, path: object = None) -> tuple[Character, list[Finding]]:
    """The character that a card's JSON value describes, and what is to be said of the value.

    Raises:
        InputError: it is no card, has no name, or a field that a model is told is unreadable.
    """
    version = version_of(document, path=path)
    data, prefix = parts_of(document, version)
    reader = _Reader(path)
    aside: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    known = set(V1_TEXTS) | set(V2_TEXTS)

    def optional(name: str, read: Callable[[Any, str], Any]) -> None:
        known.add(name)
        found = reader.optional(data, name, prefix, read, aside)
        if found is not None:
            fields[name] = found

    for name in V1_TEXTS:
        found, where = name, prefix + name
        if version == "v1" and (old := old_name(data, name)):
            found = where = old
            known.add(old)
            reader.say(where, f"an old name for `{name}`", "hint")
        if found in data:
            fields[name] = reader.text(data[found], where)
    for name in ("system_prompt", "post_history_instructions"):
        if name in data:
            fields[name] = reader.text(data[name], prefix + name)
    for name in ("creator_notes", "creator", "character_version"):
        optional(name, reader.text)
    for name in ("alternate_greetings", "group_only_greetings"):
        known.add(name)
        if name in data:
            fields[name] = reader.texts(data[name], prefix + name)
    optional("tags", lambda v, at: reader.texts(v, at, split=True))
    optional("nickname", reader.text)
    optional("source", reader.texts)
    optional("creation_date", reader.number)
    optional("modification_date", reader.number)
    optional("creator_notes_multilingual", lambda v, at: _notes(reader, v, at))
    optional("assets", lambda v, at: _assets(reader, v, at))
    known |= {"extensions", "character_book"}
    if "extensions" in data:
        fields["extensions"] = reader.mapping(data["extensions"], f"{prefix}extensions")
    if data.get("character_book") is not None:
        place = f"{prefix}character_book"
        if reader.mapping(data["character_book"], place):
            fields["character_book"] = _book(reader, data["character_book"], place)
    elif "character_book" in data:
        reader.say(f"{prefix}character_book", "null; read as absent", "hint")
    if not fields.get("name", "").strip():
        raise InputError(
            "the character has no name",
            path=_named(path),
            place=f"{prefix}name",
            mend="Give the card a name",
        )
    for name in ("name", "nickname"):  # either may stand for a macro at a thousand places
        length = len(fields.get(name, ""))
        if length > MAX_NAME_CHARS:
            raise InputError(
                f"the {name} has {length:,} characters, more than the {MAX_NAME_CHARS} allowed",
                path=_named(path),
                place=f"{prefix}{name}",
                mend="Shorten it",
            )
    spec_version = document.get("spec_version")
    character = Character(
        spec=version,
        spec_version=spec_version if version != "v1" and isinstance(spec_version, str) else None,
        **fields,
        extra={k: v for k, v in data.items() if k not in known} | aside,
        outer={}
        if version == "v1"
        else {k: v for k, v in document.items() if k not in _frame(document)},
    )
    return character, reader.findings


def _frame(document: dict[str, Any]) -> tuple[str, ...]:
    """What stands around the fields and is told by `spec` and `spec_version` of the record."""
    spec, number = document.get("spec"), document.get("spec_version")
    return (
        "data",
        *(["spec"] if isinstance(spec, str) and spec in SPECS else []),
        *(["spec_version"] if isinstance(number, str) else []),
    )


def _notes(reader: _Reader, value: Any, place: str) -> dict[str, str]:
    return {
        key: reader.text(text, f"{place}.{key}")
        for key, text in reader.mapping(value, place).items()
    }


def _assets(reader: _Reader, value: Any, place: str) -> tuple[Asset, ...]:
    if not isinstance(value, list):
        raise reader.refused(place, "a list of assets", value)
    made = []
    for n, item in enumerate(value):
        where = f"{place}[{n}]"
        found = reader.mapping(item, where)
        texts = {k: reader.text(found.get(k), f"{where}.{k}") for k in Asset.model_fields}
        made.append(Asset(**texts))
    return tuple(made)


def read_book(
    value: Any, *, path: object = None, place: str = ""
) -> tuple[Lorebook, list[Finding]]:
    """A lorebook in the form of Character Card V2 and V3, and what is to be said of it.

    Raises:
        InputError: it is not an object, or an entry is none.
    """
    reader = _Reader(path)
    book = _book(reader, reader.mapping(value, place), place)
    return book, reader.findings


def _book(reader: _Reader, value: dict[str, Any], place: str) -> Lorebook:
    aside: dict[str, Any] = {}
    prefix = f"{place}." if place else ""

    def optional(name: str, read: Callable[[Any, str], Value]) -> Value | None:
        return reader.optional(value, name, prefix, read, aside)

    entries = value.get("entries", [])
    if isinstance(entries, dict):  # as SillyTavern's World Info has them: by their numbers
        if entries:
            reader.say(f"{prefix}entries", "an object where a list of entries belongs")
        found: list[tuple[str, Any]] = list(entries.items())
    elif isinstance(entries, list):
        found = [(str(n), item) for n, item in enumerate(entries)]
    elif reader.absent(entries, f"{prefix}entries", "a list of entries"):
        found = []
    else:
        raise reader.refused(f"{prefix}entries", "a list of entries", entries)
    known = {*Lorebook.model_fields} - {"extra"}
    return Lorebook(
        name=optional("name", reader.text),
        description=optional("description", reader.text),
        scan_depth=optional("scan_depth", reader.count),
        token_budget=optional("token_budget", reader.count),
        recursive_scanning=optional("recursive_scanning", reader.truth),
        extensions=optional("extensions", reader.mapping) or {},
        entries=tuple(_entry(reader, item, f"{prefix}entries[{key}]") for key, item in found),
        extra={k: v for k, v in value.items() if k not in known} | aside,
    )


def _entry(reader: _Reader, value: Any, place: str) -> LoreEntry:
    if not isinstance(value, dict):
        raise reader.refused(place, "an entry (an object)", value)
    aside: dict[str, Any] = {}

    def optional(name: str, read: Callable[[Any, str], Value]) -> Value | None:
        return reader.optional(value, name, f"{place}.", read, aside)

    def keys(value: Any, at: str) -> tuple[str, ...]:
        return reader.texts(value, at, split=True)

    def identity(value: Any, at: str) -> int | str:
        return value if type(value) is int else reader.text(value, at)

    def position(value: Any, at: str) -> Literal["before_char", "after_char"]:
        if value in ("before_char", "after_char"):
            return cast('Literal["before_char", "after_char"]', value)
        raise reader.refused(at, "before_char or after_char", value)

    enabled = optional("enabled", reader.truth)
    fields: dict[str, Any] = {
        "keys": keys(value["keys"], f"{place}.keys") if "keys" in value else (),
        "content": reader.text(value["content"], f"{place}.content") if "content" in value else "",
        "extensions": optional("extensions", reader.mapping) or {},
        "enabled": True if enabled is None else enabled,
        "insertion_order": optional("insertion_order", reader.number) or 0,
        "case_sensitive": optional("case_sensitive", reader.truth),
        "use_regex": optional("use_regex", reader.truth) or False,
        "constant": optional("constant", reader.truth),
        "name": optional("name", reader.text),
        "priority": optional("priority", reader.number),
        "id": optional("id", identity),
        "comment": optional("comment", reader.text),
        "selective": optional("selective", reader.truth),
        "secondary_keys": optional("secondary_keys", keys),
        "position": optional("position", position),
    }
    extra = {k: v for k, v in value.items() if k not in fields} | aside
    return LoreEntry(**fields, extra=extra)


# Writing ---------------------------------------------------------------------------------------


def document_of(character: Character) -> dict[str, Any]:
    """The card's JSON value by the specification of the version that the record names."""
    version = character.spec
    value = character.to_dict()
    data: dict[str, Any] = {
        name: value[name]
        for name in Character.model_fields
        if name not in ("spec", "spec_version", "outer", "extra", "character_book")
        and (name in MANDATORY[version] or value[name] != _default(name))
    }
    if character.character_book is not None:
        data["character_book"] = book_document(character.character_book, version)
    _put_back(data, value["extra"], lambda name: data.get(name) == _default(name))
    if version == "v1":
        return {**value["outer"], **data}
    spec, number = SPEC_OF[version]
    frame = {"spec": spec, "spec_version": character.spec_version or number}
    return {**frame, **value["outer"], "data": data}


def book_document(book: Lorebook, version: Version = "v3") -> dict[str, Any]:
    """A lorebook in the form of Character Card V3, or V2; absent fields are left out."""
    made = _without_none(book.to_dict(), ("entries", "extra"))
    made["entries"] = [_entry_document(entry, version) for entry in book.entries]
    _put_back(made, book.extra, lambda name: made.get(name) in (None, {}))
    return made


def _entry_document(entry: LoreEntry, version: Version) -> dict[str, Any]:
    unknown = () if version == "v3" or entry.use_regex else ("use_regex",)
    made = _without_none(entry.to_dict(), ("extra", *unknown))
    fresh = LoreEntry().to_dict()
    _put_back(made, entry.extra, lambda name: made.get(name) == fresh.get(name))
    return made


def _without_none(value: dict[str, Any], but: tuple[str, ...]) -> dict[str, Any]:
    return {k: v for k, v in value.items() if v is not None and k not in but}


def _put_back(made: dict[str, Any], extra: dict[str, Any], unset: Callable[[str], bool]) -> None:
    """What was unknown or set aside returns, unless the record has a value of that name by now."""
    made |= {name: v for name, v in extra.items() if name not in made or unset(name)}


def _default(name: str) -> Any:
    return _FRESH.get(name)


_FRESH = Character(name="-").to_dict() | {"name": None}


def merged(found: Any, before: Any, after: Any) -> Any:
    """The found JSON value with the change from `before` to `after` made in it, and no other.

    `before` is what our reading of `found` would be written as: where nothing was changed, what
    was found stays as it is, however oddly written.
    """
    if before == after and type(before) is type(after):
        return found
    if isinstance(found, dict) and isinstance(before, dict) and isinstance(after, dict):
        made = {k: v for k, v in found.items() if k in after or k not in before}
        for name, value in after.items():
            if name in before and name in found:
                made[name] = merged(found[name], before[name], value)
            elif name not in before or before[name] != value:
                made[name] = value
        return made
    if (
        isinstance(found, list)
        and isinstance(before, list)
        and isinstance(after, list)
        and len(found) == len(before) == len(after)
    ):
        return [merged(*three) for three in zip(found, before, after, strict=True)]
    return after
