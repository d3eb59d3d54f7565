"""Retrieval over what is known of a character: the passages that fit a question (method `rag`).

BM25 as the memory of plays has it (`personae.world.memory.lexical`), English and Chinese. Neeko's
released baseline of that name retrieves nothing: it puts the profile's first paragraph before every
question (`rag_infer_single.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from personae.records import Language
from personae.records.tokens import estimate_tokens
from personae.world.memory.lexical import LexicalIndex, content_terms

MOST_PASSAGES = 5
MOST_TOKENS = 800


class Passages:
    """Texts that can be searched.

    Args:
        language: whose question words are left out of a query; the texts may be in any.
    """

    def __init__(self, texts: Sequence[str], language: Language = "en") -> None:
        self._texts = tuple(texts)
        self._language = language
        self._index = LexicalIndex(language, self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def find(
        self, *queries: str, k: int = MOST_PASSAGES, tokens: int = MOST_TOKENS
    ) -> tuple[str, ...]:
        """The texts that fit best, the best first; equal ones in their own order.

        A text fits a query with which it shares a term, words that stand in any question left out:
        "And then?" finds nothing. A later query only fills the places that those before it left.

        Args:
            k: at most so many.
            tokens: at most so many together (`estimate_tokens`); a text that has no room is passed
                over for the next.
        """
        found: dict[int, None] = {}
        left = tokens
        for query in queries:
            if not content_terms(query, self._language):
                continue
            scores = self._index.scores(query)
            for place in np.argsort(-scores, kind="stable").tolist():
                if len(found) == k or scores[place] <= 0:
                    break
                cost = estimate_tokens(self._texts[place])
                if place not in found and cost <= left:
                    found[place] = None
                    left -= cost
        return tuple(self._texts[place] for place in found)
