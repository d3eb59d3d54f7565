"""A cast's characters as plain adapters that other programs load: PEFT, llama.cpp, vLLM.

A character speaks through a weighted sum of blocks. With the A of the blocks stacked by rows and
the B, each times its weight, by columns,

    sum_k w_k B_k A_k  =  [w_1 B_1 ... w_n B_n] [A_1; ...; A_n],

that sum is *one* plain LoRA adapter whose rank is the sum of the ranks; nothing is rounded or cut
(PEFT calls it `cat`, `add_weighted_adapter`). So a trained, a fused and an expanded character leave
the house in the same form, and what runs elsewhere is what runs here (tests/cast/test_export.py).
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from personae import __version__
from personae.cast.store import MANIFEST, Cast, file_name
from personae.errors import InputError, OutputError, UsageError
from personae.records.cast import CastCharacter
from personae.records.files import as_new, write_atomically
from personae.records.language import written_in

VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as --max-lora-rank (0.33; a smaller adapter is padded)."""
MAX_ALPHA = 2**24
"""Whole numbers up to here are exact in float32, which GGUF keeps alpha in."""
HUB_NAME_OF_LOCAL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The model whose Q8_0 form `local` is, for programs that load Hugging Face models."""


class Note(NamedTuple):
    """What does not hold of an export, in both languages."""

    en: str
    zh: str


SPEAKER_NOTE = Note(
    "This cast was trained in mode speaker: a block works on its speaker's utterances alone. A "
    "plain adapter works on every token, the prompt too, so answers differ from those inside "
    "Personae. For exact adapters train with --mode full.",
    "本阵容以 speaker 模式训练：每个块只作用于其说话者的话语。普通适配器作用于所有词元"
    "（包括提示），因此回答与在 Personae 内不同。若要完全一致的适配器，请以 --mode full 训练。",
)
PROFILE_NOTE = Note(
    "Nothing was trained for this character: it speaks through the shared block, and its profile "
    "has to stand in the system message (system.txt).",
    "该角色没有经过训练：它通过共享块说话，其人物档案必须写在系统消息里（system.txt）。",
)
OWN_NOTE = Note(
    "Only the character's own block, without the shared one that it was trained on top of: this "
    "is not the whole character.",
    "只含角色自己的块，不含训练时位于其下的共享块：这不是完整的角色。",
)
LOCAL_NOTE = Note(
    f"Trained on the Q8_0 form of {HUB_NAME_OF_LOCAL}; on the unquantised weights answers differ "
    "a little.",
    f"在 {HUB_NAME_OF_LOCAL} 的 Q8_0 量化权重上训练；在未量化的权重上回答会略有不同。",
)
_NON_COMMERCIAL = re.compile(
    r"\bNC\b|non-?\s?commercial|research[- ]only|academic|not for commercial|非商业|禁止商用",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PlainAdapter:
    """One LoRA adapter: `alpha / rank * B @ A` on each module.

    Attributes:
        a, b: by module, float32, `[rank, in]` and `[out, rank]`.
        alpha: a whole number, as strict readers want it.
    """

    a: Mapping[str, np.ndarray] = field(repr=False)
    b: Mapping[str, np.ndarray] = field(repr=False)
    rank: int
    alpha: int


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        paths: by character: the adapter's directory (PEFT, vLLM) or file (GGUF).
        notes: what does not hold there, for the user to read.
    """

    out: Path
    paths: Mapping[str, Path]
    notes: tuple[str, ...] = ()


