"""A cast on disk: one directory, read carefully, written whole or not at all.

::

    CAST/
      cast.json            the manifest (`records.cast.CastManifest`)
      blocks.safetensors   A.<module> [S, r, in] and B.<module> [S, out, r], float32
      router.json          who is meant (`cast.router`)
      gate.json            the paper's gate, under `--protocol paper`
      cards/NAME.json      the characters' cards

Other files in the directory (plots, checkpoints) are left alone. What a cast holds is described in
docs/cast-format.md. Nothing here needs torch; `attach` loads it.

Writing: the whole new cast is put into a hidden directory, which is then renamed to `.commit`. From
that moment on the new cast is what a reader finds; its files are then brought to their places and
`.commit` is removed. A kill at any moment leaves the old cast or the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from personae import __version__
from personae.cast.gate import PaperRouter
from personae.cast.plan import PLAN, TRAINING
from personae.cast.router import RoleProfile, Router, profile_of
from personae.characters.card import card_from_bytes, card_of
from personae.errors import InputError, OutputError, UsageError
from personae.records import Character
from personae.records.base import content_hash
from personae.records.cast import (
    BaseModelRef,
    Block,
    CastCharacter,
    CastManifest,
    CastProtocol,
    Mode,
    Routed,
)
from personae.records.files import as_new, read_bytes, read_json, write_atomically

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.stacked import StackedLoRA

MANIFEST, BLOCKS, ROUTER, GATE = "cast.json", "blocks.safetensors", "router.json", "gate.json"
CARDS, ADDITIONS = "cards", "additions"
COMMIT, LOCK = ".commit", ".lock"
MAX_MANIFEST = 16 * 2**20
MAX_CARD = 16 * 2**20
MAX_BLOCKS = 64 * 2**30
MAX_TENSORS = 100_000
_PLAIN_NAME = re.compile(r"[^\W_][\w-]{0,63}")


@dataclass(frozen=True)
class Cast:
    """A cast as it was read.

    Attributes:
        tensors: `A.<module>` `[S, r, in]` and `B.<module>` `[S, out, r]`, float32, for each of the
            manifest's targets and in their order.
        cards: by the character's name in the manifest; not every character has one.
        gate: the paper's gate, where the cast has one.
    """

    path: Path
    manifest: CastManifest
    tensors: Mapping[str, np.ndarray] = field(repr=False)
    router: Router = field(repr=False)
    cards: Mapping[str, Character] = field(repr=False)
    gate: PaperRouter | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The characters, in their order."""
        return tuple(character.name for character in self.manifest.characters)

    def character(self, name: str) -> CastCharacter:
        """The character of that name.

        Raises:
            UsageError: the cast has none; names those that it has.
        """
        found = self.manifest.of(name)
        if found is None:
            raise UsageError(
                f"{self.path}: no character is named {name!r}; there are {', '.join(self.names)}"
            )
        return found

    def route(self, instruction: str, *, previous: str | None = None) -> Routed:
        """Who an instruction asks for: by the gate under the paper's protocol, else the router.

        Raises:
            UsageError: `previous` is not of the cast.
        """
        chosen: Router | PaperRouter = self.router
        if self.manifest.protocol == "paper" and self.gate is not None:
            chosen = self.gate
        return chosen.route(instruction, previous=previous)


def attach(base: LoadedBase, cast: Cast) -> StackedLoRA:
    """The cast's blocks over a loaded model, whose linear modules are replaced in place.

    Raises:
        InputError: the model is not the one that the cast was trained on, or its modules do not
            fit the blocks.
    """
    from personae.cast.base import check_base
    from personae.cast.stacked import StackedLoRA

    manifest = cast.manifest
    check_base(manifest.base, base.ref, path=cast.path / MANIFEST)
    try:
        stack = StackedLoRA(
            base.model,
            [block.name for block in manifest.blocks],
            rank=manifest.rank,
            alpha=manifest.alpha,
            targets=manifest.targets,
        )
        try:
            stack.load_state(cast.tensors)
        except UsageError:
            stack.detach()
            raise
    except UsageError as error:
        raise InputError(
            str(error),
            path=cast.path / BLOCKS,
            mend=f"Take the model that the cast was trained on: {manifest.base.id}",
        ) from None
    return stack


# Reading ---------------------------------------------------------------------------------------


