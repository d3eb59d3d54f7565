"""Who is meant by a name: files call a character by its full name here and by a short one there.

Neeko's dialogues name `Julius Caesar` and let `Caesar` speak, and its script that made transfer
dialogues took the two for two: some of them have one character only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from personae.interview.people import Interviewee
from personae.records.similarity import normalised

_HAN = re.compile(r"[\u3400-\u9fff]")
_SHORTEST = 2


def alike(one: str, other: str) -> bool:
    """Whether one of two names is the other, or a part of it in whole words.

    Chinese names have no words: of them it is two characters at least that the other holds.
    """
    a, b = normalised(one), normalised(other)
    if not a or not b:
        return False
    if a == b:
        return True
    short, long = sorted((a.split(), b.split()), key=len)
    if all(word in long for word in short) and len(short) < len(long):
        return True
    small, big = sorted((a, b), key=len)
    return bool(_HAN.search(small)) and len(small) >= _SHORTEST and small in big


class Names:
    """One name for each character.

    Args:
        tiers: each name that is known, and the one to use for it; the best known first (characters
            that were given, then those of profiles, then those that files state).
    """

    def __init__(self, *tiers: Mapping[str, str]) -> None:
        self._tiers = tiers
        self._exact: list[dict[str, str]] = []
        for tier in tiers:
            exact: dict[str, str] = {}
            for known, used in tier.items():
                exact.setdefault(normalised(known), used)
            self._exact.append(exact)

    def find(self, name: str, fuller: str = "") -> str | None:
        """The name to use; None where it is nobody's, or may be more than one's.

        Args:
            fuller: what the file also calls it; decides where `name` alone does not.
        """
        # A dialogue in which the character changes is filed under one of them.
        also = fuller if alike(name, fuller) else ""
        for tier, exact in zip(self._tiers, self._exact, strict=True):
            for wanted in filter(None, (normalised(name), normalised(also))):
                if wanted in exact:
                    return exact[wanted]
            near = {used for known, used in tier.items() if alike(known, name)}
            if len(near) > 1 and also:
                near = {used for known, used in tier.items() if alike(known, also)} & near
            if near:
                return near.pop() if len(near) == 1 else None
        return None

    def of(self, name: str, fuller: str = "") -> str:
        """The name to use, else the name as it stands."""
        return self.find(name, fuller) or name


def names_of(people: Iterable[Interviewee]) -> dict[str, str]:
    """What people are called, each with their name: names first, then nicknames of one alone."""
    several = tuple(people)
    called = {person.name: person.name for person in several}
    bearers = Counter(normalised(person.card.called) for person in several)
    for person in several:
        if bearers[normalised(person.card.called)] == 1:
            called.setdefault(person.card.called, person.name)
    return called
