"""Which character's profile an instruction describes: BM25 over all pieces of all cards.

Words in English, pairs of characters in Chinese (no dictionary needed). Unlike the index of
memories (`world.memory.lexical`) it tells which terms nobody's profile holds: what an instruction
says of somebody else is how a stranger is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from personae.cast.names import HAN, clean, longest_first, words
from personae.records import Character

Floats = NDArray[np.float64]

_PIECE = re.compile(rf"[{HAN}]+|[^\W_{HAN}]+")
_SENTENCE = re.compile(r"(?<=[.!?;。！？；\n])\s*")
_BESIDE = re.compile(
    r"\b(?P<name>[A-Z][\w'-]{1,40}), (?:the |his |her |an? )?"
    r"(?P<after>[a-z][\w' -]{2,40}?)(?=,| who| of| and|\.|;)"
    r"|(?:\b(?:his|her|the) )(?P<before>[a-z][a-z -]{2,40}?) (?:called )?"
    r"(?P<name2>[A-Z][\w'-]{1,40})"
)
_K1, _B = 1.2, 0.75
_HAN_FROM = "\u3400"
_SINGLE = 0.3
TOP = 3
"""Pieces of a profile whose scores are summed: a description names several facts."""


def sentences(text: str) -> list[str]:
    """The sentences of a text."""
    return [one for one in (part.strip() for part in _SENTENCE.split(text)) if one]


def pieces_of(character: Character) -> tuple[str, ...]:
    """All that a card says of a character, in pieces: sentences, lore, exchanges.

    Not its secrets, and not what is written for people or for a chat program.
    """
    ours, book = character.ours, character.character_book
    found = [" ".join((character.name, character.called, *character.tags))]
    for text in (character.description, character.personality, character.scenario, ours.voice):
        found += sentences(text)
    for entry in book.entries if book else ():
        found.append(" ".join((*entry.keys, entry.name or "", entry.content)))
    found += [f"{turn.user} {turn.character}" for turn in ours.dialogue]
    found += sentences(character.first_mes)
    return tuple(dict.fromkeys(found))


def identity_of(character: Character) -> tuple[str, ...]:
    """What a card says that the character is: tags, the first sentences, the personality."""
    first = sentences(character.description)[:2]
    return (character.name, character.called, *character.tags, *first, character.personality)


def kin_of(character: Character) -> tuple[str, ...]:
    """What a card calls others: the keys of lore about people, and words beside their names.

    "Mrs Hudson, the landlady", "his friend and chronicler Dr. John Watson", 三师弟沙僧.
    """
    own = {stem(word) for name in (character.name, character.called) for word in terms_of(name)}
    found: list[str] = []
    book = character.character_book
    for entry in book.entries if book else ():
        keys = [key for key in entry.keys if not key[:1].isupper()]
        if any(key[:1].isupper() for key in entry.keys) or re.match(f"[{HAN}]", entry.name or "x"):
            found += keys
    lore = [entry.content for entry in book.entries] if book else []
    text = " ".join((character.description, *lore))
    for match in _BESIDE.finditer(text):
        name, one, two = match["name"] or match["name2"], match["after"], match["before"]
        if not own & set(terms_of(name)):
            found.append(one or two)
    relations = longest_first("zh", "relation")
    found += re.findall(rf"[大二三]?(?:{relations})(?=[{HAN}]{{2,3}})", character.description)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """An English word without its most common endings.

    The "S" stemmer of Harman 1991, and -ed, -ing: enough to join "windmills" and "windmill", too
    little to join strangers.
    """
    for ending, least in (("'s", 1), ("ies", 3), ("sses", 2), ("ing", 4), ("ed", 4), ("es", 4)):
        if word.endswith(ending) and len(word) - len(ending) >= least:
            return word[: -len(ending)] + {"ies": "y", "sses": "ss"}.get(ending, "")
    if word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 3:
        return word[:-1]
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


def terms_of(text: str, *, singles: bool = False) -> list[str]:
    """The terms of a text: stems, and pairs of Han characters (one that stands alone is a term).

    Args:
        singles: every Han character is a term too.
    """
    found: list[str] = []
    for piece in _PIECE.findall(clean(text).casefold()):
        if re.match(f"[{HAN}]", piece):
            found += [piece[i : i + 2] for i in range(len(piece) - 1)] or [piece]
            found += piece if singles and len(piece) > 1 else []
        else:
            found.append(stem(piece))
    return found


@lru_cache(maxsize=16_384)
def _counted(text: str) -> Counter[str]:
    """The terms of a piece; kept, so that a new role does not cost the old ones again."""
    return Counter(terms_of(text, singles=True))


@cache
def _empty() -> frozenset[str]:
    """Stems that say nothing of who is wanted."""
    known = words("en")
    return frozenset(map(stem, known["lead"] | known["question"] | known["tail"]))


def asked_terms(text: str) -> list[str]:
    """The terms of an instruction that may tell who is wanted, once each."""
    kept = dict.fromkeys(t for t in terms_of(text, singles=True) if t not in _empty())
    return list(kept)[:256]


class Profiles:
    """The pieces of all profiles, and how well each role fits an instruction.

    Args:
        pieces: of each role.
        identity: of each role, what it is: tags and first sentences.
        described: of each role, its description.
        kin: of each role, what others are called in its card.
    """

    def __init__(
        self,
        pieces: Mapping[str, Sequence[str]],
        identity: Mapping[str, Sequence[str]],
        described: Mapping[str, Sequence[str]],
        kin: Mapping[str, Sequence[str]],
    ) -> None:
        self.roles = tuple(pieces)
        flat = [(n, _counted(text)) for n, role in enumerate(self.roles) for text in pieces[role]]
        self._owner = np.array([n for n, _ in flat], dtype=np.intp)
        self._first = np.searchsorted(self._owner, np.arange(len(self.roles)))
        size = np.array([terms.total() for _, terms in flat], dtype=np.float64)
        average = size.mean() if len(size) else 1.0
        self._count = len(flat)
        self._terms: dict[str, int] = {}
        rows = [
            (self._terms.setdefault(term, len(self._terms)), at, times)
            for at, (_, terms) in enumerate(flat)
            for term, times in terms.items()
        ]
        table = np.array(rows, dtype=np.intp).reshape(-1, 3)
        table = table[np.argsort(table[:, 0], kind="stable")]
        self._starts = np.searchsorted(table[:, 0], np.arange(len(self._terms) + 1)).tolist()
        self._places = np.ascontiguousarray(table[:, 1])
        often = table[:, 2].astype(np.float64)
        norm = often + _K1 * (1 - _B + _B * size[self._places] / average)
        self._values = often * (_K1 + 1) / norm
        self._identity, self._described, self._kin = (
            [frozenset(term for text in kind[role] for term in terms_of(text)) for role in pieces]
            for kind in (identity, described, kin)
        )

    def _posting(self, term: str) -> slice:
        """Where the places and values of a term stand; nowhere where no piece has it."""
        at = self._terms.get(term)
        return slice(0, 0) if at is None else slice(self._starts[at], self._starts[at + 1])

    def weight(self, term: str) -> float:
        """How rare a term is among the pieces (idf of Robertson and Sparck Jones, above 0)."""
        where = self._posting(term)
        have = where.stop - where.start
        return float(np.log1p((self._count - have + 0.5) / (have + 0.5)))

    def fit(self, asked: Iterable[str]) -> tuple[Floats, Floats]:
        """Of each role the BM25 of its best pieces, and the share of what is asked that it holds.

        Both are one float a role; the share is weighted by rarity, 0 to 1.
        """
        scores = np.zeros(self._count)
        held = np.zeros(len(self.roles))
        total = 0.0
        for term in asked:
            weight = self.weight(term)
            single = len(term) == 1 and term >= _HAN_FROM
            share = _SINGLE if single else 1.0
            total += 0.0 if single else weight
            if term in self._terms:
                where = self._posting(term)
                at = self._places[where]
                scores[at] += share * weight * self._values[where]
                if not single:
                    held[np.unique(self._owner[at])] += weight
        best = np.zeros(len(self.roles))
        for n, start in enumerate(self._first):
            end = self._first[n + 1] if n + 1 < len(self._first) else self._count
            own = np.sort(scores[start:end])[-TOP:]
            best[n] = own.sum()
        return best, held / total if total else held

    def is_a(self, head: Sequence[str], role: int) -> float:
        """How well what an instruction calls somebody fits what a role is said to be.

        1: a tag or the first sentences say it; 0.5: the description does; -1: nothing does;
        0: the instruction says nothing of it.
        """
        found = [term for word in head for term in terms_of(word)]
        if not found:
            return 0.0
        if any(term in self._identity[role] for term in found):
            return 1.0
        return 0.5 if any(term in self._described[role] for term in found) else -1.0

    def of_another(self, head: Sequence[str], role: int) -> bool:
        """Whether a role's card calls somebody else so ("Mrs Hudson, the landlady")."""
        return any(term in self._kin[role] for word in head for term in terms_of(word))

    def holds(self, term: str, role: int) -> bool:
        """Whether a term is in a role's profile."""
        return bool((self._owner[self._places[self._posting(term)]] == role).any())
