"""Lorebooks that stand alone: `lorebook_v3` files, and SillyTavern's World Info.

A World Info entry is read as SillyTavern itself puts it into a card (its
`convertWorldInfoToCharacterBook`): its own settings go into the entry's `extensions` under that
program's names, so that a book means the same here, in a card, and back in SillyTavern.

What a file says and a `Lorebook` cannot hold in the same words (a number written as text, `null`
for an absent field, an entry filed under another number than its own) is kept beside the entry
under `extensions.personae` and comes back when the book is written in the same form, unless that
field was changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from personae.characters.lorebook import is_taverns
from personae.characters.reading import Finding, book_document, json_text, parse_json, read_book
from personae.errors import InputError
from personae.records import Lorebook, LoreEntry
from personae.records.files import read_text, write_atomically

Form = Literal["lorebook_v3", "worldinfo"]
Holder = TypeVar("Holder", Lorebook, LoreEntry)

MAX_FILE_BYTES = 32 * 2**20
MAX_ENTRIES = 20_000
MEND = "Give a lorebook_v3 file, or a World Info file of SillyTavern"

# Fields of SillyTavern's entries with their defaults (`newWorldInfoEntryDefinition`); an entry
# without one is taken to have the default.
_DEFAULTS: dict[str, Any] = {
    "key": [],
    "keysecondary": [],
    "comment": "",
    "content": "",
    "constant": False,
    "selective": True,
    "order": 100,
    "disable": False,
    "addMemo": False,
}
_RENAMED = {
    "comment": "comment",
    "content": "content",
    "constant": "constant",
    "uid": "id",
    "key": "keys",
    "keysecondary": "secondary_keys",
    "selective": "selective",
    "order": "insertion_order",
}
# The same for what goes into `extensions`: World Info's name, the extension's, the default.
_EXTENSIONS: tuple[tuple[str, str, Any], ...] = (
    ("position", "position", 0),
    ("excludeRecursion", "exclude_recursion", False),
    ("preventRecursion", "prevent_recursion", False),
    ("delayUntilRecursion", "delay_until_recursion", False),
    ("displayIndex", "display_index", None),
    ("probability", "probability", 100),
    ("useProbability", "useProbability", True),
    ("depth", "depth", 4),
    ("selectiveLogic", "selectiveLogic", 0),
    ("outletName", "outlet_name", ""),
    ("group", "group", ""),
    ("groupOverride", "group_override", False),
    ("groupWeight", "group_weight", 100),
    ("scanDepth", "scan_depth", None),
    ("caseSensitive", "case_sensitive", None),
    ("matchWholeWords", "match_whole_words", None),
    ("useGroupScoring", "use_group_scoring", None),
    ("automationId", "automation_id", ""),
    ("role", "role", 0),
    ("vectorized", "vectorized", False),
    ("sticky", "sticky", None),
    ("cooldown", "cooldown", None),
    ("delay", "delay", None),
    ("matchPersonaDescription", "match_persona_description", False),
    ("matchCharacterDescription", "match_character_description", False),
    ("matchCharacterPersonality", "match_character_personality", False),
    ("matchCharacterDepthPrompt", "match_character_depth_prompt", False),
    ("matchScenario", "match_scenario", False),
    ("matchCreatorNotes", "match_creator_notes", False),
    ("triggers", "triggers", []),
    ("ignoreBudget", "ignore_budget", False),
)
_BEFORE = "before"
_TAKEN = {"id", "keys", "secondary_keys", "insertion_order", "enabled", "use_regex", "extensions"}


def read_lorebook(path: Path) -> Lorebook:
    """A lorebook from a file of its own, in any of the known forms.

    Raises:
        InputError: names the file, the place and the mend.
    """
    return examined_lorebook(path)[0]


def examined_lorebook(path: Path) -> tuple[Lorebook, list[Finding]]:
    """The same, with what is to be said of how the file is written.

    Raises:
        InputError: as `read_lorebook`.
    """
    document = parse_json(read_text(path, limit=MAX_FILE_BYTES), path=path)
    form = _form_of(document, path)
    if form == "worldinfo":
        return _read(document, form, path)
    if "data" in document:
        book, findings = _read(document["data"], form, path, "data")
        frame = {k: v for k, v in document.items() if k != "data"}
        if frame != {"spec": "lorebook_v3"}:
            book = _with_aside(book, "frame", frame)
        return book, findings
    return _read(document, form, path)


def write_lorebook(book: Lorebook, path: Path, to: Form = "lorebook_v3") -> None:
    """Write a lorebook as a file of its own.

    Raises:
        OutputError: the file cannot be written; the old one stays.
    """
    write_atomically(path, json_text(document_of_book(book, to), indent=2) + "\n")


def document_of_book(book: Lorebook, to: Form) -> dict[str, Any]:
    """The JSON value of a file that holds the book.

    Raises:
        InputError: there is no such form.
    """
    if to not in get_args(Form):
        raise InputError(
            f"no form is called {to!r}", mend=f"The forms: {', '.join(get_args(Form))}"
        )
    document = book_document(book)
    if to == "worldinfo":
        return _written(document, to)
    frame = _taken_out(document, "frame")
    made = _written(document, to)
    return {"spec": "lorebook_v3", **(frame or {}), "data": made}


def _form_of(document: Any, path: Path) -> Form:
    if not isinstance(document, dict):
        raise InputError("a lorebook is a JSON object", path=path, mend=MEND)
    spec = document.get("spec")
    if isinstance(spec, str) and spec.startswith("chara_card"):
        raise InputError("this is a card, not a lorebook", path=path, place="spec", mend=MEND)
    if isinstance(document.get("data"), dict) and isinstance(spec, str):
        return "lorebook_v3"
    entries = document.get("entries")
    if isinstance(entries, dict):
        return "worldinfo"
    if isinstance(entries, list):  # a card's `character_book`, taken out of the card
        told = {name for e in entries if isinstance(e, dict) for name in e}
        if "content" not in told and told & {"text", "entry"}:  # NovelAI's, Agnai's
            raise InputError(
                "a lorebook of another program: no entry has `content`",
                path=path,
                place="entries",
                mend=MEND,
            )
        tavern = [isinstance(e, dict) and "key" in e and "keys" not in e for e in entries]
        return "worldinfo" if tavern and all(tavern) else "lorebook_v3"
    raise InputError("no lorebook: it has no `entries`", path=path, mend=MEND)


# Reading -----------------------------------------------------------------------------------------


def _read(
    found: dict[str, Any], form: Form, path: Path, place: str = ""
) -> tuple[Lorebook, list[Finding]]:
    entries = found.get("entries")
    if isinstance(entries, dict | list) and len(entries) > MAX_ENTRIES:
        raise InputError(
            f"has {len(entries):,} entries, more than the {MAX_ENTRIES:,} allowed",
            path=path,
            place="entries",
            mend="Split it into several books",
        )
    if form == "lorebook_v3":
        book, findings = read_book(found, path=path, place=place)
        return _remembering(book, found, form), findings
    try:
        book, findings = read_book(_book_of(found, path), path=path)
    except InputError as error:
        raise InputError(
            error.what, path=path, place=_in_its_words(error.place), mend=error.mend
        ) from None
    return _remembering(book, found, form), [
        f.model_copy(update={"place": _in_its_words(f.place)})
        for f in findings
        if f.place != "entries"  # an object, as World Info has it
    ]


def _in_its_words(place: str) -> str:
    """A place with the name that World Info has for the field."""
    head, dot, name = place.rpartition(".")
    field, bracket, rest = name.partition("[")
    names = {theirs: ours for ours, theirs in _RENAMED.items()} | {"enabled": "disable"}
    return f"{head}{dot}{names.get(field, field) if dot else field}{bracket}{rest}"


def _book_of(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """A World Info file in the form of a card's lorebook."""
    made = {name: value for name, value in found.items() if name != "entries"}
    made["entries"] = {}
    for key, entry in _filed(found["entries"]):
        if not isinstance(entry, dict):
            raise InputError(
                "an entry is an object",
                path=path,
                place=f"entries[{key}]",
                mend="Mend it in the editor that made the file",
            )
        made["entries"][key] = _entry_of(entry)
    return made


