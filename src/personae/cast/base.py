"""The frozen model under a cast: `local`, or a Hugging Face directory.

`local` is the embedded model's GGUF, converted once into a Hugging Face directory in the cache. Of
a directory only `*.safetensors` and JSON are read: no pickle, and no code that it may bring.

The converted weights are kept in float16. Against the dequantised Q8_0 in float32 (786 tokens of
English, Chinese and a dialogue, computed in float32) they move the model's distribution by
3e-6 nats of mean Kullback-Leibler divergence and no greedy token; bfloat16 on disk by 9e-5, at
the same size; float32 is exact at twice the size. Blocks trained on them run on the Q8_0 file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.errors import InputError, UsageError, WeightsError
from personae.models.local import weights
from personae.records.cast import BaseModelRef
from personae.records.files import read_json, read_text

if TYPE_CHECKING:
    import torch

    from personae.cast.store import Cast

CONFIG, ADAPTER = "config.json", "adapter_config.json"
_CONVERSION = "float16/1"
"""Part of the name of a converted model: another conversion gets another directory."""
_MAX_FLOAT16 = 65_504
MAX_CONFIG = 4 * 2**20
_LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]{1,80})", re.MULTILINE)


@dataclass
class LoadedBase:
    """A frozen model, ready to bear a stack.

    Attributes:
        model: a transformers causal language model in `eval` mode, no gradients.
        tokenizer: its tokenizer, with a chat template.
        dtype: of the model's weights; blocks are float32 whatever it is.
    """

    model: Any
    tokenizer: Any
    ref: BaseModelRef
    dtype: torch.dtype

    @property
    def width(self) -> int:
        """The hidden size, by which learning rates are chosen (`TrainPlan.for_width`)."""
        width: int = self.model.get_input_embeddings().embedding_dim
        return width


def is_local(spec: str) -> bool:
    """Whether a base is a GGUF: `local`, `local:FILE.gguf`, `local:OWNER/REPO:FILE.gguf`."""
    return spec == "local" or spec.startswith("local:")


def base_ref(spec: str, *, progress: weights.Progress | None = None) -> BaseModelRef:
    """Which model a spec names; the weights are hashed, and nothing of torch is loaded.

    Args:
        spec: `local` and its kin, or a Hugging Face directory.
        progress: is told of a download, see `weights.pull`.

    Raises:
        InputError: the directory is no model, or holds weights that are pickles.
        WeightsError: `local` cannot be fetched.
    """
    if is_local(spec):
        from personae.models.local.header import read_header

        path = weights.pull(spec, progress)
        header = read_header(path)
        licence = weights.DEFAULT.licence if spec == "local" else header.get("general.license")
        return BaseModelRef(
            id=spec,
            sha256=weights.sha256_of(path),
            architecture=str(header.get("general.architecture", "unknown")),
            licence=licence,
        )
    folder = Path(spec).expanduser()
    config = read_config(folder)
    files = weight_files(folder)
    if len(files) == 1:
        digest = weights.sha256_of(files[0])
    else:
        whole = "".join(weights.sha256_of(file) for file in files)
        digest = hashlib.sha256(whole.encode("ascii")).hexdigest()
    return BaseModelRef(
        id=spec, sha256=digest, architecture=str(config["model_type"]), licence=_licence(folder)
    )


def base_of(cast: Cast) -> str:
    """Where the base of a cast lies, to be given to `load_base`.

    Raises:
        InputError: it lies there no longer.
    """
    spec = cast.manifest.base.id
    if not is_local(spec) and not Path(spec).expanduser().is_dir():
        raise InputError(
            f"the model under this cast is no longer at {spec}",
            path=cast.path,
            mend="Put it back there, a link will do; or write where it lies now into cast.json, "
            'under "base": "id" (its weights are checked). `cast add` and `export` take --base',
        )
    return spec


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a Hugging Face directory.

    Raises:
        InputError: there is none, it names no architecture, or wants code of its own.
    """
    file = folder / CONFIG
    if not folder.is_dir():
        raise InputError(
            "there is no such directory",
            path=folder,
            mend="Give a Hugging Face model directory, or local for the embedded model",
        )
    if not file.is_file():
        raise InputError(
            f"no Hugging Face model: there is no {CONFIG}",
            path=folder,
            mend="Give the directory that holds config.json and *.safetensors",
        )
    if (folder / ADAPTER).is_file():  # transformers would load it, and what it names, unasked
        raise InputError(
            f"there is an adapter beside the model ({ADAPTER})",
            path=folder,
            mend="Merge it into the model, or move it out of the directory",
        )
    config = read_json(file, limit=MAX_CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError("it names no model_type", path=file)
    if config.get("auto_map"):
        raise InputError(
            "this model wants to run code of its own (auto_map), which is never run",
            path=file,
            mend="Take a model whose architecture transformers knows",
        )
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a directory, by name.

    Raises:
        InputError: there are none.
    """
    files = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if not files:
        pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        raise InputError(
            "its weights are pickles, which can run code when they are read"
            if pickles
            else "there are no weights (*.safetensors)",
            path=folder,
            mend="Save it with save_pretrained(..., safe_serialization=True)",
        )
    return files


def _licence(folder: Path) -> str | None:
    """What the model card says, where there is one."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    try:
        head = read_text(card, limit=MAX_CONFIG).split("\n---", 1)[0]
    except InputError:
        return None
    found = _LICENCE.search(head) if head.startswith("---") else None
    return found[1] if found else None


def check_base(wanted: BaseModelRef, found: BaseModelRef, *, path: Path | None = None) -> None:
    """Blocks work on the weights that they were trained on, and on no others.

    Raises:
        InputError: the two differ.
    """
    if wanted.sha256 != found.sha256:
        raise InputError(
            f"the cast was trained on {wanted.id} (SHA-256 {wanted.sha256[:12]}...), and "
            f"{found.id} is another model ({found.sha256[:12]}...)",
            path=path,
            mend="Give the base that the cast was trained on",
        )


def load_base(
    spec: str,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    needs_template: bool = True,
    progress: weights.Progress | None = None,
) -> LoadedBase:
    """Load the frozen model of a spec.

    Args:
        spec: `local` and its kin, or a Hugging Face directory.
        dtype: None: bfloat16 where the hardware multiplies in it (CUDA; CPUs with AVX512-BF16 or
            AMX), else float32. bfloat16 without such hardware was 3.5 times slower than float32.
        device: None: CUDA where there is one, else the CPU.
        needs_template: whether the tokenizer must bring a chat template.
        progress: is told of a download and of a conversion.

    Raises:
        UsageError: torch or transformers is not installed, or the tokenizer has no chat template.
        InputError: the directory is no model that transformers can load.
        WeightsError: `local` cannot be fetched.
    """
    torch, transformers = torch_and_transformers()
    ref = base_ref(spec, progress=progress)
    folder = local_directory(spec, progress) if is_local(spec) else Path(spec).expanduser()
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind = dtype_of(dtype, place)
    read_config(folder)
    weight_files(folder)
    with quiet_transformers():
        try:
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=kind,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            )
        except Exception as error:  # noqa: BLE001  a stranger's files; readers raise many kinds
            raise InputError(
                f"transformers cannot load this model ({_first_line(error)})", path=folder
            ) from None
    if needs_template and not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"{spec}: its tokenizer has no chat template, so nobody can tell who speaks. Take the "
            "instruct version of the model."
        )
    model.requires_grad_(requires_grad=False)
    model.eval()
    return LoadedBase(model.to(place), tokenizer, ref, kind)


