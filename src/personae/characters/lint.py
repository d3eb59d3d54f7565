"""What the author of a card should know of it: what breaks the specification, what cannot work.

An error breaks a MUST of the version that the card names, or can never have the effect that it
asks for. A hint may be meant: applications differ, and so do tastes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from personae.characters.card import ASSET_CHUNK, Card
from personae.characters.convert import ASSET_URI, EMBEDDED
from personae.characters.lorebook import examine
from personae.characters.macros import macros_in
from personae.characters.reading import (
    MANDATORY,
    ONLY_V3,
    SPEC_OF,
    Finding,
    Level,
    parts_of,
)
from personae.errors import InputError
from personae.records import Asset, Character, Lorebook, PersonaeExtension
from personae.records.base import Record
from personae.records.tokens import estimate_tokens

ALWAYS_TOKENS = 2_000
SHOWN = 3

_ENTRY = ("keys", "content", "extensions", "enabled", "insertion_order")
_ASSET_TYPES = frozenset({"icon", "background", "user_icon", "emotion", "other"})
_SCHEMES = ("http://", "https://", "data:", "ccdefault:", ASSET_URI, *EMBEDDED)
# The fields in which macros are filled in, and those of them that a model is always told.
ALWAYS = ("description", "personality", "scenario", "system_prompt", "post_history_instructions")
_FILLED = (*ALWAYS, "first_mes", "mes_example")
_USER = r"(?:\{\{\s*user\s*\}\}|<user>)"
_CHAR = r"(?:\{\{\s*char\s*\}\}|<(?:bot|char)>)"
_LINE_OF_USER = re.compile(rf"^[ \t*_>]*{_USER}[ \t*_]*[:：]", re.IGNORECASE | re.MULTILINE)
_SAYS_USER = re.compile(
    rf"{_USER}\s*(?:says?|said|replie[sd]|answer(?:s|ed)|ask(?:s|ed)|whisper(?:s|ed)|nod(?:s|ded)"
    r"|smile[sd]?|think(?:s)?|thought|feel(?:s)?|felt|decide[sd]?|agree[sd]?)\b"
    rf"|{_USER}\s*(?:说道|说|答道|回答|问道|心想|想着|觉得|点点头|点了点头|笑了)",
    re.IGNORECASE,
)


class Tokens(Record):
    """Estimates (four Latin or one and a half Chinese characters a token).

    Attributes:
        always: what every prompt holds: the fields of `ALWAYS`.
        greeting, examples: `first_mes`, `mes_example`.
        lorebook: all entries that are enabled.
        constant: those of them that are always told.
    """

    always: int = 0
    greeting: int = 0
    examples: int = 0
    lorebook: int = 0
    constant: int = 0


def lint(card: Card) -> list[Finding]:
    """All that is to be said of a card: errors first, then hints, each in the card's order."""
    found = [
        *card.findings,
        *_frame(card),
        *_mandatory(card),
        *_unknown(card),
        *_chunks(card),
        *_assets(card),
        *_texts(card.character),
        *_ours(card.character),
        *_book(card),
        *_budget(card.character),
    ]
    return sorted(dict.fromkeys(found), key=lambda f: f.level == "hint")


def tokens_of(character: Character) -> Tokens:
    """How many tokens the character's texts will take, roughly."""

    def count(*texts: str) -> int:
        return sum(estimate_tokens(text) for text in texts if text)

    entries = character.character_book.entries if character.character_book else ()
    told = [entry for entry in entries if entry.enabled]
    return Tokens(
        always=count(*(getattr(character, name) for name in ALWAYS)),
        greeting=count(character.first_mes),
        examples=count(character.mes_example),
        lorebook=count(*(entry.content for entry in told)),
        constant=count(*(entry.content for entry in told if entry.constant)),
    )


def _error(place: str, message: str) -> Finding:
    return Finding(level="error", place=place, message=message)


def _hint(place: str, message: str) -> Finding:
    return Finding(level="hint", place=place, message=message)


