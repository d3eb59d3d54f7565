"""What a cast is compared with: prompts, and adapters trained on the same rows by the same trainer.

* `base`: the cast's prompt and no blocks.
* `icl`: the whole profile in the prompt (in-context learning; Neeko, section 5.2).
* `rag`: the pieces of the profile that fit what was just asked, by BM25. Neeko's code puts the
  profile's first paragraph there, whatever is asked; this retrieves.
* `one_shared`: one LoRA for all, of as many parameters as all blocks of the cast together.
* `one_shared_active`: one of as many as work for one character.
* `one_per_character`: isolated blocks. A block of a stack is a PEFT adapter, and training it with
  the others is training PEFT's alone (tests/cast/test_stacked.py, tests/cast/test_train.py).
* `dense_gate`: Neeko's released code (`cast.densegate`).
* `retrained`: the cast's own plan, once a seed; what the others are held against where intervals
  are to cover the training's seed.

Each is trained on each character's budget of the plan. The scale alpha / rank is that of the cast
at every rank.

Trained methods lie in one folder: baselines.json (`records.cast_scores.KeptMethods`) and
`baselines/METHOD-SEED.safetensors`.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from pydantic import TypeAdapter

from personae.cast.densegate import DenseGate, dense_gate, speaks_as
from personae.cast.gate import first_paragraph, hashed
from personae.cast.plan import (
    Stage,
    TrainPlan,
    one_per_character,
    one_shared,
    slots_of,
    stages_of,
)
from personae.cast.profiles import Profiles, asked_terms, pieces_of
from personae.cast.stacked import StackedLoRA
from personae.cast.train import train
from personae.cast.training import spending
from personae.errors import InputError, UsageError
from personae.records import Character
from personae.records.base import content_hash
from personae.records.cast_scores import KeptMethod, KeptMethods, MethodName
from personae.records.files import read_json, write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from personae.cast.base import LoadedBase
    from personae.cast.encode import Encoded
    from personae.journal.flow import Watcher

Stack: TypeAlias = StackedLoRA | DenseGate
Encoder: TypeAlias = "Callable[[Sequence[str]], NDArray[Any]]"

TRAINED: tuple[MethodName, ...] = (
    "retrained",
    "one_shared",
    "one_shared_active",
    "one_per_character",
    "dense_gate",
)
PROMPTED: tuple[MethodName, ...] = ("icl", "rag")
PIECES = 5
"""Of a profile that retrieval puts into a prompt."""
FILE, FOLDER = "baselines.json", "baselines"
MAX_FILE = 16 * 2**20


@dataclass(frozen=True)
class Recipe:
    """How a method is trained.

    Attributes:
        plan: with the method's rank and alpha.
        stages: who trains what.
        weights: through which each character speaks when all is trained.
    """

    plan: TrainPlan
    stages: tuple[Stage, ...]
    weights: Mapping[str, Mapping[str, float]]


def recipe_of(method: MethodName, plan: TrainPlan, characters: Sequence[str]) -> Recipe:
    """How a method is trained on the plan of a cast.

    Args:
        plan: the cast's; its seed is the method's.

    Raises:
        UsageError: the method is not one that is trained.
    """
    own = stages_of(plan, characters)
    blocks, active = len(slots_of(own)), len(own[-1].weights[characters[0]])
    if method == "retrained":
        return Recipe(plan, own, own[-1].weights)
    if method in ("one_shared", "one_shared_active"):
        times = blocks if method == "one_shared" else active
        wide = replace(plan, rank=plan.rank * times, alpha=plan.alpha * times)
        rate = plan.lr if plan.protocol == "paper" else plan.shared_lr
        stages = one_shared(characters, rate)
        return Recipe(wide, stages, stages[-1].weights)
    if method == "one_per_character":
        stages = one_per_character(characters, plan.lr)
        return Recipe(plan, stages, stages[-1].weights)
    if method == "dense_gate":
        return Recipe(plan, dense_gate(characters, plan.lr), speaks_as(characters))
    raise UsageError(f"nothing is trained for {method!r}; for these it is: {', '.join(TRAINED)}")


@dataclass(frozen=True)
class TrainedMethod:
    """A method over the base's model, ready to speak; `stack.detach()` takes it off again."""

    stack: Stack
    weights: Mapping[str, Mapping[str, float]]
    kept: KeptMethod