def local_directory(spec: str, progress: weights.Progress | None = None) -> Path:
    """The Hugging Face directory of `local` and its kin, converted where the cache lacks it.

    Converting takes half a minute of one core; the directory is moved into place whole, under a
    lock, so that a kill leaves nothing and two processes do it once.

    Raises:
        UsageError: torch, transformers or gguf is not installed.
        InputError: transformers does not know the architecture, or the file is damaged.
        WeightsError: the weights cannot be fetched or stored.
    """
    path = weights.pull(spec, progress)
    named = hashlib.sha256(f"{_CONVERSION}+{weights.sha256_of(path)}".encode()).hexdigest()[:32]
    folder = weights.cache_dir() / "bases"
    made = folder / f"{path.stem[:40]}-{named}"
    if (made / CONFIG).is_file():
        return made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock

        with FileLock(folder / ".lock"):
            if (made / CONFIG).is_file():  # another process did it while we waited
                return made
            for leftover in folder.glob(".partial-*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            if progress is not None:
                progress(f"converting {path.name} for training, once", None, None)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as scratch:
                work = Path(scratch) / "model"
                _convert(path, work)
                for file in work.iterdir():
                    with file.open("rb") as written:
                        os.fsync(written.fileno())
                work.rename(made)
    except OSError as error:
        raise WeightsError(
            f"{folder}: the converted model cannot be stored ({error.strerror or error}). It needs "
            f"{2 * path.stat().st_size // 1_000_000} MB there; free some, or set PERSONAE_CACHE to "
            "another folder."
        ) from error
    return made


def _convert(path: Path, folder: Path) -> None:
    """Write a GGUF as a Hugging Face directory: weights, config, tokenizer, chat template."""
    torch, transformers = torch_and_transformers()
    source = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    with quiet_transformers():
        try:
            # Its bar for dequantising is tqdm's own, which no verbosity governs.
            with contextlib.redirect_stderr(io.StringIO()):
                model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                    path.parent, dtype=torch.float32, **source
                )
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path.parent, **source)
        except Exception as error:  # noqa: BLE001  a stranger's file; its readers raise many kinds
            raise InputError(
                f"transformers cannot read this GGUF ({_first_line(error)})",
                path=path,
                mend="Take a Hugging Face directory of the same model",
            ) from None
        # What was dequantised on reading is an ordinary model; only its marks say otherwise, and
        # save_pretrained refuses because of them (transformers 5.23).
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        if all(bool((p.detach().abs() <= _MAX_FLOAT16).all()) for p in model.parameters()):
            model = model.to(torch.float16)
        model.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)


def torch_and_transformers() -> tuple[Any, Any]:
    """The two packages.

    Raises:
        UsageError: one of them is not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UsageError(
            f"a base model needs {error.name}: pip install 'personae[train]'"
        ) from None
    return torch, transformers


def dtype_of(dtype: torch.dtype | str | None, device: torch.device) -> torch.dtype:
    """The type of a model's weights on a device; None is what the hardware is fast in.

    Raises:
        UsageError: torch has no such type, or it is no float.
    """
    import torch

    if dtype is None:
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"{dtype!r} is no type of weights: float32, bfloat16 or float16")
    return found


def has_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are done by the hardware."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    ask = getattr(torch.cpu, "get_capabilities", None)  # since torch 2.10 or so
    flags = ask() if ask is not None else {}
    return bool(flags.get("avx512_bf16") or flags.get("amx_bf16"))


@contextlib.contextmanager
def still(model: Any) -> Iterator[None]:
    """Within it the model runs without dropout; then each of its modules is as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:  # one by one: blocks may learn where the base does not
            module.training = True


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Within it, transformers says nothing but errors and shows no bars; then all is as it was."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging  # its functions have no types
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
