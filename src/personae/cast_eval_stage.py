"""The stage `personae cast eval`: a cast on held-out dialogues, beside what it is compared with.

The folder of an evaluation holds manifest.json, results.jsonl (a line for each dialogue and
character, each switch, each method and seed), scores.json, report.html, refused.jsonl (what of the
data is no dialogue), times.json, and the methods that were trained for it (`cast.baselines`).
docs/cast-evaluation.md says what each figure is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import NonNegativeFloat, TypeAdapter, ValidationError

from personae import __version__
from personae.cast.add import added_rows
from personae.cast.plan import ROWS, TRAINING
from personae.cast.rows import data_sources, read_rows
from personae.cast.scores import (
    ENOUGH_ROWS,
    ENOUGH_SEEDS,
    Line,
    differences,
    method_scores,
    read_lines,
    write_lines,
)
from personae.cast.store import BLOCKS, Cast, read_cast
from personae.cast.training import read_spent, read_training
from personae.errors import InputError, UsageError
from personae.journal.flow import NoWatcher, Watcher
from personae.records import Failure, Language, Manifest
from personae.records.base import content_hash, explain
from personae.records.cast import CastCharacter, CastRow, Mode
from personae.records.cast_scores import (
    CastScores,
    Consumption,
    ConsumptionOf,
    DialogueScore,
    HeldOut,
    KeptMethod,
    LiftScore,
    MethodName,
)
from personae.records.files import read_json, write_atomically
from personae.reports.cast import write_page
from personae.session import MANIFEST, REPORT, RESULTS, new_manifest, read_manifest

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.densegate import DenseGate
    from personae.cast.evaluate import MethodLines, Weights
    from personae.cast.heldout import Way
    from personae.cast.plan import TrainPlan
    from personae.cast.stacked import StackedLoRA


KIND = "cast eval"
SCORES, TIMES, REFUSED = "scores.json", "times.json", "refused.jsonl"
MAX_TOKENS = 1024
_LONGEST = 8192


@dataclass(frozen=True)
class Evaluated:
    """What `personae cast eval` leaves in its folder.

    Attributes:
        path: of scores.json, results.jsonl, refused.jsonl, report.html and manifest.json.
    """

    path: Path
    scores: CastScores
    lines: tuple[Line, ...]


def evaluate_cast(
    cast_path: Path,
    data: Iterable[Path],
    out: Path,
    *,
    baselines: bool = False,
    seeds: int | None = None,
    lift: bool = False,
    language: Language = "en",
    max_tokens: int = MAX_TOKENS,
    batch_tokens: int | None = None,
    base: LoadedBase | None = None,
    dtype: str | None = None,
    device: str | None = None,
    watcher: Watcher | None = None,
) -> Evaluated:
    """Evaluate a cast on held-out dialogues (`personae cast eval`).

    Without `baselines`: the cast as given, and its base. With them also the prompt methods, and the
    trained methods of `cast.baselines`: those that the cast keeps, else they are trained on the
    rows that the cast keeps and are kept in `out`. Call again after an interruption: methods that
    are done are not scored again. What an earlier call into `out` asked for is asked for again.

    Args:
        data: files and folders of held-out dialogues, in any shape that training takes.
        out: a run's folder; made where it is not there.
        seeds: train each method (the cast's own among them) with seeds 0 to N - 1, so that
            intervals cover what training varies by; None: once, with the cast's seed.
        lift: also have the cast and its base answer the held-out questions, and give the answers'
            persona lift (`cast.lifted`).
        language: of the report.
        max_tokens: longer dialogues lose turns from their front.
        base: the cast's, where it is loaded already.

    Raises:
        UsageError: seeds without baselines; nobody of the cast speaks in the data.
        InputError: data, cast or base cannot be used; `out` holds another evaluation; baselines are
            asked for and the cast does not keep what it was trained on.
        OutputError: the results cannot be written.
    """
    from personae.cast.base import base_of, load_base

    if seeds is not None and not baselines:
        raise UsageError("--seeds trains what the cast is compared with: give --baselines too")
    if seeds is not None and seeds < 1:
        raise UsageError("--seeds counts from 1")
    baselines, seeds, lift = _asked_so_far(out, baselines, seeds, lift)
    found = read_cast(cast_path)
    paths = [Path(path) for path in data]
    rows, refused = _held_out(paths, found)
    training = _Training.read(found) if baselines else _Training.kept(found)
    trained = training.rows if training is not None else ()
    _check_unseen(rows, (*trained, *added_rows(found.path)), found.path)
    run = _Run.opened(
        out,
        found,
        rows,
        language,
        {
            "cast": str(cast_path),
            "data": [str(path) for path in paths],
            "max_tokens": max_tokens,
            "baselines": baselines,
            "seeds": seeds,
            "lift": lift,
            "cwd": str(Path.cwd()),
        },
    )
    write_atomically(out / REFUSED, (one.to_json() + "\n" for one in refused))
    loaded = base or load_base(base_of(found), dtype=dtype, device=device)
    session = _Session(found, rows, loaded, max_tokens, batch_tokens, watcher or NoWatcher(), run)
    session.given(lift=lift)
    if baselines and training is not None:
        session.prompts()
        wanted = [found.manifest.seed] if seeds is None else list(range(seeds))
        for seed in wanted:
            for method in _trained_methods(seeds):
                session.trained(method, replace(training.plan, seed=seed), training.rows)
    scores = session.scores(len(refused))
    run.finish(scores, language)
    return Evaluated(out, scores, tuple(run.lines))


def _asked_so_far(
    out: Path, baselines: bool, seeds: int | None, lift: bool
) -> tuple[bool, int | None, bool]:
    """With what an earlier call into the same folder asked for: its figures stay whole."""
    if not (out / MANIFEST).is_file():
        return baselines, seeds, lift
    old = read_manifest(out)
    if old.kind != KIND:  # `_Run.opened` refuses it
        return baselines, seeds, lift
    before = old.arguments
    counted = [n for n in (seeds, before.get("seeds")) if isinstance(n, int)]
    return (
        baselines or before.get("baselines") is True,
        max(counted, default=None),
        lift or before.get("lift") is True,
    )


def _trained_methods(seeds: int | None) -> tuple[MethodName, ...]:
    """The cast stands for itself where it need not be trained again."""
    from personae.cast.baselines import TRAINED

    return tuple(m for m in TRAINED if seeds is not None or m != "retrained")


def _held_out(paths: Sequence[Path], cast: Cast) -> tuple[list[CastRow], list[Any]]:
    called = {a: one.name for one in cast.manifest.characters for a in one.aliases}
    rows, refused = read_rows(paths, names=called)
    if not any(name in row.characters for row in rows for name in cast.names):
        there = sorted({name for row in rows for name in row.characters})
        raise UsageError(
            f"nobody of the cast ({', '.join(cast.names)}) speaks in the held-out data; there "
            f"{'are' if there else 'is'} {', '.join(there[:10]) or 'nobody'}"
        )
    return rows, refused


@dataclass(frozen=True)
class _Training:
    """What a cast was trained on, and how."""

    plan: TrainPlan
    rows: tuple[CastRow, ...]

    @classmethod
    def read(cls, cast: Cast) -> _Training:
        return cls(*read_training(cast.path))

    @classmethod
    def kept(cls, cast: Cast) -> _Training | None:
        """As `read`; None where the cast keeps nothing."""
        return cls.read(cast) if (cast.path / TRAINING / ROWS).is_file() else None


def _check_unseen(rows: Sequence[CastRow], trained: Sequence[CastRow], path: Path) -> None:
    """Refuse dialogues that were trained on: what they score is memory."""
    seen = {tuple(turn.text for turn in row.turns) for row in trained}  # whatever names are in it
    known = [row for row in rows if tuple(turn.text for turn in row.turns) in seen]
    if known:
        raise InputError(
            f"{len(known)} of {len(rows)} held-out dialogues are among those that the cast was "
            f"trained on, the first: {known[0].source}",
            path=path,
            mend="Hold out others, or train without these",
        )


def read_evaluation(run: Path) -> Evaluated:
    """What an evaluation left, read back from its folder.

    Raises:
        InputError: it is no finished evaluation of a cast.
    """
    manifest = read_manifest(run)
    file = run / SCORES
    if manifest.kind != KIND or not file.is_file():
        raise InputError(
            f"this is a run of {manifest.kind!r}"
            if manifest.kind != KIND
            else f"there is no {SCORES}: the evaluation did not come to its end",
            path=run,
            mend="Give the finished run of a `personae cast eval`"
            if manifest.kind != KIND
            else f"Go on with it: personae resume {run}",
        )
    scores = CastScores.from_dict(read_json(file), path=file)
    return Evaluated(run, scores, read_lines(run / RESULTS))


@dataclass
class _Run:
    """The folder of an evaluation, and what it holds so far."""

    path: Path
    manifest: Manifest
    lines: list[Line]
    times: dict[str, list[float]]

    @classmethod
    def opened(
        cls,
        path: Path,
        cast: Cast,
        rows: Sequence[CastRow],
        language: Language,
        arguments: Mapping[str, Any],
    ) -> _Run:
        manifest = new_manifest(
            KIND,
            {"base": (cast.manifest.base.id,)},
            language,
            room="cast",
            seed=cast.manifest.seed,
            protocol=cast.manifest.protocol,
            arguments=dict(arguments),
            made_from=(
                content_hash(cast.manifest.to_dict()),
                content_hash([row.to_dict() for row in rows]),
            ),
        )
        lines: list[Line] = []
        times: dict[str, list[float]] = {}
        if (path / MANIFEST).is_file():
            old = read_manifest(path)
            same = ("kind", "made_from")
            if any(getattr(old, f) != getattr(manifest, f) for f in same) or old.arguments.get(
                "max_tokens"
            ) != arguments.get("max_tokens"):
                raise InputError(
                    f"this folder holds another run ({old.kind}), not one of this cast on these "
                    "dialogues",
                    path=path,
                    mend="Give another --out",
                )
            if (path / RESULTS).is_file():
                lines = list(read_lines(path / RESULTS))
            if (path / TIMES).is_file():
                times = _times(path / TIMES)
        elif path.is_dir() and any(path.iterdir()):
            raise InputError("this folder is not empty", path=path, mend="Give another --out")
        write_atomically(path / MANIFEST, manifest.to_json() + "\n")
        return cls(path, manifest, lines, times)

    def has(self, method: MethodName, seed: int | None) -> bool:
        return any((line.method, line.seed) == (method, seed) for line in self.lines)

    def has_lift(self) -> bool:
        return any(isinstance(line, LiftScore) for line in self.lines)

    def take(self, made: MethodLines, method: MethodName) -> None:
        """Keep one method; what is written is whole, so that a kill costs this one at most."""
        self.lines += made.lines
        before = self.times.get(method, [0.0, 0])
        self.times[method] = [before[0] + made.seconds, before[1] + made.tokens]
        write_atomically(self.path / TIMES, _json(self.times))
        write_lines(self.path / RESULTS, self.lines)

    def finish(self, scores: CastScores, language: Language) -> None:
        write_atomically(self.path / SCORES, _json(scores.to_dict()))
        write_page(scores, self.lines, self.path / REPORT, language)
        done = self.manifest.model_copy(update={"status": "done"})
        write_atomically(self.path / MANIFEST, done.to_json() + "\n")


class _Session:
    """A cast over its loaded base, and all methods in turn; one stack at a time."""

    def __init__(
        self,
        cast: Cast,
        rows: Sequence[CastRow],
        base: LoadedBase,
        max_tokens: int,
        batch_tokens: int | None,
        watcher: Watcher,
        run: _Run,
    ) -> None:
        from personae.cast.heldout import units_of
        from personae.cast.layout import layout_of

        self.cast, self.rows, self.base, self.run = cast, rows, base, run
        self._batch_tokens, self._watcher = batch_tokens, watcher
        self._layout = layout_of(base.tokenizer)
        most = getattr(base.model.config, "max_position_embeddings", None) or _LONGEST
        self._room = min(int(most), _LONGEST)
        self._max_tokens = min(max_tokens, self._room)
        manifest = cast.manifest
        self.units, self.switches = units_of(
            rows,
            manifest.characters,
            self._layout,
            manifest.mode,
            self._max_tokens,
            cards=cast.cards,
        )
        self.kept: list[KeptMethod] = []
        self._files: dict[str, int] = {}
        self._numbers: dict[MethodName, tuple[int, int] | None] = {"base": (0, 0)}

    def given(self, *, lift: bool) -> None:
        """The base alone, and the cast as it is."""
        from personae.cast.heldout import Blocks
        from personae.cast.store import attach

        weights: dict[str, Weights] = {name: {} for name in self.cast.names}
        way = Blocks(self._layout, self.cast.manifest.mode, self._room, weights, {}, tells=False)
        if not self.run.has("base", None):
            self._score(None, way, "base", None)
        characters = self.cast.manifest.characters
        stack = attach(self.base, self.cast)
        try:
            weights = {one.name: one.weights for one in characters}
            way = replace(way, weights=weights, profiles=self._profiles(characters), tells=True)
            every = sum(tensor.size for tensor in self.cast.tensors.values())
            busy = max(sum(w != 0 for w in one.weights.values()) for one in characters)
            self._numbers["cast"] = (every, every // len(stack.slots) * busy)
            if not self.run.has("cast", None):
                self._score(stack, way, "cast", None)
            if lift and not self.run.has_lift():
                self._lift(stack)
        finally:
            stack.detach()

    def _lift(self, stack: StackedLoRA) -> None:
        from personae.cast.evaluate import MethodLines
        from personae.cast.lifted import lift_lines

        self._watcher.begin("lift", 1)
        lines = lift_lines(self.base, stack, self.cast, self.units, self._layout)
        self._watcher.step("lift")
        self.run.take(MethodLines(lines, 0.0, 0), "cast")

    def prompts(self) -> None:
        """The profile in the prompt, whole and in pieces."""
        from personae.cast.baselines import PROMPTED
        from personae.cast.heldout import Prompted

        for method in PROMPTED:
            self._numbers[method] = (0, 0)
            if not self.run.has(method, None):
                way = Prompted(self._layout, self._room, self.cast.cards, method == "rag")
                self._score(None, way, method, None)

    def trained(self, method: MethodName, plan: TrainPlan, rows: Sequence[CastRow]) -> None:
        """A trained method of one seed: from the cast's folder, from the run's, or trained now."""
        from personae.cast.baselines import open_method, train_method
        from personae.cast.encode import encode_all
        from personae.cast.heldout import Blocks

        encoded, _ = encode_all(rows, self._layout, plan.mode, plan.max_tokens)
        encoded = {name: encoded[name] for name in self.cast.names if name in encoded}
        cards = self.cast.cards
        if method == "dense_gate" and (without := [n for n in encoded if n not in cards]):
            self._fail(method, plan.seed, without[0])
            return
        made = None
        for folder in (self.cast.path, self.run.path):
            made = made or open_method(self.base, method, encoded, plan, folder, cards=cards)
        if made is None:
            made = train_method(
                self.base, method, encoded, plan, self.run.path, cards=cards, watcher=self._watcher
            )
        self.kept.append(made.kept)
        for folder in (self.cast.path, self.run.path):
            file = folder / made.kept.file
            if file.is_file():
                self._files.setdefault(made.kept.file, file.stat().st_size)
        self._numbers[method] = (made.kept.parameters, made.kept.active)
        tells = method not in ("one_shared", "one_shared_active")
        way = Blocks(self._layout, plan.mode, self._room, made.weights, {}, tells=tells)
        try:
            if not self.run.has(method, plan.seed):
                self._score(made.stack, way, method, plan.seed)
        finally:
            made.stack.detach()

    def scores(self, refused: int) -> CastScores:
        """The scores of all methods that were scored."""
        manifest, lines = self.cast.manifest, self.run.lines
        own = [x for x in lines if x.method == "cast" and isinstance(x, DialogueScore)]
        left_out = Counter(
            name for row in self.rows for name in row.characters if name not in self.cast.names
        )
        seeds = tuple(sorted({line.seed for line in lines if line.seed is not None}))
        return CastScores(
            version=__version__,
            base=manifest.base,
            blocks_sha256=manifest.blocks_sha256,
            dtype=str(self.base.dtype).removeprefix("torch."),
            device=str(self.base.model.device.type),
            mode=manifest.mode,
            protocol=manifest.protocol,
            characters=self.cast.names,
            held_out=HeldOut(
                sha256=content_hash([row.to_dict() for row in self.rows]),
                rows=len(self.rows),
                dialogues=len(self.units),
                switches=len(self.switches),
                tokens=sum(x.tokens or 0 for x in own),
                sources=data_sources(self.rows),
                left_out=dict(left_out),
                refused=refused,
            ),
            seeds=seeds,
            chance=1 / len(self.cast.names),
            methods=method_scores(lines, self.cast.names, parameters=self._numbers),
            differences=differences(lines),
            consumption=self._consumption() if len(self._numbers) > 2 else (),
            notes=_notes(lines, self.rows, seeds, manifest.mode),
        )

    def _score(
        self,
        stack: StackedLoRA | DenseGate | None,
        way: Way,
        method: MethodName,
        seed: int | None,
    ) -> None:
        from personae.cast.evaluate import BATCH_TOKENS, score_method

        made = score_method(
            self.base,
            stack,
            way,
            self.units,
            self.switches,
            self.cast.names,
            method=method,
            seed=seed,
            batch_tokens=self._batch_tokens or BATCH_TOKENS,
            watcher=self._watcher,
        )
        self.run.take(made, method)

    def _fail(self, method: MethodName, seed: int, name: str) -> None:
        """Lines of a method that cannot be trained: missing, and why."""
        from personae.cast.evaluate import MethodLines, missing_lines

        if self.run.has(method, seed):
            return
        failure = Failure(cause="no_card", detail=f"{name} has no card, so there is no profile")
        lines = missing_lines(self.units, self.switches, method, seed, failure)
        self.run.take(MethodLines(lines, 0.0, 0), method)

    def _profiles(self, characters: Sequence[CastCharacter]) -> dict[str, str]:
        from personae.cast.dialogue import profile_text

        found = {one.name: profile_text(self.cast, one.name) for one in characters}
        return {name: told for name, told in found.items() if told}

    def _consumption(self) -> tuple[Consumption, ...]:
        from personae.cast.consumption import METHOD_OF, BaseSize, Shape, consumption

        shapes: dict[ConsumptionOf, Shape] = {}
        for way, method in METHOD_OF.items():
            known = self._numbers.get("cast" if way == "cast" else method)
            if known is not None:
                file = self.cast.path / BLOCKS
                stored = file.stat().st_size if way == "cast" and file.is_file() else None
                shapes[way] = Shape(known[0], stored)
        model = self.base.model
        size = [(p.numel(), p.numel() * p.element_size()) for p in model.parameters()]
        return consumption(
            BaseSize(sum(n for n, _ in size), sum(b for _, b in size)),
            len(self.cast.names),
            shapes=shapes,
            kept=self.kept,
            cast=read_spent(self.cast.path),
            stored=self._files,
            token_seconds={
                cast("MethodName", m): seconds / tokens
                for m, (seconds, tokens) in self.run.times.items()
                if tokens
            },
        )


def _notes(
    lines: Sequence[Line], rows: Sequence[CastRow], seeds: Sequence[int], mode: Mode
) -> tuple[str, ...]:
    """What a reader must know of the figures, as codes."""
    found = []
    if any(line.seed is not None for line in lines) and len(seeds) < ENOUGH_SEEDS:
        found.append("one_seed" if len(seeds) == 1 else "few_seeds")
    if len({row.source for row in rows}) < ENOUGH_ROWS:
        found.append("few_rows")
    if any(line.method in ("icl", "rag") for line in lines):
        found.append("profile_names")
        if mode == "speaker":
            found.append("layouts")
    if any(isinstance(line, DialogueScore) and line.cut for line in lines):
        found.append("cut")
    if any(line.failure is not None for line in lines):
        found.append("failures")
    return tuple(found)


def _times(file: Path) -> dict[str, list[float]]:
    """Seconds and tokens by method, as `_Run.take` wrote them."""
    try:
        kind = TypeAdapter(dict[str, tuple[NonNegativeFloat, NonNegativeFloat]])
        return {k: list(v) for k, v in kind.validate_python(read_json(file)).items()}
    except ValidationError as error:
        raise InputError(f"not the times of an evaluation: {explain(error)}", path=file) from None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
