"""The header of a GGUF file: its key-values, without the tensors.

The `gguf` package reads the whole file into per-element objects (3.3 s for a vocabulary of 49,152);
the engine only needs a dozen values at every start, so this reads the header alone (0.1 s), with
caps, because weights are files that strangers made. Format: ggml `docs/gguf.md`, version 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from personae.errors import InputError

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_KEYS = 4096
_MAX_TENSORS = 100_000
_MAX_DIMENSIONS = 4
_MAX_ELEMENTS = 2_000_000
_MAX_STRING = 4_000_000


TENSOR_TYPES = "personae.tensor_types"
"""Under this key: the ggml type numbers that occur among the tensors, ascending."""


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def take(self, code: str) -> Any:
        values = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return values[0]

    def string(self) -> str:
        length = self.take("Q")
        if length > _MAX_STRING or self.at + length > len(self.data):
            raise ValueError("a string runs past the end")
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", "replace")

    def tensor_type(self) -> int:
        self.string()
        dimensions = self.take("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        self.at += 8 * dimensions
        kind: int = self.take("I")
        self.at += 8
        return kind

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"unknown value type {kind}")
        inner, count = self.take("I"), self.take("Q")
        if count > _MAX_ELEMENTS:
            raise ValueError(f"an array of {count} elements")
        if inner == _STRING:
            return [self.string() for _ in range(count)]
        if inner not in _SCALARS:
            raise ValueError(f"an array of type {inner}")
        code = f"<{count}{_SCALARS[inner]}"
        values = list(struct.unpack_from(code, self.data, self.at))
        self.at += struct.calcsize(code)
        return values


def read_header(path: Path) -> dict[str, Any]:
    """The key-values of a GGUF file, and `TENSOR_TYPES`.

    Raises:
        InputError: the file is absent, cut short or no GGUF of version 2 or 3.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            if data[:4] != b"GGUF":
                raise ValueError("it does not begin with GGUF")
            cursor.at = 4
            version, tensors, keys = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
            if version not in (2, 3) or keys > _MAX_KEYS or tensors > _MAX_TENSORS:
                raise ValueError(f"version {version}, {keys} keys, {tensors} tensors")
            found: dict[str, Any] = {}
            for _ in range(keys):
                name = cursor.string()
                found[name] = cursor.value(cursor.take("I"))
            found[TENSOR_TYPES] = sorted({cursor.tensor_type() for _ in range(tensors)})
            return found
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", path=path) from None
    except (ValueError, struct.error) as error:
        raise InputError(f"not a usable GGUF file ({error})", path=path) from None


class Header:
    """What the engine needs to know of a model before it loads it.

    Attributes:
        context: tokens that the model was trained to attend to.
        kv_bytes: bytes of key-value cache per token at 16 bits.
        control: texts of the control tokens, which must not be forged by a message's content.
        template: the chat template (Jinja), or None.
        tensor_types: the ggml type numbers of the tensors.
        bos, eos: texts of those tokens, as the template wants them.
        vocabulary: how many tokens there are.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.architecture = str(values.get("general.architecture", ""))
        own = f"{self.architecture}."
        self.name = str(values.get("general.name", "")) or None
        self.context = int(values.get(own + "context_length", 2048))
        self.kv_bytes = _kv_bytes(values, own)
        tokens = values.get("tokenizer.ggml.tokens") or []
        kinds = values.get("tokenizer.ggml.token_type") or []
        control_kind = 3
        self.control = tuple(
            token
            for token, kind in zip(tokens, kinds, strict=False)
            if kind == control_kind and len(token) >= 3
        )
        template = values.get("tokenizer.chat_template")
        self.template = template if isinstance(template, str) else None
        self.tensor_types = frozenset(values.get(TENSOR_TYPES, ()))
        self.vocabulary = len(tokens)
        self.bos = _token(values, tokens, "bos")
        self.eos = _token(values, tokens, "eos")


def _kv_bytes(values: dict[str, Any], own: str) -> int:
    heads = _first(values.get(own + "attention.head_count", 1))
    kv_heads = _first(values.get(own + "attention.head_count_kv", heads))
    width = int(values.get(own + "embedding_length", 1)) // max(heads, 1)
    key = int(values.get(own + "attention.key_length", width))
    value = int(values.get(own + "attention.value_length", width))
    return int(values.get(own + "block_count", 1)) * kv_heads * (key + value) * 2


def _first(value: Any) -> int:
    """Per-layer counts come as an array; the largest is what memory must allow for."""
    return max(int(v) for v in value) if isinstance(value, list) else int(value)


def _token(values: dict[str, Any], tokens: list[str], name: str) -> str:
    at = values.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[at] if isinstance(at, int) and 0 <= at < len(tokens) else ""
