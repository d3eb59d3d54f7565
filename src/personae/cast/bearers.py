"""Whom of a cast a name means that was given as a name, not found in a text (`cast.names`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Protocol

from personae.characters.prompt import plain_name

_NO_LETTER = re.compile(r"[\W_]+")


class Named(Protocol):
    """Whoever has a name, and perhaps others."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def aliases(self) -> Sequence[str]:
        """The others."""


class Bearers:
    """Who goes by a name: nobody, one, or several where it means none for certain."""

    def __init__(self, characters: Sequence[Named]) -> None:
        self.names = tuple(one.name for one in characters)
        plain: dict[str, dict[str, None]] = {}
        bare: dict[str, dict[str, None]] = {}
        runs: dict[str, dict[str, None]] = {}
        for one in characters:
            for name in (one.name, *one.aliases):
                plain.setdefault(plain_name(name), {})[one.name] = None
                bare.setdefault(bare_name(name), {})[one.name] = None
                for run in parts(name):
                    runs.setdefault(run, {})[one.name] = None
        self._plain, self._bare, self._runs = plain, bare, runs

    def of(self, name: str) -> tuple[str, ...]:
        """By name or alias; case, width and spaces do not count.

        Whose very name it is, goes by it alone.
        """
        return (name,) if name in self.names else tuple(self._plain.get(plain_name(name), ()))

    def spelt(self, name: str) -> tuple[str, ...]:
        """The same where letters and digits alone count: `Ada_Byron`."""
        return self.of(name) or tuple(self._bare.get(bare_name(name), ()))

    def by_part(self, name: str) -> tuple[str, ...]:
        """The same, or by whole words of a name: `Holmes`."""
        return self.spelt(name) or tuple(self._runs.get(plain_name(name), ()))


def bare_name(name: str) -> str:
    """A name's letters and digits."""
    return _NO_LETTER.sub("", plain_name(name)) or name


def parts(name: str) -> Iterator[str]:
    """The runs of whole words in a name; single letters are none."""
    words = plain_name(name).split()[:8]
    for start, end in combinations(range(len(words) + 1), 2):
        run = " ".join(words[start:end])
        if len(run) > 1:
            yield run
