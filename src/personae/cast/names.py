"""Names in instructions: whose they are, whether they are meant, and which asks for a stranger.

An instruction wants one character and may mention others: "Be the squire of Don Quixote" does not
want Don Quixote, nor does "Mycroft Holmes" name Sherlock. English and Chinese; a Chinese name is
found without word boundaries.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise

from personae.records import Character, Language

MAX_NAME_TOKENS = 32
"""What is longer is no name that anybody types."""
MAX_CHARS = 4_000
"""Of a longer instruction the beginning counts."""
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{HAN}]|[^\W_{HAN}]+(?:-[^\W_{HAN}]+)*")
_CLAUSE_END = re.compile(r"[,.!?;:，。！？；：、…\n]")
_SENTENCE_END = re.compile(r"[.!?…\n]\s*$")
_FILLERS = 4
"""Unknown words that may stand before the one who is wanted ("step into", "get hold of")."""
_DOT = "·・‧•"
_QUOTES = "“”\"'‘’《》「」『』〈〉"


@cache
def words(language: Language) -> Mapping[str, frozenset[str]]:
    """The word lists of a language, by kind (`data/router/words.*.toml`)."""
    text = files("personae.data").joinpath("router", f"words.{language}.toml").read_text("utf-8")
    return {kind: frozenset(value.split()) for kind, value in tomllib.loads(text).items()}


@cache
def longest_first(language: Language, kind: str) -> str:
    """A word list as the alternatives of a pattern."""
    return "|".join(map(re.escape, sorted(words(language)[kind], key=len, reverse=True)))


@dataclass(frozen=True)
class Token:
    """A word, or one Han character: in lower case, as written, and where it stands."""

    low: str
    text: str
    start: int
    end: int

    @property
    def capital(self) -> bool:
        """Whether it is written as a name is."""
        return self.text[0].isupper()


def clean(text: str) -> str:
    """Width made equal, half surrogates and what lies beyond `MAX_CHARS` left out."""
    whole = text[:MAX_CHARS].encode("utf-8", "ignore").decode("utf-8")
    return unicodedata.normalize("NFKC", whole)[:MAX_CHARS].replace("’", "'")


def tokens(text: str) -> list[Token]:
    """The words of a text; of Chinese, the characters."""
    return [Token(m[0].casefold(), m[0], m.start(), m.end()) for m in _TOKEN.finditer(text)]


@dataclass(frozen=True)
class Mention:
    """A name of the cast in an instruction.

    Attributes:
        roles: whose it is; several may bear one name.
        start, end: which tokens it spans.
        addressed: it is the one who is wanted or spoken to, not only mentioned.
        full: a whole name or alias, not a part of one.
    """

    roles: tuple[str, ...]
    start: int
    end: int
    addressed: bool
    full: bool


@dataclass(frozen=True)
class Target:
    """Whom an instruction wants, as it says it.

    Attributes:
        text: the phrase.
        head: the words that say what he or she is ("detective"); () where they say nothing.
        modifiers: all words of that kind ("Belgian", "detective").
        bare: it stands like a name (no article; in Chinese nothing that describes).
        proper: it is written or built like a name.
        pronoun: it is no more than "her": who that is stands elsewhere.
        switch: the words before it ask for another role in the middle of a dialogue.
        plays: they ask for a role and can mean nothing else.
        starts: tokens at which a phrase of this kind begins, this one or one of another sentence.
        start, end: tokens that the phrase spans, without what follows its head.
    """

    text: str = ""
    head: tuple[str, ...] = ()
    modifiers: tuple[str, ...] = ()
    bare: bool = False
    proper: bool = False
    pronoun: bool = False
    switch: bool = False
    plays: bool = False
    starts: frozenset[int] = frozenset()
    start: int = -1
    end: int = -1


class NameBook:
    """The names of a cast.

    Args:
        names: of each role its names and aliases, all as good as each other.
        others: names of people who are not of the cast (Watson), as the cards have them.
    """

    def __init__(self, names: Mapping[str, Sequence[str]], others: Iterable[str] = ()) -> None:
        self._roles: dict[tuple[str, ...], set[str]] = defaultdict(set)
        full: set[tuple[str, ...]] = set()
        for role, spelt in names.items():
            for name in spelt:
                key = _key(name)
                if 0 < len(key) <= MAX_NAME_TOKENS:
                    self._roles[key].add(role)
                    full.add(key)
        parts: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for role, spelt in names.items():
            for name in spelt:
                for part in _parts(name):
                    if part not in full:
                        parts[part].add(role)
        self._full = frozenset(full)
        self._roles |= parts
        self._longest = max(map(len, self._roles), default=0)
        keys = {_bare(_key(name)) for name in others}
        self._others = frozenset(low for key in keys for low in key)
        self._whole_others = frozenset(keys - full - {()})

    def mentions(self, text: str, found: Sequence[Token], target: Target) -> list[Mention]:
        """The names of the cast in a text, in order.

        Not those that belong to a stranger's longer name, and not those that only say whose friend,
        horse or brother is wanted.
        """
        shouted = text.isupper() or text.islower()
        out: list[Mention] = []
        at = 0
        while at < len(found):
            size = next(
                (
                    n
                    for n in range(min(self._longest, len(found) - at), 0, -1)
                    if tuple(t.low for t in found[at : at + n]) in self._roles
                ),
                0,
            )
            if not size:
                at += 1
                continue
            key = tuple(t.low for t in found[at : at + size])
            end, whole = at + size, key in self._full
            certain = whole and (size > 1 or _is_han(key[0]))
            if not self._of_a_stranger(
                text, found, at, end, certain=certain, shouted=shouted
            ) and not _owner(text, found, at, end):
                roles = self._roles[key]
                out.append(
                    Mention(
                        tuple(sorted(roles)),
                        at,
                        end,
                        self._addressed(text, found, at, end, target),
                        whole,
                    )
                )
            at = end
        return out

    def nearest(self, text: str) -> tuple[str, bool] | None:
        """The role whose name a phrase misspells, and whether hardly anything else can be meant.

        One letter in a word of five and more, two from nine on (Damerau 1964). Of Chinese names
        of three and more characters one may be another; that may be a stranger's name as well
        (诸葛瑾), so it is not certain.
        """
        wanted = [t.low for t in tokens(text)]
        best: tuple[int, str, bool] | None = None
        for key in self._full:
            roles = self._roles[key]
            if len(roles) != 1 or not wanted:
                continue
            (role,) = roles
            if _is_han(key[0]):
                joined = wanted[: len(key)]
                off = sum(a != b for a, b in zip(joined, key, strict=False))
                if len(joined) == len(key) >= 3 and off == 1:
                    best = min(best or (9, "", False), (1, role, len(key) >= 4))
                continue
            spelt = wanted
            if len(spelt) != len(key):
                continue
            if any(abs(len(a) - len(b)) > _allowed(b) for a, b in zip(spelt, key, strict=True)):
                continue
            offs = [_distance(a, b) for a, b in zip(spelt, key, strict=True)]
            if all(off <= _allowed(part) for off, part in zip(offs, key, strict=True)):
                best = min(best or (9, "", False), (sum(offs), role, True))
        return best and (best[1], best[2])

    def is_other(self, spelt: Sequence[Token]) -> bool:
        """Whether words are the whole name of somebody, or something, else in a card."""
        return _bare(tuple(t.low for t in spelt)) in self._whole_others

    def _of_a_stranger(
        self, text: str, found: Sequence[Token], at: int, end: int, *, certain: bool, shouted: bool
    ) -> bool:
        """Whether a name is only part of a longer one (Mycroft Holmes, Alice Cooper)."""
        before = text[found[at - 1].end : found[at].start] if at else ""
        after = text[found[end - 1].end : found[end].start] if end < len(found) else ""
        if (at and before in _DOT and before) or (end < len(found) and after in _DOT and after):
            return True
        if certain or _is_han(found[at].low):
            return False
        known = words("en")
        skip = known["lead"] | known["question"] | known["title"] | known["tail"]
        if at and before.strip(_QUOTES + " ") == "" and before:
            one = found[at - 1]
            opens = at == 1 or bool(_SENTENCE_END.search(text[: one.start]))
            full = tuple(t.low for t in found[at:end]) in self._full and opens  # "Simulate Alice"
            if one.low not in skip and (
                one.low in self._others or (one.capital and not shouted and not full)
            ):
                return True
        if end < len(found) and after == " ":
            one = found[end]
            return one.low not in skip and one.capital and not shouted
        return False

    def _addressed(
        self, text: str, found: Sequence[Token], at: int, end: int, target: Target
    ) -> bool:
        if any(at <= start < end for start in (target.start, *target.starts)):
            return True
        first = at
        while first and found[first - 1].low in words("en")["title"]:
            first -= 1
        if first in target.starts or first == target.start:
            return True
        before = text[: found[first].start].rstrip(" " + _QUOTES)
        han = _is_han(found[at].low)
        if han:
            before = re.sub(rf"(?:{longest_first('zh', 'title')})$", "", before)
            rest = text[found[end - 1].end :]
            title = re.match(longest_first("zh", "title"), rest)
            behind = rest[title.end() :] if title else rest
        else:
            behind = text[found[end - 1].end :]
        behind = behind.lstrip(" " + _QUOTES)
        opens = (
            not before.strip()
            or bool(_CLAUSE_END.match(before[-1]))
            or (
                not han
                and before.split()[-1].casefold() in {"and", "o", "oh", "dear", "thank", "hello"}
            )
        )
        closes = not behind or bool(_CLAUSE_END.match(behind[0]))
        return opens and closes and bool(before or behind)


def _is_han(low: str) -> bool:
    return bool(re.match(f"[{HAN}]", low))


def _key(name: str) -> tuple[str, ...]:
    return tuple(t.low for t in tokens(clean(name)))


def _bare(key: tuple[str, ...]) -> tuple[str, ...]:
    return key[1:] if key[:1] == ("the",) else key


def _parts(name: str) -> Iterable[tuple[str, ...]]:
    """The parts of a name that people use.

    The words of a Latin name; of a Han one of three characters the given name, or what stands
    between dots.
    """
    plain = clean(name)
    key = _key(plain)
    for dot in _DOT:
        plain = plain.replace(dot, " ")
    pieces = plain.split()
    if key and _is_han(key[0]):
        if len(pieces) > 1:
            yield from (_key(piece) for piece in pieces if len(_key(piece)) >= 3)
        elif len(key) == 3 and key[0] in words("zh")["surname"]:
            yield key[1:]
        return
    if len(pieces) < 2:
        return
    known = words("en")
    skip = known["title"] | known["lead"] | known["tail"] | known["vague"]
    for piece in pieces:
        if piece[0].isupper() and len(piece) >= 3 and piece.casefold() not in skip:
            yield _key(piece)


def _owner(text: str, found: Sequence[Token], at: int, end: int) -> bool:
    """Whether a name only says whose relation is wanted: "Alice's cat", "the squire of Quixote"."""
    if _is_han(found[at].low):
        rest = text[found[end - 1].end :]
        found_one = re.match(
            rf"((?:的|那位|那个|[大二三小])*)({longest_first('zh', 'relation')})", rest
        )  # 黛玉妹妹 is how one calls her, 黛玉的妹妹 is another
        return bool(found_one and (found_one[1] or found_one[2] not in words("zh")["title"]))
    relation = words("en")["relation"]
    rest = text[found[end - 1].end :]
    if rest.startswith(("'s ", "' ")):
        return any(t.low in relation for t in found[end + 1 : end + 4])
    if at >= 2 and found[at - 1].low in {"of", "to"}:
        return found[at - 2].low in relation
    return False


def _allowed(word: str) -> int:
    return 0 if len(word) < 5 else 1 if len(word) < 9 else 2


def _distance(a: str, b: str) -> int:
    """Edits between two words, a swap of neighbours counting one (Damerau 1964)."""
    if abs(len(a) - len(b)) > 2:
        return 9
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


# Whom an instruction wants ------------------------------------------------------------------------


def target_of(text: str, found: Sequence[Token], language: Language) -> Target:
    """Whom an instruction wants, as it says it; an empty target where it does not say."""
    return _english(text, found) if language == "en" else _chinese(text, found)


def described_in(text: str, found: Sequence[Token], language: Language) -> Target:
    """Whom a text speaks of first, wanted or not: for an instruction in words that no list has."""
    return _english(text, found, loose=True) if language == "en" else _loose_chinese(text, found)


def _english(text: str, found: Sequence[Token], *, loose: bool = False) -> Target:
    known = words("en")
    wanted = [
        one
        for begin, end in _clauses(text, found)
        for one in (_english_clause(text, found[begin:end], begin, known, loose=loose),)
        if one.start >= 0
    ]
    if not wanted and loose:
        return Target()
    if not wanted:
        return _called(text, found)
    first = next((one for one in wanted if one.switch), None) or next(
        (one for one in wanted if one.proper), wanted[0]
    )
    return replace(first, starts=frozenset(one.start for one in wanted))


def _called(text: str, found: Sequence[Token]) -> Target:
    """Somebody who is addressed by a name at the beginning: "Mycroft Holmes, answer me"."""
    known = words("en")
    end = 0
    while end < len(found) and found[end].capital:
        end += 1
        if end == len(found) or text[found[end - 1].end : found[end].start].strip(_QUOTES + " ."):
            break
    after = text[found[end - 1].end : found[end].start] if 0 < end < len(found) else ""
    if not _CLAUSE_END.match(after) or found[0].low in known["question"] | known["lead"]:
        return Target()
    return Target(
        text=text[found[0].start : found[end - 1].end],
        head=(found[end - 1].low,),
        modifiers=tuple(t.low for t in found[:end]),
        bare=True,
        proper=True,
        start=0,
        end=end,
    )


def _head(content: Sequence[Token], vague: frozenset[str]) -> tuple[str, ...]:
    """The last word of a phrase; with the one before it where it is a participle or "errant"."""
    if not content or content[-1].low in vague:
        return ()
    last = content[-1].low
    if len(content) > 1 and (last.endswith(("ed", "ing")) or last == "errant"):
        return (content[-2].low, last)
    return (last,)


def _clauses(text: str, found: Sequence[Token]) -> list[tuple[int, int]]:
    """Sentences as spans of tokens; a full stop after an initial or a title ends none."""
    ends = [
        n + 1
        for n, (a, b) in enumerate(pairwise(found))
        if re.search(r"[!?…\n。！？]", text[a.end : b.start])
        or ("." in text[a.end : b.start] and len(a.low) > 1 and a.low not in words("en")["title"])
    ]
    edges = [0, *ends, len(found)]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _english_clause(
    text: str,
    part: Sequence[Token],
    offset: int,
    known: Mapping[str, frozenset[str]],
    *,
    loose: bool = False,
) -> Target:
    """Whom a sentence wants.

    The first thing in it that is given an article or a capital letter, or that follows a verb of
    playing; not "the role of", and not what a question is about.
    """
    asks = "?" in text[part[-1].end : part[-1].end + 2] and part[0].low not in known["request"]
    n = skipped = 0
    cue = switch = determined = direct = False
    while n < len(part):
        one = part[n]
        if one.low in known["lead"]:
            cue |= one.low in known["cue"]
            switch |= one.low in known["switch"]
            determined, direct = one.low in known["determiner"], one.low in known["direct"]
            n += 1
            if n < len(part) and "'" in text[one.end : part[n].start]:
                direct = part[n].low == "re"  # you're
                cue |= direct
                n += part[n].low in {"d", "ll", "re", "m", "s", "ve"}
            continue
        linked = n + 1 < len(part) and part[n + 1].low in known["link"]
        if one.low in known["vessel"] and linked:
            n, determined, direct, cue = n + 2, False, False, True
            continue
        if one.low in known["vessel"] and determined and n + 1 < len(part):  # "the way X would"
            n, determined, direct, cue = n + 1, False, True, True
            continue
        if loose and one.low in known["question"] | known["tail"]:
            determined = direct = False
            n += 1
            continue
        named = one.capital and (n or (len(part) > 1 and part[1].capital))
        if determined or direct or named or one.low in known["question"]:
            break
        if one.low in known["tail"] and one.low not in known["link"]:
            return Target()
        skipped += 1
        if not loose and (skipped > _FILLERS or asks or one.low in known["topic"]):
            return Target()
        determined = direct = False
        n += 1
    if n == len(part) or part[n].low in known["question"] | known["tail"]:
        return Target()
    if not loose and not cue and (asks or not skipped):
        return Target()
    phrase: list[Token] = []
    owned = False
    for one, after in zip(part[n:], [*part[n + 1 :], None], strict=True):
        phrase.append(one)
        gap = text[one.end : after.start] if after else ""
        if gap.startswith("'") and after and after.low == "s":
            owned = True
        if after is None or _CLAUSE_END.search(gap.replace(". ", " " if len(one.low) < 4 else ".")):
            if after and "," in gap and determined and len(phrase) == 1:
                continue  # "the cold, brilliant detective"
            break
    core: list[Token] = []
    for one in phrase:
        if (
            one.low in known["tail"]
            and core
            and not (one.low == "of" and one is not phrase[-1] and core[-1].capital)
        ):
            break
        core.append(one)
    content = [t for t in core if t.low not in known["determiner"]]
    proper = bool(content) and content[-1].capital and not owned
    heads = tuple(t.low for t in content if t.low not in known["vague"])
    return Target(
        text=text[phrase[0].start : phrase[-1].end],
        head=_head(content, known["vague"]),
        modifiers=heads,
        bare=not determined and not owned,
        proper=proper,
        pronoun=all(t.low in known["pronoun"] for t in phrase),
        switch=switch,
        start=offset + n,
        end=offset + n + len(core),
    )


def _chinese(text: str, found: Sequence[Token]) -> Target:
    cues, switches = longest_first("zh", "cue"), words("zh")["switch"]
    for match in re.finditer(
        rf"(?:^|(?<=[，。！？；：、,.!?;:\s])|现在|来)(?:那|就|再|能|可以|麻烦)*"
        rf"((?:{cues}|[{HAN}]{{1,2}}[为成])+)",  # a verb that the list does not know
        text,
    ):
        here = _chinese_phrase(text, found, match.end())
        if here.text:
            return replace(
                here,
                plays=bool(re.search(longest_first("zh", "play"), match[1])),
                switch=any(match[1].endswith(one) or match[1].startswith(one) for one in switches),
            )
    called = re.match(rf"([{HAN}·]{{2,12}}?)(?:{longest_first('zh', 'title')})?[，、！]", text)
    if called and (_surnamed(called[1]) or "·" in called[1]):
        size = len(tokens(called[1]))
        return Target(text=called[1], bare=True, proper=True, start=0, end=size)
    return Target()


def _loose_chinese(text: str, found: Sequence[Token]) -> Target:
    """The first clause behind its first verb of being, letting, asking and the like."""
    lead = re.match(
        r"[^，。！？；：、,.!?;:]{0,6}?[是为成作演扮学像叫让请由当选换找听问拟入：]+", text
    )
    return _chinese_phrase(text, found, lead.end() if lead else 0)


def _chinese_phrase(text: str, found: Sequence[Token], begin: int) -> Target:
    """What stands from a place on to where somebody's description ends."""
    rest = re.sub(rf"^(?:{longest_first('zh', 'measure')})*", "", text[begin:])
    start = len(text) - len(rest)
    ends = re.compile(
        rf"{longest_first('zh', 'manner')}|{longest_first('zh', 'stop')}|来(?=[。！？吗吧，]|$)"
        r"|[，。！？；：,.!?;:]"
    )
    stop = ends.search(rest)
    # What stands in a description ends nothing: the phrase runs to what follows its last 的.
    of = _last_of(rest)
    if of >= 0 and (stop is None or stop.start() < of):
        stop = ends.search(rest, of + 1)
    phrase = (rest[: stop.start()] if stop else rest).strip(_QUOTES + " ")
    if not phrase:
        return Target()
    described = "的" in phrase
    head = re.sub(rf"^(?:{longest_first('zh', 'measure')})+", "", phrase.split("的")[-1])
    token = next((i for i, t in enumerate(found) if t.start >= start), -1)
    return Target(
        text=phrase,
        head=() if not head or head in words("zh")["vague"] else (head[-2:],),
        modifiers=_bigrams(head) if head else (),
        bare=not described and len(phrase) <= 6,
        proper=_surnamed(phrase) or any(dot in phrase for dot in _DOT),
        pronoun=phrase in words("zh")["pronoun"],
        start=token,
        end=token + len(tokens(phrase)),
    )


