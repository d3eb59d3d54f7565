from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from personae.errors import MissingKeyError, ServerError, UsageError
from personae.world.embedding import make_embedder, unit_vectors


@pytest.mark.parametrize("name", [None, "lexical"])
def test_words_alone_need_no_embedder(name: str | None) -> None:
    assert make_embedder(name) is None


@pytest.mark.parametrize("name", ["", "st:", "bert", "scripted:x.py", "local", "nobody/model"])
def test_what_is_no_embedder_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(UsageError, match="use lexical, minilm, st:NAME"):
        make_embedder(name)


def test_a_provider_without_its_key_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        make_embedder("openai/text-embedding-3-small")


async def test_a_replay_asks_for_no_key(tmp_path: Path) -> None:
    name = "openai/text-embedding-3-small"
    embedder = make_embedder(name, store=tmp_path / "v.sqlite", replay=True)
    assert embedder is not None
    assert embedder.name == name
    await embedder.close()


def test_a_replay_needs_the_store_of_the_run() -> None:
    with pytest.raises(UsageError, match="store of vectors"):
        make_embedder("minilm", replay=True)


@pytest.mark.parametrize(
    ("gone", "name", "says"),
    [
        ("faiss", "http://127.0.0.1:9/v1#m", r"faiss: pip install 'personae\[memory"),
        ("tokenizers", "minilm", r"minilm needs tokenizers: pip install 'personae\[memory"),
        ("sentence_transformers", "st:BAAI/bge-small-zh-v1.5", "pip install sentence-transformers"),
    ],
)
def test_a_missing_library_is_named_with_its_mend(
    monkeypatch: pytest.MonkeyPatch, gone: str, name: str, says: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda wanted: None if wanted == gone else real(wanted)
    )
    with pytest.raises(UsageError, match=says):
        make_embedder(name)


def test_vectors_are_brought_to_length_one() -> None:
    (one, other) = unit_vectors([[3, 4], [0, -2]], 2, "x")
    assert one.tolist() == pytest.approx([0.6, 0.8])
    assert other.tolist() == [0, -1]
    assert one.dtype == np.float32


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 0]],
        [[1, 0], [1]],
        [[1, 0], [0, 0]],
        [[1, 0], [float("nan"), 1]],
        [[1, 0], [float("inf"), 1]],
        [[1, 0], ["a", "b"]],
        [1, 2],
        [[], []],
        [None, None],
    ],
)
def test_what_is_no_direction_is_no_vector(rows: object) -> None:
    with pytest.raises(ServerError, match="x gave"):
        unit_vectors(rows, 2, "x")
