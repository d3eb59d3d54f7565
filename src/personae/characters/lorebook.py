"""Which entries of a lorebook belong into a prompt now, where, and why.

Sources: Character Card V2, "character_book"; Character Card V3, "Lorebook Fields" and "Decorators".
Entries that carry SillyTavern's extension fields (its own World Info, and every card that it
exports) follow SillyTavern where it parts from the specification: it writes `use_regex: true` into
all of them though their keys are text unless written `/pattern/flags`, its `constant` and
`secondary_keys` hold nevertheless, and `selectiveLogic` says how the latter are joined.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from personae.characters.decorators import Decorated, Role, parse_decorators
from personae.characters.keys import (
    KEY_SECONDS,
    MAX_BOOK_PATTERN_CHARS,
    MAX_PATTERN_CHARS,
    MAX_PATTERNS,
    Allowance,
    Heard,
    Key,
    KeyTrouble,
    Room,
    Syntax,
    key_of,
)
from personae.characters.reading import Finding, Level
from personae.records import Lorebook, LoreEntry
from personae.records.base import Record
from personae.records.tokens import estimate_tokens

Position = Literal[
    "before_char", "after_char", "before_desc", "after_desc", "personality", "scenario",
    "before_examples", "after_examples", "before_note", "after_note", "depth",
]  # fmt: skip

SCAN_DEPTH = 4
MAX_PASSES = 10
PROBE_SECONDS = 5.0

_ROLES: tuple[Role, ...] = ("system", "user", "assistant")
# SillyTavern's numbers; 7 ("outlet") goes where a macro of that program stands, which we lack.
_PLACES: dict[float, Position] = {
    0: "before_char",
    1: "after_char",
    2: "before_note",
    3: "after_note",
    4: "depth",
    5: "before_examples",
    6: "after_examples",
}
_OUTLET = 7
_TAVERN_DEPTH = 4
_AND_ANY, _NOT_ALL, _NOT_ANY, _AND_ALL = range(4)
_TAVERN_MARKS = frozenset(
    {
        "selectiveLogic", "useProbability", "exclude_recursion", "prevent_recursion",
        "delay_until_recursion", "display_index", "match_whole_words",
    }
)  # fmt: skip
_HIDDEN = re.compile(r"\{\{hidden_key:(.*?)\}\}", re.IGNORECASE | re.DOTALL)


class Cause(Record):
    """Why an entry fired.

    Attributes:
        kind: it is `constant`; a decorator says `always`; it fired before and is `kept`; a `key`
            was found.
        key: as it stands in the book.
        message: index of the text that holds the key.
        entry: index of the entry whose content holds it (recursion).
    """

    kind: Literal["constant", "always", "kept", "key"]
    key: str = ""
    message: int | None = None
    entry: int | None = None


class Fired(Record):
    """An entry that belongs into the prompt.

    Attributes:
        index: its place in the book, from 0.
        name: for people only.
        text: what the prompt is given: no decorators, macros filled in.
        tokens: of the text.
        depth: with position `depth`, the number of newest messages that stand behind it.
        role: whose message it is, where it is one.
    """

    index: int
    name: str
    text: str
    tokens: int
    position: Position
    depth: int | None = None
    role: Role | None = None
    cause: Cause


class Cut(Record):
    """An entry that fired and found no room in the book's or in the caller's budget."""

    index: int
    name: str
    tokens: int
    limit: Literal["token_budget", "budget"]


class Activation(Record):
    """What a lorebook gives for the texts heard.

    Attributes:
        fired: in the order of insertion, lowest first; equal ones as they stand in the book.
        cut: what the budgets left no room for.
        matched: indices of all entries that matched, cut ones too, for `before` of the next turn.
        troubles: keys that could not do their work, with their entries' indices.
        tokens: of all that fired.
        stopped: whether recursion was ended at `MAX_PASSES`.
    """

    fired: tuple[Fired, ...] = ()
    cut: tuple[Cut, ...] = ()
    matched: tuple[int, ...] = ()
    troubles: tuple[tuple[int, KeyTrouble], ...] = ()
    tokens: int = 0
    stopped: bool = False

    def texts(self, *positions: Position) -> tuple[str, ...]:
        """What fired at these positions (all if none is named), in the order of insertion."""
        return tuple(f.text for f in self.fired if not positions or f.position in positions)


def is_taverns(extensions: Collection[str]) -> bool:
    """Whether an entry's extensions show that SillyTavern wrote it."""
    return not _TAVERN_MARKS.isdisjoint(extensions)