def read_cast(path: Path | str, *, blocks: bool = True) -> Cast:
    """The cast of a directory.

    Nothing in it is trusted: sizes are capped, cards lie inside of it, and blocks are finite
    float32 of the shapes that the manifest gives, with its hash.

    Args:
        blocks: False leaves them on disk, unchecked, for who runs them elsewhere: `tensors` is {}.

    Raises:
        InputError: a file is absent, damaged, foreign or does not fit the others; names it and
            what mends it.
        UsageError: safetensors is not installed.
    """
    path = Path(path)
    for attempt in (1, 2):
        state = _state(path)
        try:
            return _read(path, _source(path), blocks)
        except InputError:
            # A writer may have been at work: what was read belonged to two casts.
            if attempt == 2 or _state(path) == state:
                raise
    raise AssertionError


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    """Around an import: what is missing is said with how to get it."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"a cast on disk needs {error.name}: pip install 'personae[train]'"
        ) from None


def _state(path: Path) -> tuple[object, ...]:
    seen: list[object] = []
    for file in (path / COMMIT / MANIFEST, path / MANIFEST):
        try:
            found = file.stat()
            seen.append((found.st_ino, found.st_mtime_ns))
        except OSError:
            seen.append(None)
    return tuple(seen)


def no_cast(path: Path) -> InputError:
    """The error of a directory without cast.json: nothing of ours, or a training under way."""
    if (path / TRAINING / PLAN).is_file():
        return InputError(
            "the training of this cast is not finished",
            path=path / TRAINING,
            mend="Give the same `personae cast train` again: it goes on where it stopped",
        )
    return InputError(
        "this directory holds no cast",
        path=path / MANIFEST,
        mend="Give the directory that `personae cast train` wrote with --out",
    )


def _source(path: Path) -> Path:
    """Where the valid files are: a committed cast counts before its files are in their places."""
    committed = path / COMMIT
    there = (committed / MANIFEST).is_file() and not committed.is_symlink()
    return committed if there else path


def _read(path: Path, source: Path, blocks: bool) -> Cast:
    file = source / MANIFEST
    if not file.is_file():
        raise no_cast(path)
    manifest = CastManifest.from_dict(read_json(file, limit=MAX_MANIFEST), path=file)
    tensors = _read_blocks(source / BLOCKS, manifest) if blocks else {}
    cards = {
        character.name: _read_card(source, character)
        for character in manifest.characters
        if character.card is not None
    }
    router_file, gate_file = source / ROUTER, source / GATE
    router = Router.from_dict(read_json(router_file), path=router_file)
    _of_this_cast(router.roles, manifest, router_file)
    gate = None
    if gate_file.is_file():
        gate = PaperRouter.from_dict(read_json(gate_file), path=gate_file)
        _of_this_cast(gate.roles, manifest, gate_file)
    return Cast(path, manifest, tensors, router, cards, gate)


def _of_this_cast(roles: Sequence[str], manifest: CastManifest, file: Path) -> None:
    names = [character.name for character in manifest.characters]
    if odd := sorted(set(roles) ^ set(names)):
        raise InputError(
            f"it does not know the characters of {MANIFEST}: {odd[0]!r} is in one of the two only",
            path=file,
            mend="Both files belong to one cast: put back the copy that goes with it",
        )


def _read_blocks(file: Path, manifest: CastManifest) -> dict[str, np.ndarray]:
    with _installed():
        from safetensors import SafetensorError, safe_open

    _check_file(file, MAX_BLOCKS)
    if _sha256(file) != manifest.blocks_sha256:
        raise InputError(
            f"these are not the blocks that {MANIFEST} describes (another SHA-256)",
            path=file,
            mend="Put back the copy that goes with it, or train the cast again",
        )
    wanted = [f"{kind}.{target}" for target in manifest.targets for kind in ("A", "B")]
    found: dict[str, np.ndarray] = {}
    try:
        with safe_open(str(file), framework="np") as tensors:
            _check_names(file, list(tensors.keys()), wanted)
            for name in wanted:
                dtype = tensors.get_slice(name).get_dtype()
                if dtype != "F32":
                    raise InputError(
                        f"{name} is of type {dtype}, and blocks are F32", path=file, place=name
                    )
                found[name] = tensors.get_tensor(name)
    except SafetensorError as error:
        raise InputError(
            f"no whole safetensors file ({error})",
            path=file,
            mend="Put back a whole copy, or train the cast again",
        ) from None
    check_tensors(
        found, slots=len(manifest.blocks), rank=manifest.rank, targets=manifest.targets, path=file
    )
    return found


def _check_names(file: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    if len(names) > MAX_TENSORS:
        raise InputError(f"{len(names):,} tensors, more than {MAX_TENSORS:,}", path=file)
    if odd := sorted(set(names) ^ set(wanted)):
        has = "lacks" if odd[0] in wanted else "has besides"
        raise InputError(f"next to the targets in {MANIFEST} it {has} {odd[0]!r}", path=file)


def check_tensors(
    tensors: Mapping[str, np.ndarray],
    *,
    slots: int,
    rank: int,
    targets: Sequence[str],
    path: Path | None = None,
) -> None:
    """Whether blocks are whole: float32, finite, `A [S, r, in]` and `B [S, out, r]` of each target.

    Raises:
        InputError: names the tensor.
    """
    for target in targets:
        for kind in ("A", "B"):
            name = f"{kind}.{target}"
            found = tensors.get(name)
            if found is None:
                raise InputError("there is no such tensor", path=path, place=name)
            ranks_at = 1 if kind == "A" else 2
            shape = tuple(found.shape)
            if len(shape) != 3 or shape[0] != slots or shape[ranks_at] != rank or 0 in shape:
                form = f"{slots}, {rank}, in" if kind == "A" else f"{slots}, out, {rank}"
                raise InputError(
                    f"its shape is {list(shape)}, and it must be [{form}]", path=path, place=name
                )
            if found.dtype != np.float32:
                raise InputError(f"{found.dtype}, not float32", path=path, place=name)
            if not np.isfinite(found).all():
                raise InputError(
                    "it holds values that are no numbers (NaN or infinite)",
                    path=path,
                    place=name,
                    mend="Train again with a lower --lr",
                )


def _read_card(source: Path, character: CastCharacter) -> Character:
    place = f"the card of {character.name!r}"
    assert character.card is not None
    given = PurePosixPath(character.card)
    file = source / CARDS / given.name
    if given.parts != (CARDS, given.name) or given.name in ("", ".", "..") or "\\" in given.name:
        raise InputError(
            f"{character.card!r} is no file in {CARDS}/", path=source / MANIFEST, place=place
        )
    if not file.resolve().is_relative_to(source.resolve()):
        raise InputError(
            "a link to a file outside of the cast, which is not followed",
            path=file,
            mend="Put a copy in its place",
        )
    card = card_from_bytes(read_bytes(file, limit=MAX_CARD), path=file).character
    if content_hash(card.to_dict()) != character.card_hash:
        raise InputError(
            f"this is not the card that {MANIFEST} describes (another hash)",
            path=file,
            mend="Put the old card back; a cast made anew takes a new card",
        )
    return card


def _check_file(file: Path, limit: int) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=file) from None
    if not file.is_file():
        raise InputError("not a regular file", path=file)
    if size > limit:
        raise InputError(f"{size:,} bytes, more than the {limit:,} allowed", path=file)


def _sha256(file: Path) -> str:
    from personae.models.local.weights import sha256_of

    try:
        return sha256_of(file)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=file) from None


# Writing ---------------------------------------------------------------------------------------


def router_for(characters: Sequence[CastCharacter], cards: Mapping[str, Character]) -> Router:
    """A router for a cast: what the cards say, and of a character without one its names alone.

    Raises:
        UsageError: there is no character.
    """
    return Router(
        {
            one.name: profile_of(cards[one.name], (one.name, *one.aliases))
            if one.name in cards
            else RoleProfile(names=(one.name, *one.aliases))
            for one in characters
        }
    )


def write_cast(
    path: Path | str,
    *,
    base: BaseModelRef,
    rank: int,
    alpha: float,
    blocks: Sequence[Block],
    characters: Sequence[CastCharacter],
    tensors: Mapping[str, np.ndarray],
    cards: Mapping[str, Character] | None = None,
    mode: Mode = "full",
    protocol: CastProtocol = "personae",
    seed: int = 0,
    router: Router | None = None,
    gate: PaperRouter | None = None,
    onto: CastManifest | None = None,
) -> Cast:
    """Write a cast; one that is there already is replaced whole, or stays.

    Args:
        blocks: in the order of the tensors' slots.
        characters: `card` and `card_hash` are set here, from `cards`.
        tensors: what `StackedLoRA.state` gives; the targets are its modules, in its order.
        cards: by the characters' names.
        router: None makes one (`router_for`).
        onto: the manifest that the new cast was made from; None: whatever there is is replaced.

    Returns:
        The cast as it is read back.

    Raises:
        InputError: the parts do not fit each other, a tensor is not finite, or the cast on disk is
            not `onto` any more: somebody else wrote to it meanwhile, and nothing of theirs is lost.
        OutputError: the directory cannot be written; what was there is still there.
    """
    path, cards = Path(path), dict(cards or {})
    if strange := [name for name in cards if name not in {one.name for one in characters}]:
        raise InputError(f"a card for {strange[0]!r}, who is not of the cast")
    targets = tuple(name[2:] for name in tensors if name.startswith("A."))
    check_tensors(tensors, slots=len(blocks), rank=rank, targets=targets)
    router = router or router_for(characters, cards)
    with _staged(path) as work:
        if onto is not None:
            _still(path, onto)
        named = _with_cards(characters, cards, work)
        digest = _write_blocks(work / BLOCKS, tensors, targets)
        manifest = CastManifest.from_dict(
            {
                "version": __version__,
                "base": base.to_dict(),
                "rank": rank,
                "alpha": alpha,
                "targets": targets,
                "mode": mode,
                "protocol": protocol,
                "seed": seed,
                "blocks": [block.to_dict() for block in blocks],
                "characters": [one.to_dict() for one in named],
                "blocks_sha256": digest,
            }
        )
        for file, made in ((ROUTER, router), (GATE, gate)):
            if made is not None:
                _of_this_cast(made.roles, manifest, path / file)
                write_atomically(work / file, _json(made.to_dict()))
        write_atomically(work / MANIFEST, _json(manifest.to_dict()))
    return read_cast(path)


def _still(path: Path, onto: CastManifest) -> None:
    file = path / MANIFEST
    if CastManifest.from_dict(read_json(file, limit=MAX_MANIFEST), path=file) != onto:
        raise InputError(
            "the cast was changed while this one was made from it",
            path=file,
            mend="Run the command again, on the cast as it is now",
        )


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _with_cards(
    characters: Sequence[CastCharacter], cards: Mapping[str, Character], work: Path
) -> list[CastCharacter]:
    taken: set[str] = set()
    made = []
    for one in characters:
        card, digest = None, None
        if one.name in cards:
            card = f"{CARDS}/{file_name(one.name, taken)}.json"
            raw = card_of(cards[one.name]).to_bytes()
            write_atomically(work / card, raw)
            digest = content_hash(card_from_bytes(raw, path=card).character.to_dict())
        made.append(one.model_copy(update={"card": card, "card_hash": digest}))
    return made


def file_name(name: str, taken: set[str]) -> str:
    """A file name without ending for a character: its own where every file system bears that.

    Args:
        taken: names given out so far in the same folder, folded; the new one is added.
    """
    stem = name.replace(" ", "-")
    if not _PLAIN_NAME.fullmatch(stem) or len(stem.encode()) > 160:
        stem = "-".join(re.findall(r"\w+", name))[:40] or "character"
        stem = f"{stem}-{content_hash(name)[:8]}"
    if stem.casefold() in taken:
        stem = f"{stem}-{content_hash(name)[:8]}"
    taken.add(stem.casefold())
    return stem


def _write_blocks(file: Path, tensors: Mapping[str, np.ndarray], targets: Sequence[str]) -> str:
    with _installed():
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

    ordered = {
        f"{kind}.{target}": np.ascontiguousarray(tensors[f"{kind}.{target}"])
        for target in targets
        for kind in ("A", "B")
    }
    try:
        save_file(ordered, str(file), metadata={"format": "personae-cast/1"})
        as_new(file)  # safetensors writes for the owner's eyes alone
    except SafetensorError as error:
        raise OutputError(f"{file}: cannot be written ({error})") from None
    return _sha256(file)


@contextlib.contextmanager
def _staged(path: Path) -> Iterator[Path]:
    """A hidden directory to write a whole cast into; on leaving, it becomes the cast at `path`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _no_links(path)
        with _one_writer(path):
            _finish(path)  # of a writer that was killed
            for leftover in path.glob(".partial-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=".partial-", dir=path))
            try:
                yield work
                _sync(work)
                work.rename(path / COMMIT)  # from here on it is the new cast
                with contextlib.suppress(OSError):  # it is read where it is; the next writer may
                    _finish(path)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            f"{path}: the cast cannot be written ({error.strerror}); the one that was there is "
            "still there. Mend that and run the command again."
        ) from None


