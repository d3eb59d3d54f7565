"""A cast out of a checkpoint that Neeko's released code trained.

Source: github.com/weiyifan1023/Neeko at c9ed62f, `moelora/tuners/{moelora,gating}.py` and
`moelora/utils/save_and_load.py` (read, not copied; the project's own checkpoints were never
published). There each adapted module has one A `[r, in]` and one B `[out, r]`, whose rows and
columns fall into E blocks, and a gate G `[E, d]`; for a role with embedding e it adds

    alpha / (r / E) * sum_k softmax(G e)_k B_k A_k x.

e does not change while a role speaks, so the gate is a constant of role and module: written into
the columns of B it leaves a plain adapter of rank r and alpha E * alpha, exactly. Each role becomes
one block; the gate costs nothing any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from personae.cast.base import base_ref
from personae.cast.gate import softmax
from personae.cast.store import Cast, write_cast
from personae.errors import InputError, UsageError
from personae.records import Character
from personae.records.base import Record
from personae.records.cast import Block, CastCharacter, DataSource
from personae.records.files import read_json

CONFIG, SAFE, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MAX_BYTES = 8 * 2**30
MAX_EMBEDDING = 16 * 2**20
_KEY = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|gating\.linear_layer)\.weight")


class MoeLoraConfig(Record):
    """What is needed of the checkpoint's adapter_config.json; its other fields change nothing."""

    model_config = ConfigDict(extra="ignore")

    peft_type: Literal["MOELORA"]
    r: int = Field(ge=1, le=4096)
    num_moe: int = Field(ge=1, le=4096)
    lora_alpha: float = Field(gt=0)
    bias: Literal["none"] = "none"
    fan_in_fan_out: Literal[False] = False
    modules_to_save: None = None


def import_neeko(
    checkpoint: Path | str,
    embeddings: Mapping[str, Path],
    out: Path | str,
    *,
    base: str,
    as_trained: bool = False,
    cards: Mapping[str, Character] | None = None,
    licence: str | None = None,
) -> Cast:
    """Write a checkpoint of Neeko's released code as a cast, one block a role.

    Args:
        checkpoint: a directory with adapter_config.json and adapter_model.safetensors or .bin.
        embeddings: by role, the vector that embd_roles.py wrote: `.pth`, or `.npy`.
        base: the model that it was trained on: a Hugging Face directory.
        as_trained: the released code trains with each embedding back to front and runs with it as
            it is (research/upstream.md, C1b). False: what that code runs; True: what it trained.
        cards: by role.
        licence: of the training data, where it is known.

    Raises:
        InputError: a file is absent, damaged, none of Neeko's, or does not fit the others.
        UsageError: no role is given, or a `.bin` or `.pth` is there and torch is not.
        OutputError: the cast cannot be written.
    """
    checkpoint = Path(checkpoint)
    if not embeddings:
        raise UsageError("Neeko's gate needs the embedding of each role: give at least one")
    config = _config(checkpoint / CONFIG)
    tensors, source = _tensors(checkpoint)
    modules = _modules(tensors, config, source)
    vectors = {role: _vector(file) for role, file in embeddings.items()}
    folded: dict[str, np.ndarray] = {}
    for name, parts in modules.items():
        wide = parts["gating.linear_layer"].shape[1]
        columns = []
        for role, vector in vectors.items():
            if len(vector) != wide:
                raise InputError(
                    f"{len(vector)} numbers, and the gate of {name} takes {wide}",
                    path=embeddings[role],
                    mend="Give the embeddings that the checkpoint was trained with",
                )
            seen = vector[::-1] if as_trained else vector
            weights = softmax(parts["gating.linear_layer"].astype(float) @ seen)
            each = np.repeat(weights, config.r // config.num_moe)
            columns.append((parts["lora_B"] * each).astype(np.float32))
        folded[f"A.{name}"] = np.stack([parts["lora_A"]] * len(vectors))
        folded[f"B.{name}"] = np.stack(columns)
    data = (DataSource(source=f"checkpoint of Neeko: {source.name}", licence=licence, rows=0),)
    return write_cast(
        out,
        base=base_ref(base),
        rank=config.r,
        alpha=config.num_moe * config.lora_alpha,
        blocks=[Block(name=role, data=data) for role in vectors],
        characters=[CastCharacter(name=role, weights={role: 1.0}) for role in vectors],
        tensors=folded,
        cards=cards,
        protocol="paper",
    )


def _config(file: Path) -> MoeLoraConfig:
    value = read_json(file, limit=MAX_EMBEDDING)
    if isinstance(value, dict) and value.get("peft_type") != "MOELORA":
        raise InputError(
            f"an adapter of type {value.get('peft_type')!r}, and Neeko's are MOELORA",
            path=file,
            mend="Give the directory that Neeko's train.py wrote",
        )
    config = MoeLoraConfig.from_dict(value, path=file)
    if config.r % config.num_moe:
        raise InputError(f"r {config.r} does not fall into {config.num_moe} blocks", path=file)
    return config


def _tensors(folder: Path) -> tuple[dict[str, np.ndarray], Path]:
    safe, pickled = folder / SAFE, folder / PICKLED
    if safe.is_file():
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        _cap(safe, MAX_BYTES)
        try:
            return load_file(safe), safe
        except (SafetensorError, KeyError, TypeError) as error:
            raise InputError(f"no safetensors that numpy can hold ({error})", path=safe) from None
    if not pickled.is_file():
        raise InputError(f"there is neither {SAFE} nor {PICKLED}", path=folder)
    found = _torch_load(pickled, MAX_BYTES)
    if not isinstance(found, dict):
        raise InputError("this holds no state of a model", path=pickled)
    return {str(key): _array(value, pickled) for key, value in found.items()}, pickled


def _torch_load(file: Path, limit: int) -> Any:
    """What torch saved: tensors in plain containers and nothing that could run."""
    _cap(file, limit)
    try:
        import torch
    except ImportError:
        raise UsageError(f"{file} needs torch: pip install 'personae[train]'") from None
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  a stranger's pickle; the reader raises many kinds
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(f"not tensors alone, or damaged ({first})", path=file) from None


def _array(value: Any, file: Path) -> np.ndarray:
    try:
        array: np.ndarray = value.detach().float().numpy()
    except (AttributeError, TypeError, RuntimeError):
        raise InputError("it holds something that is no tensor", path=file) from None
    return array


def _cap(file: Path, limit: int) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=file) from None
    if size > limit:
        raise InputError(f"{size:,} bytes, more than the {limit:,} allowed", path=file)