def activate(
    book: Lorebook,
    texts: Sequence[str],
    *,
    budget: int | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
    seed: int,
    turn: int,
    greeting_index: int | None = None,
    before: Collection[int] | None = None,
    expand: Callable[[str], str] = str,
) -> Activation:
    """The entries that belong into a prompt.

    The same arguments give the same activation: chance (SillyTavern's `probability`) is drawn from
    seed, turn and entry. Only a pattern that runs into the time limit may do so on one machine and
    not on another; it is among the `troubles`, and `examine` finds the usual ones beforehand.

    A key is searched in the newest `scan_depth` texts: the entry's own, else the book's, else 4.
    With `recursive_scanning` (not unless the book says so) the contents of what fired are searched
    too, at most `MAX_PASSES` times over. Then the budgets: the book's `token_budget`, and the
    caller's. What alone exceeds a budget goes first, then the lowest priority (the insertion order
    stands in where an entry has none); `@@ignore_on_max_context` goes before all others when it is
    the caller's. SillyTavern's `ignore_budget` exempts from the book's only.

    Args:
        texts: what was said or perceived, oldest first. Each is searched by itself.
        budget: tokens that the caller has room for; None for no limit.
        turn: how many messages the character itself has given so far.
        greeting_index: which greeting the conversation began with, 0 being `first_mes`; None where
            that is not known, and `@@is_greeting` is ignored.
        before: `matched` of all activations before this one; None where that is not known, and
            `@@keep_activate_after_match` and `@@dont_activate_after_match` are ignored.
        expand: fills in macros, in keys and contents.
    """
    cannot = {"is_greeting"} if greeting_index is None else set()
    if before is None:
        cannot |= {"keep_activate_after_match", "dont_activate_after_match"}
    room = Room()
    rules = [
        _Rule.of(n, entry, book, cannot, expand, room)
        for n, entry in enumerate(book.entries)
        if entry.enabled
    ]
    scan = _Scan(
        heard=[Heard.of(text) for text in texts],
        turn=turn,
        greeting=greeting_index,
        before=frozenset(before or ()),
        allowance=Allowance(),
    )
    causes, stopped = _scanned(rules, scan, bool(book.recursive_scanning), seed, turn)
    found = sorted(
        (_fired(rule, causes[rule.index], count_tokens) for rule in rules if rule.index in causes),
        key=lambda fired: (book.entries[fired.index].insertion_order, fired.index),
    )
    kept, cut = _within_budgets(
        [f for f in found if f.text], {r.index: r for r in rules}, book.token_budget, budget
    )
    return Activation(
        fired=tuple(kept),
        cut=tuple(cut),
        matched=tuple(sorted(causes)),
        troubles=tuple(
            (rule.index, trouble) for rule in rules for trouble in rule.troubles(scan.allowance)
        ),
        tokens=sum(f.tokens for f in kept),
        stopped=stopped,
    )


@dataclass
class _Scan:
    """What keys are looked for in; contents of entries join the messages as recursion goes on."""

    heard: list[Heard]
    turn: int
    greeting: int | None
    before: frozenset[int]
    allowance: Allowance

    def __post_init__(self) -> None:
        self.told: list[Heard] = []
        self.tellers: list[int] = []

    def window(self, depth: int) -> list[Heard]:
        return [*self.heard[max(0, len(self.heard) - depth) :], *self.told]

    def where(self, n: int, depth: int) -> dict[str, int]:
        """The place in the window as a message or an entry."""
        messages = min(depth, len(self.heard))
        if n < messages:
            return {"message": len(self.heard) - messages + n}
        return {"entry": self.tellers[n - messages]}


