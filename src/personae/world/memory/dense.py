"""Relevance by closeness of meaning: an exact vector store (faiss `IndexFlatIP`), in memory.

Exact, not approximate: at 100,000 memories a full scan takes 15 ms, and a graph index would make
adding fifty times as slow and the ranking a matter of its construction
(`docs/decisions/0011-memory.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.world.embedding import Vector

_ALL = -2.0  # below every cosine


class DenseIndex:
    """Unit vectors numbered from 0 in the order of their coming."""

    def __init__(self, dimension: int) -> None:
        import faiss

        self._index: Any = faiss.IndexFlatIP(dimension)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def extend(self, vectors: Sequence[Vector]) -> None:
        """Take unit vectors in, float32, all of the store's dimension."""
        if vectors:
            self._index.add(np.stack(vectors))

    def cosines(self, query: Vector) -> NDArray[np.float64]:
        """The cosine of every vector with the query's, -1 to 1."""
        _, values, places = self._index.range_search(query[np.newaxis, :], _ALL)
        found = np.zeros(len(self))
        found[places] = values
        return found