def _frame(card: Card) -> Iterator[Finding]:
    document, version = card.document, card.version
    if version == "v1":
        yield _hint("the card", "a V1 card; `personae character convert --to v3` makes it V3")
        return
    spec, number = SPEC_OF[version]
    if document.get("spec") != spec:
        yield _error("spec", f"{_shown(document.get('spec'))}, read as {spec}")
    if document.get("spec_version") != number:
        newer = _newer(document.get("spec_version"), number)
        level: Level = "hint" if newer else "error"
        what = "a newer version, read as" if newer else "not"
        place = "spec_version"
        message = f"{_shown(document.get('spec_version'))}: {what} {number!r}"
        yield Finding(level=level, place=place, message=message)
    if card.charx and version != "v3":
        yield _error("spec", "a CHARX file holds a V3 card")


def _newer(found: Any, known: str) -> bool:
    try:
        return isinstance(found, str) and float(found) > float(known)
    except ValueError:
        return False


def _shown(value: Any) -> str:
    return "absent" if value is None else repr(value)[:60]


def _mandatory(card: Card) -> Iterator[Finding]:
    data, prefix = parts_of(card.document, card.version)
    missing = [n for n in MANDATORY[card.version] if n not in data]
    if missing:
        yield _error(prefix.rstrip(".") or "the card", f"without {_listed(missing)}")
    book = data.get("character_book")
    if not isinstance(book, dict) or not book:
        return
    place = f"{prefix}character_book"
    lacking = [name for name in ("extensions", "entries") if name not in book]
    if lacking:
        yield _error(place, f"without {_listed(lacking)}")
    names = (*_ENTRY, "use_regex") if card.version == "v3" else _ENTRY
    entries = book.get("entries")
    items = list(enumerate(entries)) if isinstance(entries, list) else []
    without: dict[str, list[int]] = defaultdict(list)
    for n, entry in items:
        for name in names:
            if isinstance(entry, dict) and name not in entry:
                without[name].append(n)
    for name, numbers in without.items():
        yield _error(f"{place}.entries", f"without `{name}`: {_numbered(numbers)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _numbered(numbers: list[int]) -> str:
    more = len(numbers) - SHOWN
    first = ", ".join(f"entries[{n}]" for n in numbers[:SHOWN])
    return f"{first} and {more} more" if more > 0 else first


def _unknown(card: Card) -> Iterator[Finding]:
    data, prefix = parts_of(card.document, card.version)
    if card.version == "v1":
        return
    known = {*MANDATORY["v3"], "character_book"} | set(ONLY_V3)
    unknown = [name[:60] for name in data if name not in known]
    if unknown:
        yield _hint(
            prefix.rstrip("."),
            f"fields that no specification knows: {_listed(unknown[:8])}; they are kept, and "
            "belong into `extensions`",
        )
    newer = [name for name in data if card.version == "v2" and name in ONLY_V3]
    if newer:
        yield _hint(prefix.rstrip("."), f"fields of V3 in a V2 card: {_listed(newer)}")


def _chunks(card: Card) -> Iterator[Finding]:
    if not card.png:
        return
    names = [c.keyword.lower() for c in card.png.chunks if c.keyword]
    if "chara" in names and "ccv3" not in names and card.version == "v3":
        yield _error("chunk chara", "a V3 card belongs into a chunk `ccv3`")
    if any(name.startswith(ASSET_CHUNK) for name in names):
        yield _hint("the PNG", "holds files in chunks; V3 asks for CHARX instead")


def _assets(card: Card) -> Iterator[Finding]:
    assets = card.character.assets or ()
    place = parts_of(card.document, card.version)[1] + "assets"
    for n, asset in enumerate(assets):
        yield from _asset(card, asset, f"{place}[{n}]")
    for kind in ("icon", "background"):
        mains = [a for a in assets if a.type == kind and a.name == "main"]
        several = sum(a.type == kind for a in assets) > 1
        if len(mains) > 1 or (kind == "icon" and several and not mains):
            yield _error(place, f"{len(mains)} assets of type {kind} are named `main`")


def _asset(card: Card, asset: Asset, place: str) -> Iterator[Finding]:
    uri = asset.uri
    if not uri.startswith(_SCHEMES):
        yield _hint(f"{place}.uri", f"not a URI that V3 knows: {uri[:60]!r}")
    if uri.startswith("http://"):
        yield _hint(f"{place}.uri", "not https; applications may leave it out")
    if uri != "ccdefault:" and (asset.ext != asset.ext.lower() or asset.ext.startswith(".")):
        yield _error(f"{place}.ext", f"{asset.ext[:20]!r}: V3 asks for lower case, without a dot")
    if asset.type not in _ASSET_TYPES and not asset.type.startswith("x_"):
        yield _hint(f"{place}.type", f"{asset.type[:40]!r} is not V3's; own types begin with x_")
    if uri.startswith(EMBEDDED):
        name = uri.partition("://")[2]
        if card.charx is None:
            yield _error(f"{place}.uri", "a file in an archive, and this card is in none")
        elif name not in card.charx.members:
            yield _error(f"{place}.uri", f"no file {name[:80]!r} is in the archive")
    if uri.startswith(ASSET_URI):
        name = uri.removeprefix(ASSET_URI)
        keywords = {c.keyword for c in card.png.chunks} if card.png else set()
        if not keywords & {f"{ASSET_CHUNK}:{name}", f"{ASSET_CHUNK}{name}"}:
            yield _error(f"{place}.uri", f"no chunk of the PNG holds {name[:80]!r}")


def _texts(character: Character) -> Iterator[Finding]:
    prefix = "" if character.spec == "v1" else "data."
    if re.search(r"[\n{}<>]", character.name):
        yield _hint(f"{prefix}name", "holds a line end, a brace or a bracket")
    if character.nickname is not None and not character.nickname.strip():
        yield _hint(f"{prefix}nickname", "blank; {{char}} stays the name")
    if not (character.description.strip() or character.personality.strip()):
        yield _hint(f"{prefix}description", "nothing describes the character")
    if not character.first_mes.strip():
        yield _hint(f"{prefix}first_mes", "no greeting; V1 and V2 let the character speak first")
    greetings = {
        f"{prefix}first_mes": character.first_mes,
        **_each(f"{prefix}alternate_greetings", character.alternate_greetings),
        **_each(f"{prefix}group_only_greetings", character.group_only_greetings),
    }
    for place, greeting in greetings.items():
        if _LINE_OF_USER.search(greeting) or _SAYS_USER.search(greeting):
            yield _hint(place, "speaks or acts for {{user}}; the model will go on to do so")
    note = character.extensions.get("depth_prompt")
    if isinstance(note, dict) and str(note.get("prompt") or "").strip():
        yield _hint(
            f"{prefix}extensions.depth_prompt", "SillyTavern's note is kept and reaches no prompt"
        )
    yield from _examples(character, f"{prefix}mes_example")
    texts = {f"{prefix}{name}": getattr(character, name) for name in _FILLED} | greetings
    for n, entry in enumerate(character.character_book.entries if character.character_book else ()):
        texts[f"{prefix}character_book.entries[{n}].content"] = entry.content
    for place, text in texts.items():
        yield from _macros(place, text)
    for n, code in enumerate(character.creator_notes_multilingual or ()):
        if not re.fullmatch(r"[a-z]{2}", code):
            where = f"{prefix}creator_notes_multilingual"
            yield _error(where, f"key {n + 1}, {code[:20]!r}, is no ISO 639-1 code")


def _each(place: str, texts: Iterable[str]) -> dict[str, str]:
    return {f"{place}[{n}]": text for n, text in enumerate(texts)}


def _macros(place: str, text: str) -> Iterator[Finding]:
    unknown = list(dict.fromkeys(macro for macro, known in macros_in(text) if not known))
    if unknown:
        shown = ", ".join(macro[:40] for macro in unknown[:SHOWN])
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        yield _hint(place, f"macros that are not filled in: {shown}{more}")
    overrides = place.endswith(("system_prompt", "post_history_instructions"))
    if not overrides and re.search(r"\{\{\s*original\s*\}\}", text, re.IGNORECASE):
        yield _hint(place, "{{original}} has a meaning in system_prompt and its like alone")


def _examples(character: Character, place: str) -> Iterator[Finding]:
    text = character.mes_example
    if not text.strip():
        yield _hint(place, "no example of how the character speaks")
        return
    if not re.search(r"^[ \t]*<START>", text, re.IGNORECASE | re.MULTILINE):
        yield _hint(place, "no <START>, so where a conversation begins is not told")
    names = [_CHAR, re.escape(character.name), re.escape(character.called)]
    line = re.compile(
        rf"^[ \t]*(?:(?P<user>{_USER})|(?P<char>{'|'.join(names)}))[ \t]*[:：]",
        re.IGNORECASE | re.MULTILINE,
    )
    said = {"user": 0, "char": 0}
    marks = list(line.finditer(text))
    for mark, after in zip(marks, [*marks[1:], None], strict=False):  # None ends, marks or not
        who = "user" if mark["user"] else "char"
        said[who] += len(text[mark.end() : after.start() if after else len(text)].strip())
    if not said["char"]:
        yield _hint(place, "no line of {{char}}: the examples show no voice")
    elif said["user"] > said["char"]:
        yield _hint(place, "more of it is {{user}}'s speech than the character's")


def _ours(character: Character) -> Iterator[Finding]:
    prefix = "" if character.spec == "v1" else "data."
    place = f"{prefix}extensions.personae"
    try:
        ours = character.ours
    except InputError as error:
        yield _error(place, error.what)
        return
    yield from _secrets(character, ours, f"{place}.secrets")


def _secrets(character: Character, ours: PersonaeExtension, place: str) -> Iterator[Finding]:
    open_to_all = " ".join(getattr(character, name) for name in ("first_mes", "mes_example"))
    for n, secret in enumerate(ours.secrets):
        if not secret.known_by:
            yield _hint(f"{place}[{n}]", "nobody knows it, so it reaches no prompt")
        if secret.fact in open_to_all:
            yield _error(f"{place}[{n}]", "the greeting or the examples tell it in the same words")


def _book(card: Card) -> Iterator[Finding]:
    book = card.character.character_book
    if book is None:
        return
    place = parts_of(card.document, card.version)[1] + "character_book"
    yield from examine(book, place)
    for n, entry in enumerate(book.entries):
        where = f"{place}.entries[{n}]"
        if not entry.enabled:
            yield _hint(f"{where}.enabled", "switched off: the entry never fires")
        if any(not key.strip() for key in entry.keys):
            yield _error(f"{where}.keys", "an empty key: it never fires")
        if entry.selective and not any(key.strip() for key in entry.secondary_keys or ()):
            yield _hint(f"{where}.selective", "no secondary key to be selective with")
    yield from _book_budget(book, place)


def _book_budget(book: Lorebook, place: str) -> Iterator[Finding]:
    if book.token_budget is None:
        return
    for n, entry in enumerate(book.entries):
        size = estimate_tokens(entry.content) if entry.content else 0
        if entry.enabled and size > book.token_budget:
            yield _error(
                f"{place}.entries[{n}].content",
                f"about {size:,} tokens, and the budget of the book is {book.token_budget:,}: "
                "it never fits",
            )


def _budget(character: Character) -> Iterator[Finding]:
    tokens = tokens_of(character)
    always = tokens.always + tokens.constant
    if always > ALWAYS_TOKENS:
        yield _hint(
            "the card",
            f"every prompt holds about {always:,} tokens of it; small models lose themselves "
            f"beyond {ALWAYS_TOKENS:,} (a lorebook tells things when they come up)",
        )