@dataclass(frozen=True)
class _Rule:
    """An entry as it is carried out: fields, extensions and decorators read together."""

    index: int
    entry: LoreEntry
    asked: Decorated
    text: str
    tavern: bool
    syntax: Syntax
    scan_depth: int
    keys: tuple[Key, ...]
    secondary: tuple[Key, ...]
    logic: int
    additional: tuple[Key, ...]
    exclude: tuple[Key, ...]
    probability: float
    delay: float
    excluded_from_recursion: bool
    tells_no_other: bool
    ignores_budget: bool
    position: Position
    depth: int | None
    role: Role | None

    @classmethod
    def of(
        cls,
        index: int,
        entry: LoreEntry,
        book: Lorebook,
        cannot: Collection[str],
        expand: Callable[[str], str],
        room: Room,
    ) -> _Rule:
        asked = parse_decorators(entry.content, cannot=cannot)
        extensions = entry.extensions
        tavern = is_taverns(extensions)
        syntax: Syntax = "slashed" if tavern else "pattern" if entry.use_regex else "text"
        sensitive = entry.case_sensitive
        if sensitive is None:
            sensitive = extensions.get("case_sensitive") is True

        def ready(keys: Iterable[str]) -> tuple[Key, ...]:
            whole = tavern and extensions.get("match_whole_words") is True
            made = (
                key_of(
                    expand(key),
                    syntax=syntax,
                    room=room,
                    case_sensitive=sensitive,
                    whole_words=whole,
                )
                for key in keys
            )
            return tuple(key for key in made if key.source)

        depth = asked.scan_depth
        if depth is None and tavern:
            depth = _whole(extensions.get("scan_depth"))
        if depth is None:
            depth = SCAN_DEPTH if book.scan_depth is None else book.scan_depth
        logic = _whole(extensions.get("selectiveLogic")) if tavern else None
        chance = _real(extensions.get("probability")) if tavern else None
        rolls = chance is not None and extensions.get("useProbability") is not False
        delay = extensions.get("delay_until_recursion") if tavern else None
        position, at, role = _placed(entry, asked, tavern)
        plain = syntax != "pattern"  # V3: patterns leave secondary and excluding keys aside
        return cls(
            index=index,
            entry=entry,
            asked=asked,
            text=expand(asked.text),
            tavern=tavern,
            syntax=syntax,
            scan_depth=depth,
            keys=ready(entry.keys),
            secondary=ready(entry.secondary_keys or ()) if plain and entry.selective else (),
            logic=logic if logic in (_NOT_ALL, _NOT_ANY, _AND_ALL) else _AND_ANY,
            additional=ready(asked.additional_keys),
            exclude=ready(asked.exclude_keys) if plain else (),
            probability=chance if rolls and chance is not None else 100,
            delay=1 if delay is True else max(0, _real(delay) or 0),
            excluded_from_recursion=tavern and extensions.get("exclude_recursion") is True,
            tells_no_other=tavern and extensions.get("prevent_recursion") is True,
            ignores_budget=tavern and extensions.get("ignore_budget") is True,
            position=position,
            depth=at,
            role=role,
        )

    @property
    def hidden_keys(self) -> Iterator[str]:
        """What other entries may be fired by though no prompt shows it (V3, `hidden_key`)."""
        return (match[1].strip() for match in _HIDDEN.finditer(self.asked.text))

    @property
    def priority(self) -> tuple[float, float, int]:
        """What is lower goes first when there is no room."""
        order = self.entry.insertion_order
        own = self.entry.priority
        return (order if own is None else own, order, -self.index)

    def troubles(self, allowance: Allowance) -> Iterator[KeyTrouble]:
        for key in (*self.keys, *self.secondary, *self.additional, *self.exclude):
            trouble = key.trouble or allowance.trouble(key)
            if trouble is not None:
                yield trouble

    def cause(self, scan: _Scan) -> Cause | None:
        """Why the entry fires, None if it does not."""
        asked = self.asked
        if asked.activate:
            return Cause(kind="always")
        if asked.dont_activate:
            return None
        if self.index in scan.before:
            if asked.dont_activate_after_match:
                return None
            if asked.keep_activate_after_match:
                return Cause(kind="kept")
        if asked.activate_only_after is not None and scan.turn < asked.activate_only_after:
            return None
        if asked.activate_only_every is not None and scan.turn % asked.activate_only_every:
            return None
        if asked.is_greeting is not None and asked.is_greeting != scan.greeting:
            return None
        window = scan.window(self.scan_depth)

        def holds(key: Key) -> bool:
            return key.within(window, scan.allowance) is not None

        if any(holds(key) for key in self.exclude):
            return None
        if self.additional and not any(holds(key) for key in self.additional):
            return None
        if self.entry.constant and self.syntax != "pattern":
            return Cause(kind="constant")
        if self.syntax == "pattern" and any(k.trouble for k in (*self.keys, *self.additional)):
            return None  # V3, `use_regex` and `@@additional_keys`: an invalid pattern is no match
        for key in self.keys:
            at = key.within(window, scan.allowance)
            if at is not None:
                if not self._joined(holds):
                    return None
                return Cause(kind="key", key=key.source, **scan.where(at, self.scan_depth))
        return None

    def _joined(self, holds: Callable[[Key], bool]) -> bool:
        """Whether the secondary keys allow it (`selectiveLogic`; V2 and V3 know AND_ANY only)."""
        if not self.secondary:
            return True
        match self.logic:
            case 1:
                return not all(holds(key) for key in self.secondary)
            case 2:
                return not any(holds(key) for key in self.secondary)
            case 3:
                return all(holds(key) for key in self.secondary)
            case _:
                return any(holds(key) for key in self.secondary)