class _Of:
    """A watcher whose stages say which method they are of; many methods have stages of one name."""

    def __init__(self, what: str, watcher: Watcher) -> None:
        self._what, self._watcher = what, watcher

    def begin(self, stage: str, total: int) -> None:
        self._watcher.begin(f"{self._what}: {stage}", total)

    def step(self, stage: str) -> None:
        self._watcher.step(f"{self._what}: {stage}")


def train_method(
    base: LoadedBase,
    method: MethodName,
    encoded: Mapping[str, Sequence[Encoded]],
    plan: TrainPlan,
    folder: Path,
    *,
    cards: Mapping[str, Character] | None = None,
    encoder: Encoder = hashed,
    watcher: Watcher | None = None,
) -> TrainedMethod:
    """Train one method and keep it in a folder. Where this raises, the model is bare again.

    Args:
        encoded: the cast's training rows by character.
        plan: the cast's, with the seed that is wanted.
        folder: of baselines.json.
        cards: of all characters; the dense gate needs them.
        encoder: of profiles' first paragraphs, for the dense gate.

    Raises:
        UsageError: the dense gate without a card of each character; rows that do not fit the plan.
        OutputError: it cannot be kept.
    """
    characters = tuple(encoded)
    recipe = recipe_of(method, plan, characters)
    stack: Any = _gate(base, recipe, characters, cards or {}, encoder, method)
    try:
        with spending(base) as cost:
            trained = train(
                base,
                encoded,
                recipe.plan,
                stages=recipe.stages,
                stack=stack,
                watcher=_Of(f"{method}, seed {plan.seed}", watcher) if watcher else None,
            )
        assert cost.spent is not None
        stack = trained.stack
        name = f"{FOLDER}/{method}-{plan.seed}.safetensors"
        tensors = stack.state()
        every = sum(tensor.size for tensor in tensors.values())  # not of room for more slots
        working = len([w for w in recipe.weights[characters[0]].values() if w])
        entry = KeptMethod(
            method=method,
            seed=plan.seed,
            rank=recipe.plan.rank,
            alpha=recipe.plan.alpha,
            slots=stack.roles if isinstance(stack, DenseGate) else stack.slots,
            parameters=every,
            active=every if isinstance(stack, DenseGate) else every // len(stack.slots) * working,
            tokens=sum(step.tokens for step in trained.history if step.loss is not None),
            seconds=cost.spent.seconds,
            peak_bytes=cost.spent.peak_bytes,
            recipe=recipe_hash(method, recipe, encoded, cards or {}),
            file=name,
            sha256=_write(folder / name, tensors),
        )
        others = [k for k in read_kept(folder) if (k.method, k.seed) != (method, plan.seed)]
        found = KeptMethods(methods=(*others, entry))
        write_atomically(folder / FILE, found.to_json() + "\n")
    except BaseException:  # whatever it is, the next method finds a bare model
        if stack is not None:
            stack.detach()
        raise
    return TrainedMethod(stack, recipe.weights, entry)


def open_method(
    base: LoadedBase,
    method: MethodName,
    encoded: Mapping[str, Sequence[Encoded]],
    plan: TrainPlan,
    folder: Path,
    *,
    cards: Mapping[str, Character] | None = None,
    encoder: Encoder = hashed,
) -> TrainedMethod | None:
    """A method that was trained already by the same recipe on the same rows; None: there is none.

    Args: as of `train_method`.

    Raises:
        InputError: what is kept is damaged.
    """
    characters = tuple(encoded)
    recipe = recipe_of(method, plan, characters)
    wanted = recipe_hash(method, recipe, encoded, cards or {})
    entry = next(
        (
            kept
            for kept in read_kept(folder)
            if (kept.method, kept.seed, kept.recipe) == (method, plan.seed, wanted)
        ),
        None,
    )
    if entry is None:
        return None
    stack: Any = _gate(base, recipe, characters, cards or {}, encoder, method)
    if stack is None:
        stack = StackedLoRA(
            base.model,
            entry.slots,
            rank=entry.rank,
            alpha=entry.alpha,
            targets=recipe.plan.targets,
        )
    try:
        stack.load_state(_read(folder, entry))
    except (UsageError, InputError):
        stack.detach()
        raise
    return TrainedMethod(stack, recipe.weights, entry)


def read_kept(folder: Path) -> tuple[KeptMethod, ...]:
    """The methods that a folder keeps; none where it has no baselines.json.

    Raises:
        InputError: the file is none of ours.
    """
    file = folder / FILE
    if not file.is_file():
        return ()
    found = KeptMethods.from_dict(read_json(file, limit=MAX_FILE), path=file).methods
    for kept in found:
        name = PurePosixPath(kept.file)
        if name.parts != (FOLDER, name.name) or "\\" in kept.file:
            raise InputError(f"{kept.file!r} is no file in {FOLDER}/", path=file)
    return found


