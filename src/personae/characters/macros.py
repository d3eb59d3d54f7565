"""The macros of cards: `{{char}}`, `{{user}}`, and the rest that Character Card V3 lists.

Texts are gone through once: what a macro becomes is never read for macros again, so a name cannot
bring any in. Macros may stand inside of others (`{{reverse:{{char}}}}`). One that is not known, or
whose value makes no sense, stays as it stands (`macros_in` finds them, for `character lint`).

Chance comes from the caller's seed alone, so that a replay says the same.

Source: Character Card V3, "Curly Braced Syntaxes"; V1 for `<USER>` and `<BOT>`; SillyTavern for
`::` between arguments and for `{{roll:2d6+1}}`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from personae.records import Language

STRANGER: Mapping[Language, str] = {"en": "someone", "zh": "某人"}
"""Whom `{{user}}` of a card means in a scene: a character's name would put words into its mouth."""
KNOWN = frozenset(
    {"char", "user", "original", "random", "pick", "roll", "//", "comment", "hidden_key", "reverse"}
)
MAX_NESTED = 20
MAX_FILLED = 10_000
MAX_DICE = 1_000
MAX_SIDES = 1_000_000_000

# Of three braces the inner two are the macro's.
_MARK = re.compile(r"\{\{(?!\{)|\}\}|<(?P<tag>user|bot|char)>", re.IGNORECASE)
_HEAD = re.compile(r"\s*(?P<name>//|[A-Za-z_]\w*)(?P<sep>\s*::?|\s+|\Z)?", re.ASCII)
_COMMA = re.compile(r"(?<!\\),")
_DICE = re.compile(
    r"(?:(?P<dice>[0-9]{1,4})?d)?(?P<sides>[0-9]{1,10})(?P<plus>[+-][0-9]{1,9})?", re.IGNORECASE
)
_TAGS = {"user": "user", "bot": "char", "char": "char"}

Parts = list["str | _Macro"]


@dataclass
class _Macro:
    """A macro: the text between its braces, or a tag as `<user>`, and where it begins."""

    parts: Parts
    at: int
    tag: bool = False


def expand(
    text: str,
    *,
    char: str,
    user: str,
    seed: int | str,
    original: str | None = None,
    pick_seed: int | str = 0,
) -> str:
    r"""The text with its macros filled in.

    Args:
        char: the character's name (`Character.called`).
        user: the name of whom the character talks to.
        seed: decides `{{random:}}` and `{{roll:}}`; the same seed, text and place, the same value.
        original: what `{{original}}` stands for, once; empty where there is nothing.
        pick_seed: decides `{{pick:}}` with the text and the place: one value for a whole play.

    Items are parted by commas (`\\,` is a comma in an item) and trimmed, or by `::`. What stands
    behind the first 10,000 macros of a text stays as it is, so that none makes a book of itself.
    """
    if "{{" not in text and "<" not in text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return _Expansion(char, user, seed, pick_seed, original, digest).of(_parsed(text))


def macros_in(text: str) -> Iterator[tuple[str, bool]]:
    """The macros of a text, inner ones too, as they stand, and whether each will be filled in."""
    waiting = _parsed(text)
    while waiting:
        part = waiting.pop()
        if isinstance(part, _Macro):
            name, rest = _named(part)
            yield _source([part]), name in KNOWN and _makes_sense(name, rest)
            waiting += part.parts


def _parsed(text: str) -> Parts:
    """Literal texts and macros, in order; braces that are never closed are text."""
    stack: list[Parts] = [[]]
    begun: list[int] = []
    done = 0
    for match in _MARK.finditer(text):
        if match.start() > done:
            stack[-1].append(text[done : match.start()])
        done = match.end()
        mark = match.group()
        if match["tag"]:
            stack[-1].append(_Macro([mark], match.start(), tag=True))
        elif mark == "}}" and begun:
            inside = stack.pop()
            stack[-1].append(_Macro(inside, begun.pop()))
        elif mark == "{{" and len(begun) < MAX_NESTED:
            stack.append([])
            begun.append(match.start())
        else:
            stack[-1].append(mark)
    if done < len(text):
        stack[-1].append(text[done:])
    while len(stack) > 1:
        inside = stack.pop()
        stack[-1] += ["{{", *inside]
    return stack[0]