def _last_of(rest: str) -> int:
    """Where the last 的 of the first sentence stands that belongs to a description, or -1."""
    sentence = re.split(r"[。！？!?\n]", rest, maxsplit=1)[0]
    at = sentence.rfind("的")
    while at >= 0 and re.match(
        r"的(?:身份|口吻|语气|口气|声音|角度|风格|样子|方式)", sentence[at:]
    ):
        at = sentence.rfind("的", 0, at)
    return at


def _surnamed(phrase: str) -> bool:
    surnames = words("zh")["surname"]
    return (len(phrase) in (2, 3) and phrase[0] in surnames) or (
        len(phrase) in (3, 4) and phrase[:2] in surnames
    )


def _bigrams(text: str) -> tuple[str, ...]:
    return tuple(text[i : i + 2] for i in range(len(text) - 1)) or (text,)


# Names that a card gives --------------------------------------------------------------------------

_QUOTED = r"[“\"「『]([^”\"」』]{1,12})[”\"」』]"
_BY_NAME = re.compile(
    rf"(?:自号|别号|道号|绰号|外号|诨名叫?|混名叫?|人称|世称|尊为|封为?|(?<=[，。；])号|(?<=[，。；])字)"
    rf"(?:{_QUOTED}|([{HAN}]{{2,5}}?)(?=[（(，,。；;、\n]|$))"
    r"|(?:named|calls?|called|styles?|signs?) (?:himself|herself|itself|themselves) "
    r"((?:[A-Z][\w'-]+)(?: (?:(?:of|the|de|la) )*[A-Z][\w'-]+)*)"
    r"|(?:know|knows|known|named|calls|call|called) (?:him|her|them)? ?as "
    r"((?:[A-Z][\w'-]+)(?: (?:(?:of|the|de|la) )*[A-Z][\w'-]+)*)"
)


