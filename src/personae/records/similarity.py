"""When two short texts say nearly the same: character trigrams, English and Chinese alike."""

from __future__ import annotations

import re
import unicodedata

NEAR_DUPLICATE = 0.6


def normalised(text: str) -> str:
    """Case, width, punctuation and spacing made equal."""
    return re.sub(r"[\W_]+", " ", unicodedata.normalize("NFKC", text).casefold()).strip()


def trigrams(text: str) -> frozenset[str]:
    """The character trigrams of the normalised text."""
    padded = f"  {normalised(text)} "
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2))


def similarity(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard similarity of two trigram sets, from 0 to 1."""
    union = len(a | b)
    return len(a & b) / union if union else 1.0


class Distinct:
    """Texts accepted so far; refuses what is nearly one of them.

    Args:
        threshold: the similarity from which two texts count as the same.
    """

    def __init__(self, threshold: float = NEAR_DUPLICATE) -> None:
        self._threshold = threshold
        self._seen: list[frozenset[str]] = []

    def add(self, text: str) -> bool:
        """Whether the text is new; if so it is remembered."""
        grams = trigrams(text)
        if any(similarity(grams, other) >= self._threshold for other in self._seen):
            return False
        self._seen.append(grams)
        return True
