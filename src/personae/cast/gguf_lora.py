"""A plain adapter as a GGUF LoRA file, which llama.cpp loads beside the weights.

Pure numpy and the `gguf` package. llama.cpp adds `alpha / rank * B A` to a matrix, the rank being
B's (llama-adapter.h, `get_scale`), so `adapter.lora.alpha` is PEFT's `lora_alpha`.

llama.cpp keeps the rows of q and k of the architecture `llama` in another order than Hugging Face
does (rotary pairs side by side instead of half a head apart; convert_hf_to_gguf.py,
`LlamaModel.permute`). The rows of a matrix are the rows of B, so B is permuted there; A is not, and
`qwen2` keeps the order of Hugging Face.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from personae.errors import InputError, OutputError, UsageError
from personae.records.files import as_new

if TYPE_CHECKING:
    from personae.cast.export import PlainAdapter

PERMUTED = {"llama": True, "qwen2": False}
"""The architectures that can be written, and whether rows of q and k change places."""


@dataclass(frozen=True)
class Heads:
    """What a base's architecture says of its attention.

    Attributes:
        architecture: as GGUF and as transformers' model_type name it; the two agree on those known.
        layers: decoder layers.
        queries, keys: attention heads of q, and of k and v.
    """

    architecture: str
    layers: int
    queries: int
    keys: int


def heads_of(spec: str) -> Heads:
    """The heads of a base: out of a GGUF's header, or a directory's config.json.

    Raises:
        UsageError: adapters of this architecture cannot be written.
        InputError: the base is absent, or says nothing of its heads.
    """
    from personae.cast.base import CONFIG, is_local, read_config
    from personae.models.local import weights
    from personae.models.local.header import read_header

    if is_local(spec):
        where = weights.pull(spec)
        header = read_header(where)
        name = str(header.get("general.architecture"))
        keys = ("block_count", "attention.head_count", "attention.head_count_kv")
        values = [header.get(f"{name}.{key}") for key in keys]
    else:
        where = Path(spec).expanduser()
        config = read_config(where)
        where /= CONFIG
        name = config["model_type"]
        keys = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        values = [config.get(key) for key in keys]
    if name not in PERMUTED:
        raise UsageError(
            f"GGUF adapters can be written for {' and '.join(sorted(PERMUTED))}, and {spec} is "
            f"{name!r}. Export with --to peft instead."
        )
    counts = [v for v in (values[0], values[1], values[2] or values[1]) if isinstance(v, int)]
    if len(counts) < 3 or min(counts) < 1:
        raise InputError(f"it does not state {', '.join(keys)}", path=where)
    return Heads(name, *counts)


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from the order of Hugging Face to that of llama.cpp.

    In each head the first half's rows and the second half's are brought to turns: 0, h, 1, h+1, ...

    Args:
        rows: `[heads * size, anything]`.
    """
    per_head = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return per_head.swapaxes(1, 2).reshape(rows.shape)


def write_gguf_lora(file: Path, adapter: PlainAdapter, heads: Heads, *, name: str) -> None:
    """Write an adapter as a GGUF LoRA file, whole or not at all; tensors are float32.

    Raises:
        UsageError: gguf is not installed.
        InputError: a module has no counterpart in GGUF, or does not fit the heads.
        OutputError: the file cannot be written.
    """
    try:
        import gguf
    except ImportError:
        raise UsageError("GGUF files need gguf: pip install 'personae[local]'") from None
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == heads.architecture)
    known = gguf.get_tensor_name_map(arch, heads.layers)
    tensors: dict[str, np.ndarray] = {}
    for module, a in adapter.a.items():
        target = known.get_name(module)
        if target is None:
            raise InputError(
                f"the GGUF form of {heads.architecture} has no matrix for {module!r}",
                mend="Train with --targets that it has (the linear layers of the decoder)",
            )
        b = adapter.b[module]
        kind = target.rpartition(".")[2]
        if PERMUTED[heads.architecture] and kind in ("attn_q", "attn_k"):
            count = heads.queries if kind == "attn_q" else heads.keys
            if b.shape[0] % (2 * count):
                raise InputError(f"{module}: {b.shape[0]} rows do not fit {count} heads")
            b = permuted(b, count)
        tensors[f"{target}.weight.lora_a"] = np.ascontiguousarray(a, dtype=np.float32)
        tensors[f"{target}.weight.lora_b"] = np.ascontiguousarray(b, dtype=np.float32)
    temporary: str | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        os.close(handle)
        writer: Any = gguf.GGUFWriter(temporary, heads.architecture)
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(adapter.alpha))
        writer.add_name(name)
        for key, tensor in tensors.items():
            writer.add_tensor(key, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        as_new(Path(temporary))
        os.replace(temporary, file)  # noqa: PTH105  (Path.replace is the same call)
    except OSError as error:
        raise OutputError(f"{file}: cannot be written ({error.strerror})") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