def adapter_of(cast: Cast, name: str, *, own_only: bool = False) -> PlainAdapter:
    """The weighted sum of a character's blocks as one plain adapter (see the module).

    Args:
        own_only: the character's own block alone, at weight 1.

    Raises:
        UsageError: there is no such character, it speaks through no block, or has none of its own.
        InputError: its weights or the alpha are beyond what float32 holds.
    """
    manifest = cast.manifest
    weights = {b: w for b, w in cast.character(name).weights.items() if w}
    if own_only:
        if name not in weights:
            raise UsageError(f"{name!r} has no block of its own")
        weights = {name: 1.0}
    if not weights:
        raise UsageError(f"{name!r} speaks through no block: there is nothing to export")
    slots = [block.name for block in manifest.blocks]
    parts = [(slots.index(block), weight) for block, weight in weights.items()]
    rank = len(parts) * manifest.rank
    scaled = manifest.alpha / manifest.rank * rank
    alpha = max(1, round(scaled))
    a, b = {}, {}
    for target in manifest.targets:
        stored_a, stored_b = cast.tensors[f"A.{target}"], cast.tensors[f"B.{target}"]
        a[target] = np.concatenate([stored_a[slot] for slot, _ in parts], axis=0)
        with np.errstate(over="ignore"):
            b[target] = np.concatenate(
                [stored_b[slot] * np.float32(w * scaled / alpha) for slot, w in parts], axis=1
            )
        if alpha > MAX_ALPHA or not np.isfinite(b[target]).all():
            raise InputError(
                f"{name!r} speaks through numbers that no adapter holds",
                path=cast.path / MANIFEST,
                place="alpha" if alpha > MAX_ALPHA else f"the weights of {name!r}",
                mend="Put back the file that `personae cast` wrote",
            )
    return PlainAdapter(a, b, rank, alpha)


def export_peft(
    cast: Cast, out: Path | str, *, names: Sequence[str] | None = None, own_only: bool = False
) -> Exported:
    """A directory per character that `peft.PeftModel.from_pretrained` loads.

    Each holds adapter_config.json, adapter_model.safetensors (float32), the system message of
    training and a README with the licences of data and base.

    Args:
        out: a directory that is absent or empty.
        names: whom; None: all of the cast.
        own_only: see `adapter_of`; characters without a block of their own are left out where
            `names` is None.

    Raises:
        UsageError: `out` holds something; a character is unknown or speaks through no block.
        OutputError: a file cannot be written; `out` is then as it was.
    """
    paths: dict[str, Path] = {}
    with _fresh(Path(out)) as work:
        for name, folder in _places(cast, names, own_only).items():
            _write_peft(cast, name, work / folder, own_only)
            paths[name] = Path(out) / folder
    return Exported(Path(out), paths, _notes(cast, paths, own_only))


def export_gguf(
    cast: Cast,
    out: Path | str,
    *,
    names: Sequence[str] | None = None,
    own_only: bool = False,
    base: str | None = None,
) -> Exported:
    """A GGUF LoRA file per character, for llama.cpp: `NAME.gguf`, and its README beside it.

    Args:
        base: where the base lies now; None: where it lay in training.

    Raises:
        UsageError: the architecture is neither llama nor qwen2; else see `export_peft`.
        InputError: the base is absent, or another one.
    """
    from personae.cast.base import base_of, base_ref, check_base
    from personae.cast.gguf_lora import heads_of, write_gguf_lora

    spec = base or base_of(cast)
    heads = heads_of(spec)
    check_base(cast.manifest.base, base_ref(spec), path=cast.path)
    paths: dict[str, Path] = {}
    with _fresh(Path(out)) as work:
        for name, folder in _places(cast, names, own_only).items():
            adapter = adapter_of(cast, name, own_only=own_only)
            write_gguf_lora(work / f"{folder}.gguf", adapter, heads, name=name)
            _write_words(cast, name, adapter, work, own_only, gguf=f"{folder}.gguf")
            paths[name] = Path(out) / f"{folder}.gguf"
    return Exported(Path(out), paths, _notes(cast, paths, own_only))