def _named(macro: _Macro) -> tuple[str, Parts]:
    """The name of a macro in lower case, empty if it has none, and the parts behind it."""
    first = macro.parts[0] if macro.parts else ""
    if not isinstance(first, str):
        return "", macro.parts
    if macro.tag:
        return _TAGS[first.strip("<>").lower()], []
    match = _HEAD.match(first)
    if match is None or (match["sep"] is None and match["name"] != "//"):
        return "", macro.parts
    rest = first[match.end() :]
    return match["name"].lower(), [rest, *macro.parts[1:]] if rest else macro.parts[1:]


def _makes_sense(name: str, rest: Parts) -> bool:
    if name in ("char", "user", "original"):
        return not _source(rest).strip()
    if name in ("random", "pick"):
        return bool(_source(rest).strip())
    if name == "roll":
        inner = any(isinstance(part, _Macro) for part in rest)
        return inner or _dice(_source(rest)) is not None
    return True


def _source(parts: Parts) -> str:
    """The parts as they stood in the text."""
    made: list[str] = []
    waiting: Parts = parts[::-1]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            made.append(part)
        elif part.tag:
            waiting += part.parts
        else:
            waiting += ["}}", *part.parts[::-1], "{{"]
    return "".join(made)


def _dice(text: str) -> tuple[int, int, int] | None:
    """How many dice, of how many sides, and what is added."""
    match = _DICE.fullmatch(text.strip())
    if not match:
        return None
    dice, sides, plus = int(match["dice"] or 1), int(match["sides"]), int(match["plus"] or 0)
    return (dice, sides, plus) if 1 <= dice <= MAX_DICE and 1 <= sides <= MAX_SIDES else None


@dataclass
class _Expansion:
    """One text being expanded."""

    char: str
    user: str
    seed: int | str
    pick_seed: int | str
    original: str | None
    digest: str
    left: int = MAX_FILLED

    def of(self, parts: Parts) -> str:
        return "".join(part if isinstance(part, str) else self._value(part) for part in parts)

    def _value(self, macro: _Macro) -> str:
        if self.left <= 0:
            return _source([macro])
        self.left -= 1
        name, rest = _named(macro)
        if name in ("//", "comment", "hidden_key"):
            return ""
        if name in KNOWN and _makes_sense(name, rest):
            if name == "char":
                return self.char
            if name == "user":
                return self.user
            if name == "original":
                value, self.original = self.original or "", None
                return value
            if name == "reverse":
                return self.of(rest)[::-1]
            if name == "random":
                return self._one_of(_items(rest), self.seed, macro.at)
            if name == "pick":
                return self._one_of(_items(rest), self.pick_seed, macro.at)
            if dice := _dice(self.of(rest)):
                return str(self._rolled(*dice, macro.at))
        return "{{" + self.of(macro.parts) + "}}"

    def _one_of(self, items: list[Parts], seed: int | str, at: int) -> str:
        return self.of(items[self._chance(seed, at) % len(items)]).strip()

    def _rolled(self, dice: int, sides: int, plus: int, at: int) -> int:
        return plus + sum(1 + throw % sides for throw in self._chances(self.seed, at, dice))

    def _chance(self, seed: int | str, at: int) -> int:
        return next(self._chances(seed, at, 1))

    def _chances(self, seed: int | str, at: int, count: int) -> Iterator[int]:
        """So many times 128 bits that depend on the seed, the text and the place."""
        source = f"{type(seed).__name__}\0{seed}\0{self.digest}\0{at}"
        made = hashlib.shake_256(source.encode("utf-8", "surrogatepass")).digest(16 * count)
        return (int.from_bytes(made[n : n + 16], "big") for n in range(0, len(made), 16))


def _items(parts: Parts) -> list[Parts]:
    """The items of a list; commas inside of what a macro becomes part nothing."""
    doubled = any(isinstance(part, str) and "::" in part for part in parts)
    items: list[Parts] = [[]]
    for part in parts:
        if isinstance(part, str):
            first, *others = part.split("::") if doubled else _COMMA.split(part)
            for n, text in enumerate((first, *others)):
                if n:
                    items.append([])
                items[-1].append(text if doubled else text.replace("\\,", ","))
        else:
            items[-1].append(part)
    return items
