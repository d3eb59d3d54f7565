from __future__ import annotations

import numpy as np
import pytest

from personae.world.memory.dense import DenseIndex

VECTORS = [np.array(v, dtype=np.float32) for v in ((1, 0), (0, 1), (-1, 0), (0.6, 0.8))]


def test_every_vector_gets_its_cosine_in_the_order_of_its_coming() -> None:
    index = DenseIndex(2)
    index.extend(VECTORS)
    assert index.cosines(np.array([1, 0], dtype=np.float32)) == pytest.approx([1, 0, -1, 0.6])


def test_the_store_agrees_with_the_plain_product_on_many_vectors() -> None:
    rows = np.random.default_rng(3).standard_normal((2000, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = DenseIndex(64)
    index.extend(list(rows[:1500]))
    index.extend([])
    index.extend(list(rows[1500:]))
    assert len(index) == 2000
    assert index.cosines(rows[7]) == pytest.approx(rows @ rows[7], abs=1e-5)