def export_vllm(
    cast: Cast, out: Path | str, *, names: Sequence[str] | None = None, base: str | None = None
) -> Exported:
    """PEFT directories, and serve.sh and serve.json, which start vLLM with the whole cast.

    vLLM batches requests to different adapters as long as all of them have a place on the GPU:
    `--max-loras` is the size of the cast (its own default is 1, and with too few places it swaps).
    `--max-lora-rank` is the smallest that it takes and that all adapters fit.

    Args:
        base: the model that vLLM loads; None: where it lay in training, and of `local` the name
            of its unquantised form on the hub.

    Raises:
        UsageError: the cast runs in mode `speaker`, which vLLM cannot (an adapter there works on
            all tokens of a request), or an adapter's rank is above 512; else see `export_peft`.
    """
    if cast.manifest.mode == "speaker":
        raise UsageError(
            "vLLM applies an adapter to every token of a request, and this cast was trained in "
            "mode speaker. Serve it with Personae, train with --mode full, or export with --to "
            "peft, which says what is lost."
        )
    paths: dict[str, Path] = {}
    with _fresh(Path(out)) as work:
        places = _places(cast, names, own_only=False)
        ranks = {}
        for name, folder in places.items():
            ranks[name] = _write_peft(cast, name, work / folder, own_only=False).rank
            paths[name] = Path(out) / folder
        rank = vllm_rank(max(ranks.values()))
        arguments = [
            "--enable-lora",
            "--max-loras", str(len(places)),
            "--max-cpu-loras", str(len(places)),
            "--max-lora-rank", str(rank),
            "--lora-modules",
            *(
                json.dumps({"name": name, "path": folder}, ensure_ascii=False)
                for name, folder in places.items()
            ),
        ]  # fmt: skip
        model = _base_name(cast, base)
        command = ["vllm", "serve", model, *arguments]
        plan = {"command": command, "model": model, "adapters": places, "ranks": ranks}
        write_atomically(work / "serve.json", json.dumps(plan, ensure_ascii=False, indent=1) + "\n")
        script = " \\\n  ".join(_lines(command))
        write_atomically(
            work / "serve.sh",
            '#!/bin/sh\n# Request a character by its name as "model".\nset -e\n'
            f'cd "$(dirname "$0")"\nexec {script} "$@"\n',
        )
        as_new(work / "serve.sh", runs=True)
    return Exported(Path(out), paths, _notes(cast, paths, own_only=False))


def _lines(command: Sequence[str]) -> list[str]:
    """A command quoted for the shell, each option with its value."""
    made: list[str] = []
    for part in command:
        quoted = shlex.quote(part)
        follows = made and made[-1].startswith("--max")
        if follows and " " not in made[-1]:
            made[-1] += f" {quoted}"
        else:
            made.append(quoted)
    return [" ".join(made[:3]), *made[3:]]


def vllm_rank(rank: int) -> int:
    """The smallest --max-lora-rank of vLLM that an adapter of this rank fits.

    Raises:
        UsageError: none does.
    """
    for allowed in VLLM_RANKS:
        if rank <= allowed:
            return allowed
    raise UsageError(f"an adapter has rank {rank}, and vLLM takes {VLLM_RANKS[-1]} at most")


# Parts -----------------------------------------------------------------------------------------


def _places(cast: Cast, names: Sequence[str] | None, own_only: bool) -> dict[str, str]:
    """Whom to export, with a folder's name for each."""
    if names is None:
        wanted = [
            one.name
            for one in cast.manifest.characters
            if any(one.weights.values()) and (not own_only or one.weights.get(one.name))
        ]
        if not wanted:
            raise UsageError(f"{cast.path}: no character has a block to export")
    else:
        wanted = list(dict.fromkeys(cast.character(name).name for name in names))
    taken: set[str] = set()
    return {name: file_name(name, taken) for name in wanted}


def _write_peft(cast: Cast, name: str, folder: Path, own_only: bool) -> PlainAdapter:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    adapter = adapter_of(cast, name, own_only=own_only)
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": _base_name(cast, None),
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        # In full: ends of names would find modules that were not adapted, where not all were.
        "target_modules": list(adapter.a),
    }
    write_atomically(folder / "adapter_config.json", json.dumps(config, indent=2) + "\n")
    tensors = {}
    for kind, matrices in (("A", adapter.a), ("B", adapter.b)):
        for module, matrix in matrices.items():
            key = f"base_model.model.{module}.lora_{kind}.weight"
            tensors[key] = np.ascontiguousarray(matrix)
    file = folder / "adapter_model.safetensors"
    try:
        save_file(tensors, str(file), metadata={"format": "pt"})
        as_new(file)
    except SafetensorError as error:
        raise OutputError(f"{file}: cannot be written ({error})") from None
    _write_words(cast, name, adapter, folder, own_only)
    return adapter


def _write_words(
    cast: Cast, name: str, adapter: PlainAdapter, folder: Path, own_only: bool, gguf: str = ""
) -> None:
    """README.md and system.txt of a character; of a GGUF file with its name before them."""
    from personae.cast.dialogue import profile_text
    from personae.cast.forgetting import profile_text as text_of
    from personae.cast.layout import system_text

    one = cast.character(name)
    card = cast.cards.get(name)
    language = written_in((text_of(card) if card else "") or name)
    system = system_text(name, language, profile_text(cast, name))
    before = gguf.removesuffix("gguf")
    write_atomically(folder / f"{before}system.txt", system + "\n")
    write_atomically(folder / f"{before}README.md", _readme(cast, one, adapter, own_only, gguf))


