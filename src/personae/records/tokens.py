"""How many tokens a text will take, before any model has been asked."""

from __future__ import annotations


def estimate_tokens(text: str) -> int:
    """A rough token count: four characters of Latin script a token, one and a half of Chinese."""
    wide = sum(1 for c in text if ord(c) > 0x2E80)
    return max(1, round((len(text) - wide) / 4 + wide / 1.5))