def _filed(entries: Any) -> Iterator[tuple[str, Any]]:
    """Entries with the number that each is filed under."""
    if isinstance(entries, dict):
        yield from entries.items()
    else:
        yield from ((str(n), entry) for n, entry in enumerate(entries))


def _entry_of(found: dict[str, Any]) -> dict[str, Any]:
    full = {**_DEFAULTS, **found}
    known = {*_RENAMED, "disable", "extensions", *(name for name, _, _ in _EXTENSIONS)}
    made = {k: v for k, v in full.items() if k not in known and k not in _TAKEN}
    made |= {theirs: full[ours] for ours, theirs in _RENAMED.items() if ours in full}
    if "use_regex" in found:
        made["use_regex"] = found["use_regex"]
    disable = full["disable"]
    made["enabled"] = not disable if isinstance(disable, bool) else disable
    extensions = found.get("extensions")
    made["extensions"] = dict(extensions) if isinstance(extensions, dict) else {}
    for ours, theirs, default in _EXTENSIONS:
        if ours in found or default is not None:
            made["extensions"][theirs] = found.get(ours, default)
    position = made["extensions"]["position"]
    made["position"] = "before_char" if position == 0 else "after_char"
    return made


# Writing -----------------------------------------------------------------------------------------


def _written(document: dict[str, Any], to: Form) -> dict[str, Any]:
    """A book in the form wanted, with what was remembered of that form put back."""
    aside = _taken_out(document, to)
    memories = [_taken_out(entry, to) or {} for entry in document["entries"]]
    made: dict[str, Any] = {k: v for k, v in document.items() if k != "entries"}
    if to == "worldinfo":
        if made.get("extensions") == {}:
            del made["extensions"]
        filed: dict[str, Any] = {}
        made["entries"] = filed
        for n, (entry, memory) in enumerate(zip(document["entries"], memories, strict=True)):
            world = _world_entry(entry, n)
            filed[_free(filed, memory.pop("", None), world["uid"], n)] = world
            _put_back(world, memory)
    else:
        made["entries"] = document["entries"]
        for entry, memory in zip(made["entries"], memories, strict=True):
            _put_back(entry, memory)
    _put_back(made, aside)
    return made