def _placed(
    entry: LoreEntry, asked: Decorated, tavern: bool
) -> tuple[Position, int | None, Role | None]:
    extensions = entry.extensions if tavern else {}
    role = asked.role
    number = _whole(extensions.get("role"))
    if role is None and number is not None and number < len(_ROLES):
        role = _ROLES[number]
    if asked.position is not None:
        return asked.position, None, role
    if asked.depth is not None:
        return "depth", max(0, asked.depth), role
    place = _PLACES.get(_real(extensions.get("position"), -1))
    if place is None:
        place = entry.position or "after_char"
    if place != "depth":
        return place, None, asked.role
    depth = _whole(extensions.get("depth"))
    return place, _TAVERN_DEPTH if depth is None else depth, role


def _scanned(
    rules: Sequence[_Rule], scan: _Scan, recursive: bool, seed: int, turn: int
) -> tuple[dict[int, Cause], bool]:
    """The causes of all that fires, by index, and whether recursion was cut short."""
    causes: dict[int, Cause] = {}
    unlucky: set[int] = set()
    levels = sorted({rule.delay for rule in rules if rule.delay})
    level = 0.0
    for number in range(MAX_PASSES):
        new = []
        for rule in rules:
            if rule.index in causes or rule.index in unlucky or rule.delay > level:
                continue
            if number and recursive and rule.excluded_from_recursion:
                continue
            cause = rule.cause(scan)
            if cause is None:
                continue
            forced = cause.kind in ("always", "kept")
            if forced or _roll(seed, turn, rule.index) < rule.probability:
                new.append((rule, cause))
            else:
                unlucky.add(rule.index)
        causes |= {rule.index: cause for rule, cause in new}
        telling = [rule for rule, _ in new if recursive and not rule.tells_no_other]
        for rule in telling:
            scan.told.append(Heard.of("\n".join([rule.text, *rule.hidden_keys])))
            scan.tellers.append(rule.index)
        if levels and (level == 0 or not telling):
            level = levels.pop(0)
        elif not telling:
            return causes, False
    return causes, True