def _readme(
    cast: Cast, one: CastCharacter, adapter: PlainAdapter, own_only: bool, gguf: str
) -> str:
    used = {one.name: 1.0} if own_only else {b: w for b, w in one.weights.items() if w}
    sources = [
        {"block": block.name, **source.to_dict()}
        for block in cast.manifest.blocks
        if block.name in used
        for source in block.data
    ]
    restricted = _distinct(
        f"{s['source']} ({s['licence']})" for s in sources if is_non_commercial(s["licence"])
    )
    unknown = _distinct(s["source"] for s in sources if not s["licence"])
    if not sources:
        unknown = ["no source was recorded"]
    base = cast.manifest.base
    licences = {s["licence"] for s in sources} | {base.licence}
    only = next(iter(licences)) if len(licences) == 1 else None
    text: str = _template().render(
        name=one.name,
        gguf=gguf,
        how=one.how,
        rank=adapter.rank,
        alpha=adapter.alpha,
        version=__version__,
        base=_base_name(cast, None),
        base_is_local=base.id == "local",
        base_sha256=base.sha256,
        base_licence=base.licence or "unknown / 不明",
        licence=only.lower() if only and not restricted and not unknown else "other",
        blocks=", ".join(f"{block} {weight:g}" for block, weight in used.items()),
        notes=_notes_of(cast, one, own_only),
        sources=sources,
        restricted=restricted,
        unknown=unknown,
    )
    return text


def is_non_commercial(licence: str | None) -> bool:
    """Whether a licence's name says that commercial use is forbidden (`CC-BY-NC-4.0`)."""
    return licence is not None and bool(_NON_COMMERCIAL.search(licence.replace("_", "-")))


def _notes_of(cast: Cast, one: CastCharacter, own_only: bool) -> list[Note]:
    return [
        note
        for note, holds in (
            (SPEAKER_NOTE, cast.manifest.mode == "speaker"),
            (OWN_NOTE, own_only and one.weights != {one.name: 1.0}),
            (PROFILE_NOTE, one.how == "profile"),
            (LOCAL_NOTE, cast.manifest.base.id == "local"),
        )
        if holds
    ]


def _notes(cast: Cast, paths: Mapping[str, Path], own_only: bool) -> tuple[str, ...]:
    """The notes of all that were exported, and whom their licences bind."""
    made: dict[str, list[str]] = {}
    for name in paths:
        one = cast.character(name)
        for note in _notes_of(cast, one, own_only):
            made.setdefault(note.en, []).append(name)
        used = (name,) if own_only else tuple(b for b, w in one.weights.items() if w)
        data = [s for block in cast.manifest.blocks if block.name in used for s in block.data]
        if any(is_non_commercial(source.licence) for source in data):
            made.setdefault("Not for commercial use: so says the data's licence.", []).append(name)
        if not data or any(source.licence is None for source in data):
            made.setdefault("The licence of the training data is not known.", []).append(name)
    return tuple(
        note if len(whom) == len(paths) else f"{', '.join(whom)}: {note}"
        for note, whom in made.items()
    )


def _base_name(cast: Cast, given: str | None) -> str:
    name = given or cast.manifest.base.id
    if name == "local":
        return HUB_NAME_OF_LOCAL
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name


def _distinct(values: Any) -> list[str]:
    return list(dict.fromkeys(values))


@cache
def _template() -> Any:
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    environment = Environment(  # noqa: S701  (Markdown; `plain` guards what strangers wrote)
        undefined=StrictUndefined, trim_blocks=False, keep_trailing_newline=True
    )
    environment.filters["plain"] = _plain
    environment.filters["code"] = lambda text: " ".join(text.split()).replace("`", "'")
    environment.filters["yaml"] = lambda text: json.dumps(text, ensure_ascii=False)
    source = files("personae.data").joinpath("export/readme.md").read_text("utf-8")
    return environment.from_string(source)


def _plain(text: str) -> str:
    """A stranger's text on one line of Markdown, without marks of its own."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escaped)


@contextlib.contextmanager
def _fresh(out: Path) -> Iterator[Path]:
    """A directory to write into that becomes `out` when all went well."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} is not empty: give --out a directory that is new")
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            yield work
            as_new(work)
            if out.exists():
                out.rmdir()
            work.rename(out)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written ({error.strerror})") from None