def _free(filed: dict[str, Any], *wanted: Any) -> str:
    """The number to file an entry under: the first wanted one that no other has."""
    for key in wanted:
        if isinstance(key, str | int) and str(key) not in filed:
            return str(key)
    return next(str(n) for n in count(len(filed)) if str(n) not in filed)


def _world_entry(entry: dict[str, Any], number: int) -> dict[str, Any]:
    extensions = dict(entry["extensions"])
    tavern = is_taverns(entry["extensions"])
    made = {k: v for k, v in entry.items() if k not in _TAKEN | set(_RENAMED.values())}
    made.pop("position", None)
    for ours, theirs in _RENAMED.items():
        made[ours] = entry.get(theirs, _DEFAULTS.get(ours))
    made["uid"] = entry.get("id", number)
    made["selective"] = entry.get("selective", False)
    made["order"] = entry.get("insertion_order", _DEFAULTS["order"])
    made["disable"] = not entry.get("enabled", True)
    made.setdefault("addMemo", bool(entry.get("comment")))
    if not tavern:
        if entry.get("use_regex"):
            flags = "" if entry.get("case_sensitive") else "i"
            made["key"] = [_in_slashes(key, flags) for key in entry["keys"]]
        extensions.setdefault("position", 0 if entry.get("position") == "before_char" else 1)
        if isinstance(entry.get("case_sensitive"), bool):
            extensions.setdefault("case_sensitive", entry["case_sensitive"])
    if entry.get("use_regex"):
        made["use_regex"] = True
    for ours, theirs, default in _EXTENSIONS:
        if theirs in extensions:
            made[ours] = extensions.pop(theirs)
        elif ours == "displayIndex":
            made[ours] = number
        else:
            made[ours] = list(default) if isinstance(default, list) else default
    if extensions:
        made["extensions"] = extensions
    return made


def _in_slashes(pattern: str, flags: str) -> str:
    """A bare pattern as SillyTavern writes one."""
    if pattern.startswith("/") and "/" in pattern[1:]:
        return pattern
    escaped, skip = "", False
    for char in pattern:
        escaped += "\\/" if char == "/" and not skip else char
        skip = char == "\\" and not skip
    return f"/{escaped}/{flags}"


# What a `Lorebook` cannot hold in the file's words -----------------------------------------------


def _remembering(book: Lorebook, found: dict[str, Any], form: Form) -> Lorebook:
    """The book with all that would come out otherwise than it was found, kept beside it."""
    made = _written(book_document(book), form)
    come_out = made["entries"].values() if form == "worldinfo" else made["entries"]
    entries = []
    filed = _filed(found.get("entries") or [])
    for entry, (key, was), now in zip(book.entries, filed, come_out, strict=True):
        aside = _differences(was, now)
        if form == "worldinfo" and key != str(was.get("uid")):
            aside[""] = key
        entries.append(_with_aside(entry, form, aside))
    outer = {k: v for k, v in found.items() if k != "entries"}
    aside = _differences(outer, {k: v for k, v in made.items() if k != "entries"})
    return _with_aside(book.model_copy(update={"entries": tuple(entries)}), form, aside)


def _differences(was: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What stood there otherwise than it would be written: as found, and as it would be."""
    return {
        name: {"found": value, "read": now.get(name)}
        for name, value in was.items()
        if name not in now or not _same(value, now[name])
    }


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are one: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(v, other[k]) for k, v in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _put_back(made: dict[str, Any], memory: dict[str, Any] | None) -> None:
    """What was found returns where the field still says what was read of it."""
    for name, pair in (memory or {}).items():
        if (
            isinstance(pair, dict)
            and pair.keys() == {"found", "read"}
            and _same(made.get(name), pair["read"])
        ):
            made[name] = pair["found"]


def _with_aside(holder: Holder, form: str, aside: dict[str, Any]) -> Holder:
    if not aside:
        return holder
    ours = holder.extensions.get("personae")
    if not (isinstance(ours, dict) and ours):  # not from us: it stands aside too
        ours = {_BEFORE: ours} if "personae" in holder.extensions else {}
    kept = {**holder.extensions, "personae": {**ours, form: aside}}
    return holder.model_copy(update={"extensions": kept})


def _taken_out(document: dict[str, Any], form: str) -> dict[str, Any] | None:
    """The memory of a form, removed from the document's extensions."""
    extensions = document.get("extensions") or {}
    ours = extensions.get("personae")
    if not isinstance(ours, dict) or not isinstance(ours.get(form), dict):
        return None
    rest = {name: value for name, value in ours.items() if name != form}
    document["extensions"] = {k: v for k, v in extensions.items() if k != "personae"}
    if rest:
        document["extensions"]["personae"] = rest[_BEFORE] if rest.keys() == {_BEFORE} else rest
    memory: dict[str, Any] = dict(ours[form])
    return memory