@cache
def _spellings() -> Mapping[str, list[str]]:
    text = files("personae.data").joinpath("router", "names.toml").read_text("utf-8")
    found: dict[str, list[str]] = tomllib.loads(text)["spelling"]
    return found


def names_of(character: Character, aliases: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of a character.

    Those of the card, given ones, those in the other language where known, and what its description
    says that it is called (字孔明, "named himself Don Quixote").
    """
    told = [
        next(group for group in match.groups() if group)
        for match in _BY_NAME.finditer(character.description)
    ]
    known = [
        name for key in (character.name, character.called) for name in _spellings().get(key, ())
    ]
    every = (character.name, character.called, *aliases, *known, *told)
    usable = (name.strip() for name in every if 0 < len(_key(name)) <= MAX_NAME_TOKENS)
    return tuple(dict.fromkeys(usable))


def others_in(character: Character) -> tuple[str, ...]:
    """Names that the card's lorebook gives to people and things that are not the character."""
    book = character.character_book
    if book is None:
        return ()
    own = {low for name in names_of(character) for low in _key(name)}
    found = [
        name
        for entry in book.entries
        for name in (entry.name or "", *entry.keys)
        if name[:1].isupper() or (name and _is_han(name[0]))
    ]
    return tuple(dict.fromkeys(n for n in found if not set(_key(n)) <= own))