def _roll(seed: int, turn: int, index: int) -> float:
    """A number from 0 to 100, 100 excluded."""
    digest = hashlib.sha256(f"{seed}/{turn}/{index}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64 * 100


def _fired(rule: _Rule, cause: Cause, count_tokens: Callable[[str], int]) -> Fired:
    text = rule.text.strip()
    return Fired(
        index=rule.index,
        name=_name(rule.entry),
        text=text,
        tokens=count_tokens(text) if text else 0,
        position=rule.position,
        depth=rule.depth,
        role=rule.role,
        cause=cause,
    )


def _name(entry: LoreEntry) -> str:
    return entry.name or entry.comment or (entry.keys[0] if entry.keys else "")


def _within_budgets(
    fired: list[Fired], rules: dict[int, _Rule], own: int | None, callers: int | None
) -> tuple[list[Fired], list[Cut]]:
    cut: dict[int, Cut] = {}

    def trim(
        limit: Literal["token_budget", "budget"],
        room: int,
        bound: list[Fired],
        rank: Callable[[Fired], tuple[float, ...]],
    ) -> None:
        """Take out what is too large by itself, then the lowest in rank, until the rest fits."""
        left = [f for f in bound if f.index not in cut]
        too_large = [f for f in left if f.tokens > room]
        rest = sorted((f for f in left if f.tokens <= room), key=rank)
        total = sum(f.tokens for f in rest)
        for f in (*too_large, *rest):
            if f.tokens <= room:
                if total <= room:
                    break
                total -= f.tokens
            cut[f.index] = Cut(index=f.index, name=f.name, tokens=f.tokens, limit=limit)

    def priority(f: Fired) -> tuple[float, ...]:
        return rules[f.index].priority

    if own is not None:
        trim("token_budget", own, [f for f in fired if not rules[f.index].ignores_budget], priority)
    if callers is not None:
        trim(
            "budget",
            callers,
            fired,
            lambda f: (not rules[f.index].asked.ignore_on_max_context, *priority(f)),
        )
    return [f for f in fired if f.index not in cut], [cut[f.index] for f in fired if f.index in cut]


def _real(value: Any, otherwise: float | None = None) -> Any:
    """The value if it is a finite number; a stranger's extension may hold anything."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return otherwise
    try:
        return value if math.isfinite(value) else otherwise
    except OverflowError:  # a whole number beyond a double
        return otherwise


def _whole(value: Any) -> int | None:
    """The value if it is a whole number from 0."""
    number = _real(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


# What authors should know ------------------------------------------------------------------------

# SillyTavern's fields that are kept and have no effect, with the values that mean "not used".
_WITHOUT_EFFECT = {
    "sticky": "stays for some messages",
    "cooldown": "rests for some messages",
    "delay": "waits for some messages",
    "group": "only one of a group",
    "vectorized": "found by similarity",
    "match_persona_description": "searches the user's persona",
    "match_character_description": "searches the character's description",
    "match_character_personality": "searches the character's personality",
    "match_character_depth_prompt": "searches the character's note",
    "match_scenario": "searches the scenario",
    "match_creator_notes": "searches the creator's notes",
    "triggers": "only for some kinds of generation",
}
_WHY = {
    "unknown": "no such decorator is known; it has no effect",
    "unsupported": "Personae does not support it; it has no effect",
    "value": "its value does not fit; it has no effect",
    "repeated": "stands twice; the first counts",
    "overruled": "another decorator overrules it",
    "orphan": "a fallback that follows no decorator; it has no effect",
}
# A pattern that repeats a repetition shows its temper on a long run of what it repeats.
_PROBES = tuple(part * 3000 + "!" for part in ("a", "x", "1", " ", "中", "ab"))


def examine(
    book: Lorebook, place: str = "character_book", *, seconds: float = PROBE_SECONDS
) -> list[Finding]:
    """What the author of a lorebook should know, entry by entry.

    Args:
        place: of the book, put in front of each finding's place.
        seconds: for how long patterns are tried on texts that catastrophic ones get lost in.
    """
    found: list[Finding] = []
    allowance, room = Allowance(left=seconds), Room()
    for n, entry in enumerate(book.entries):
        rule = _Rule.of(n, entry, book, (), str, room)
        found += _examined(rule, f"{place}.entries[{n}]", allowance)
    if allowance.left <= 0:
        found.append(
            Finding(
                level="hint",
                place=f"{place}.entries",
                message=f"the patterns took more than {seconds:g} s; the rest was not tried",
            )
        )
    return found


def _examined(rule: _Rule, where: str, allowance: Allowance) -> Iterator[Finding]:
    entry, asked = rule.entry, rule.asked

    def say(field: str, message: str, level: Level = "hint") -> Finding:
        return Finding(level=level, place=f"{where}.{field}", message=message)

    for ignored in asked.ignored:
        level: Level = "error" if ignored.why in ("value", "orphan", "repeated") else "hint"
        yield say("content", f"@@{ignored.name}: {_WHY[ignored.why]}", level)
    for probe in (Heard.of(text) for text in _PROBES):  # each by itself: a match ends the search
        for key in (*rule.keys, *rule.secondary, *rule.additional, *rule.exclude):
            if key.pattern is not None and allowance.left > 0:
                key.within([probe], allowance)
    for trouble in {t.key: t for t in rule.troubles(allowance)}.values():
        yield say("keys", _told(trouble), "hint" if trouble.what == "timeout" else "error")
    fires = asked.activate or (entry.constant and rule.syntax != "pattern")
    if entry.enabled and not rule.keys and not fires:
        yield say("keys", "no key and not constant: the entry never fires", "error")
    if not rule.text.strip():
        yield say("content", "nothing to tell")
    if rule.syntax == "pattern":
        for field, there in (
            ("constant", entry.constant),
            ("secondary_keys", entry.selective and entry.secondary_keys),
            ("content", asked.exclude_keys),
        ):
            if there:
                what = "@@exclude_keys has" if field == "content" else "has"
                yield say(field, f"{what} no effect beside use_regex (Character Card V3)")
    if rule.tavern:
        for name, meaning in _WITHOUT_EFFECT.items():
            if entry.extensions.get(name):
                yield say(
                    f"extensions.{name}", f"SillyTavern's ({meaning}) is kept and has no effect"
                )
        if entry.extensions.get("position") == _OUTLET:
            yield say("extensions.position", f"an outlet of SillyTavern; told as {rule.position}")


def _told(trouble: KeyTrouble) -> str:
    key = trouble.key if len(trouble.key) <= 60 else f"{trouble.key[:60]}…"
    match trouble.what:
        case "invalid":
            return f"{key!r} is no valid pattern ({trouble.detail}); it never matches"
        case "too_long":
            return f"a pattern of more than {MAX_PATTERN_CHARS:,} characters; it is not looked for"
        case "too_many":
            return (
                f"beyond the {MAX_PATTERNS:,} patterns of a book, which have "
                f"{MAX_BOOK_PATTERN_CHARS:,} characters together; it is not looked for"
            )
        case _:
            return f"{key!r} can take longer than the {KEY_SECONDS:g} s a pattern is allowed"