@contextlib.contextmanager
def _one_writer(path: Path) -> Iterator[None]:
    with _installed():
        from filelock import FileLock

    with FileLock(path / LOCK):
        yield


def _no_links(path: Path) -> None:
    """Nothing outside of a stranger's cast is written, emptied or deleted by writing to it."""
    for name in (CARDS, ADDITIONS, COMMIT, LOCK):
        if (path / name).is_symlink():
            raise InputError(
                "a link, and a cast is not written through links",
                path=path / name,
                mend="Remove it, or put a copy in its place",
            )


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


def _finish(path: Path) -> None:
    """Bring a committed cast's files to their places; a killed writer's work is taken up."""
    committed = path / COMMIT
    if not (committed / MANIFEST).is_file():
        shutil.rmtree(committed, ignore_errors=True)  # its files are in their places
        return
    fresh = sorted(p.relative_to(committed) for p in committed.rglob("*") if p.is_file())
    for name in fresh:
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _place(committed / name, target)
    for old in (path / GATE, *(path / CARDS).glob("*.json")):
        if old.relative_to(path) not in fresh:
            old.unlink(missing_ok=True)
    (committed / MANIFEST).unlink()
    shutil.rmtree(committed, ignore_errors=True)


def _place(source: Path, target: Path) -> None:
    beside = target.with_name(f".{target.name}.new")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, beside)
    os.replace(beside, target)  # noqa: PTH105  (Path.replace is the same call)