def recipe_hash(
    method: MethodName,
    recipe: Recipe,
    encoded: Mapping[str, Sequence[Encoded]],
    cards: Mapping[str, Character],
) -> str:
    """The hash of all that a training depends on, but the base and the device."""
    stages = [
        [s.name, {n: dict(w) for n, w in s.weights.items()}, list(s.trains), s.lr, s.share]
        for s in recipe.stages
    ]
    given = asdict(TypeAdapter(TrainPlan).validate_python(asdict(recipe.plan)))  # 3 epochs are 3.0
    plan = {name: value for name, value in given.items() if name != "micro_tokens"}
    rows = hashlib.sha256()
    for name, of_it in encoded.items():
        rows.update(f"{name}\0{len(of_it)}\0".encode())
        for row in of_it:
            rows.update(np.asarray(row.ids, dtype=np.int64).tobytes())
            rows.update(np.asarray(row.supervised, dtype=np.bool_).tobytes())
            rows.update("\0".join(speaker or "" for speaker in row.speaker).encode())
    roles = {n: first_paragraph(c) for n, c in cards.items()} if method == "dense_gate" else {}
    return content_hash([method, plan, stages, rows.hexdigest(), roles])


def _gate(
    base: LoadedBase,
    recipe: Recipe,
    characters: Sequence[str],
    cards: Mapping[str, Character],
    encoder: Encoder,
    method: MethodName,
) -> DenseGate | None:
    """The dense gate over the model; None for every other method."""
    if method != "dense_gate":
        return None
    if without := [name for name in characters if name not in cards]:
        raise UsageError(
            f"the dense gate sees a role through its profile, and {without[0]!r} has no card"
        )
    return DenseGate(
        base.model,
        characters,
        encoder([first_paragraph(cards[name]) for name in characters]),
        rank=recipe.plan.rank,
        alpha=recipe.plan.alpha,
        targets=recipe.plan.targets,
        dropout=recipe.plan.dropout,
        seed=recipe.plan.seed,
    )


def _write(file: Path, tensors: Mapping[str, np.ndarray]) -> str:
    from safetensors.numpy import save

    raw = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    write_atomically(file, raw)
    return hashlib.sha256(raw).hexdigest()


def _read(folder: Path, entry: KeptMethod) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    from personae.models.local.weights import sha256_of

    file = folder / entry.file
    mend = f"Delete it and {folder / FILE}: it is trained again"
    try:
        if not file.resolve().is_relative_to(folder.resolve()):
            raise InputError("a link to a file outside of the folder", path=file, mend=mend)
        if sha256_of(file) != entry.sha256:
            raise InputError(f"not the file that {FILE} describes", path=file, mend=mend)
        found = load_file(str(file))
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot be read ({error})", path=file, mend=mend) from None
    if any(t.dtype != np.float32 or not np.isfinite(t).all() for t in found.values()):
        raise InputError("it holds what is no finite float32", path=file, mend=mend)
    return found


class Retriever:
    """Finds the pieces of a profile that fit what is asked (BM25 of `cast.profiles`).

    Args:
        card: of the character.
    """

    def __init__(self, card: Character) -> None:
        self.pieces = pieces_of(card)
        alone = {str(n): (piece,) for n, piece in enumerate(self.pieces)}
        nothing: dict[str, tuple[str, ...]] = dict.fromkeys(alone, ())
        self._index = Profiles(alone, nothing, nothing, nothing)

    def top(self, asked: str, *, answer: str = "", most: int = PIECES) -> tuple[str, ...]:
        """The pieces that fit best, the best first; none that shares no term with what is asked.

        Args:
            asked: what was said since the character spoke last.
            answer: what it says then; a piece that holds it is passed over, or the prompt would
                give away what is to be predicted.
        """
        if not self.pieces:
            return ()
        scores, _ = self._index.fit(asked_terms(asked))
        told = " ".join(answer.split()).casefold()
        order = [n for n in np.argsort(-scores, kind="stable").tolist() if scores[n] > 0]
        fitting = [
            self.pieces[n]
            for n in order
            if not told or told not in " ".join(self.pieces[n].split()).casefold()
        ]
        return tuple(fitting[:most])