def _modules(
    tensors: Mapping[str, np.ndarray], config: MoeLoraConfig, file: Path
) -> dict[str, dict[str, np.ndarray]]:
    """A, B and gate of each module, float32, in the order of the file."""
    modules: dict[str, dict[str, np.ndarray]] = {}
    for key, tensor in tensors.items():
        found = _KEY.fullmatch(key)
        if found is None:
            raise InputError("no part of an adapter of Neeko", path=file, place=key)
        modules.setdefault(found[1], {})[found[2]] = tensor.astype(np.float32)
    for name, parts in modules.items():
        for kind, at, wanted in (
            ("lora_A", 0, config.r),
            ("lora_B", 1, config.r),
            ("gating.linear_layer", 0, config.num_moe),
        ):
            shape = parts[kind].shape if kind in parts else ()
            if len(shape) != 2 or shape[at] != wanted:
                raise InputError(
                    f"{kind} has the shape {list(shape)}, and {CONFIG} says {wanted}"
                    if shape
                    else f"there is no {kind}",
                    path=file,
                    place=name,
                )
    if not modules:
        raise InputError("it holds no adapted module", path=file)
    return modules


def _vector(file: Path) -> np.ndarray:
    if file.suffix == ".npy":
        _cap(file, MAX_EMBEDDING)
        try:
            found: np.ndarray = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, MemoryError) as error:  # a header can claim any size
            raise InputError(f"no array of numpy ({error})", path=file) from None
    else:
        found = _array(_torch_load(file, MAX_EMBEDDING), file)
    vector = found.squeeze()
    if vector.ndim != 1 or vector.dtype.kind != "f" or not np.isfinite(vector).all():
        raise InputError("no vector of numbers", path=file)
    return vector.astype(float)
