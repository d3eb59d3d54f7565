"""The stage `personae cast train`: from dialogues and a base model to a cast, in one folder.

Beside the cast itself the folder keeps, under `training/`, what it was trained on and how it went:
plan.json, rows.jsonl, refused.jsonl, history.jsonl, loss.svg, spent.json (the time it took),
outcome.json (what did not fit), and while it lasts a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from personae.cast.base import base_ref, is_local
from personae.cast.gate import PaperRouter
from personae.cast.history import TrainingStep, read_history, write_history
from personae.cast.plan import PLAN, ROWS, TRAINING, TrainPlan, stages_of
from personae.cast.rows import (
    CharacterRows,
    Data,
    data_sources,
    read_data,
    summary,
    write_rows,
)
from personae.cast.store import COMMIT, MANIFEST, Cast, read_cast, write_cast
from personae.cast.training import spending, write_spent
from personae.errors import InputError, OutputError, UsageError
from personae.journal.flow import NoWatcher, Watcher
from personae.records import Character, Record, content_hash
from personae.records.cast import (
    BaseModelRef,
    Block,
    CastAnswer,
    CastCharacter,
    CastRow,
    unfit_name,
)
from personae.records.files import read_json, read_jsonl, write_atomically
from personae.stages import write_results

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.encode import Encoded
    from personae.models.local.weights import Progress

ANSWERS = "cast_answers.jsonl"
REFUSED, HISTORY, LOSS, CHECKPOINT = "refused.jsonl", "history.jsonl", "loss.svg", "checkpoint"
OUTCOME, LOCK = "outcome.json", ".lock"
MAX_PLAN = 2**20
MAX_OUTCOME = 64 * 2**20


class Outcome(Record):
    """What a training says of itself beside its losses.

    Attributes:
        shortened: rows that lost turns because they were too long.
        too_long: rows that do not fit even with one turn; they are not learnt.
        padding: share of padding in what went through the model.
    """

    shortened: int = Field(ge=0)
    too_long: tuple[str, ...] = ()
    padding: float = Field(ge=0, le=1)


@dataclass(frozen=True)
class TrainedCast:
    """What `train_cast` leaves.

    Attributes:
        data: what was read, learnt or not.
        history: of the training.
        baselines: by name: trained, or why not.
        unused: cards of nobody who speaks in the data.
    """

    cast: Cast
    data: Data
    history: tuple[TrainingStep, ...]
    baselines: Mapping[str, str]
    outcome: Outcome
    unused: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """What `personae cast train --json` prints."""
        manifest = self.cast.manifest
        counted = summary(self.data.rows)
        nothing = CharacterRows(rows=0, turns=0)  # of who was added to the cast since
        return {
            "cast": str(self.cast.path),
            "base": manifest.base.to_dict(),
            "protocol": manifest.protocol,
            "mode": manifest.mode,
            "rank": manifest.rank,
            "characters": [
                {
                    "name": one.name,
                    "card": one.card,
                    "weights": one.weights,
                    **counted.characters.get(one.name, nothing).to_dict(),
                }
                for one in manifest.characters
            ],
            "blocks": [block.to_dict() for block in manifest.blocks],
            "rows": len(self.data.rows),
            "refused": len(self.data.refused),
            **self.outcome.to_dict(),
            "unused_cards": list(self.unused),
            "baselines": dict(self.baselines),
            "training": str(self.cast.path / TRAINING),
        }


def train_cast(
    data: Sequence[Path | str | Character],
    base: str,
    out: Path,
    *,
    plan: TrainPlan | None = None,
    rates: Mapping[str, float] | None = None,
    cards: Sequence[Path | str | Character] = (),
    licence: str | None = None,
    character: str | None = None,
    baselines: bool = False,
    watcher: Watcher | None = None,
    hear: Callable[[Sequence[TrainingStep]], None] | None = None,
    progress: Progress | None = None,
) -> TrainedCast:
    """Train a cast (`personae cast train`).

    After a kill, call it again to go on; after the end, to have the same told again: then nothing
    is loaded. The folder is this training's from the moment that it begins to learn.

    Args:
        data: what `personae.cast.rows.read_data` takes; cards among it give profiles too.
        base: `local`, or a Hugging Face directory.
        out: the cast's folder.
        plan: None takes the defaults.
        rates: `lr` and `shared_lr` where they are chosen; what is not is the plan's, brought to the
            width of the base.
        cards: further cards, for profiles alone: the router and the baselines read them.
        licence: of rows that state none.
        character: who speaks where a row does not say.
        baselines: also train what the cast is compared with (`personae.cast.baselines`).
        hear: gets the losses (`personae.cast.train.train`), of the cast alone.
        progress: is told what is fetched and converted, see `personae.models.local.weights.pull`.

    Raises:
        UsageError: `out` holds something else, or another process trains there; torch is missing; a
            plan that cannot be.
        InputError: data, card or base cannot be used, or nothing can be learnt from it.
        OutputError: the folder cannot be written.
    """
    plan, rates, watcher = plan or TrainPlan(), rates or {}, watcher or NoWatcher()
    _at_rates(plan, rates)
    _refuse_a_strangers(out)
    found = read_data(data, licence=licence, character=character)
    if not found.rows:
        why = found.refused[0].why if found.refused else "it is empty"
        raise InputError(f"nothing to learn from in {_listed(data)}: {why}")
    names = _names(found.rows)
    profiles = {**_profiles(cards), **found.cards}
    known = {name: profiles[name] for name in names if name in profiles}
    unused = tuple(name for name in profiles if name not in known)
    gate = _gate(known, names) if plan.protocol == "paper" else None
    spec = base if is_local(base) else str(Path(base).expanduser().resolve())
    asked = _asked(plan, rates, base_ref(spec, progress=progress), found.rows, known)
    with _alone(out):
        _refuse_another(out, asked)
        if ended := _has_ended(out):
            shutil.rmtree(out / TRAINING / CHECKPOINT, ignore_errors=True)
        if ended and not baselines:
            cast, history = read_cast(out), read_history(out / TRAINING / HISTORY)
            return TrainedCast(cast, found, history, {}, _read_outcome(out), unused)
        # What is asked for may be had without torch, up to here.
        from personae.cast.base import load_base
        from personae.cast.encode import encode_all

        loaded = load_base(spec, dtype=plan.dtype, progress=progress)
        plan = _at_rates(plan.for_width(loaded.width), rates)
        encoded, report = encode_all(found.rows, loaded.tokenizer, plan.mode, plan.max_tokens)
        encoded = {name: rows for name, rows in encoded.items() if rows}
        if lost := [name for name in names if name not in encoded]:
            raise InputError(
                f"not one line of {lost[0]!r} fits into {plan.max_tokens} tokens",
                mend="Give --max-tokens more, or shorter dialogues",
            )
        if not ended:
            _claim(out, {**asked, "plan": asdict(plan)})
            write_rows(found.rows, out / TRAINING / ROWS)
            write_results(found.refused, out / TRAINING / REFUSED)
            left = {"shortened": report.shortened, "too_long": report.too_long}
            _learn(loaded, encoded, plan, out, found.rows, known, gate, left, watcher, hear)
        cast, history = read_cast(out), read_history(out / TRAINING / HISTORY)
        compared = _baselines(loaded, encoded, plan, cast, watcher) if baselines else {}
        return TrainedCast(cast, found, history, compared, _read_outcome(out), unused)


def _learn(
    base: LoadedBase,
    encoded: Mapping[str, Sequence[Encoded]],
    plan: TrainPlan,
    out: Path,
    rows: Sequence[CastRow],
    cards: Mapping[str, Character],
    gate: PaperRouter | None,
    left: Mapping[str, Any],
    watcher: Watcher,
    hear: Callable[[Sequence[TrainingStep]], None] | None,
) -> None:
    """Train the blocks and write the cast, last of all."""
    from personae.cast.plot import write_plot
    from personae.cast.train import train

    folder, names = out / TRAINING, _names(rows)
    checkpoint = folder / CHECKPOINT
    whole = not checkpoint.exists()
    with spending(base) as cost:
        trained = train(
            base, encoded, plan, checkpoint=checkpoint, resume=True, watcher=watcher, hear=hear
        )
    try:
        if whole and cost.spent is not None:  # of a resumed one only a part was measured
            write_spent(out, cost.spent)
        write_history(folder / HISTORY, trained.history)
        write_plot(trained.history, folder / LOSS)
        outcome = Outcome(**left, padding=trained.padding)
        write_atomically(folder / OUTCOME, outcome.to_json() + "\n")
        weights = stages_of(plan, names)[-1].weights
        write_cast(
            out,
            base=base.ref,
            rank=plan.rank,
            alpha=plan.alpha,
            blocks=[_with_data(block, rows, names) for block in trained.blocks],
            characters=[CastCharacter(name=n, weights=dict(weights[n])) for n in names],
            tensors=trained.stack.state(),
            cards=cards,
            mode=plan.mode,
            protocol=plan.protocol,
            seed=plan.seed,
            gate=gate,
        )
    finally:
        trained.stack.detach()
    shutil.rmtree(checkpoint, ignore_errors=True)


def read_cast_answers(run: Path) -> tuple[CastAnswer, ...]:
    """The answers of a cast that a demo's run directory holds; none where it has no cast.

    Raises:
        InputError: a line is not such an answer.
    """
    file = run / ANSWERS
    if not file.is_file():
        return ()
    return tuple(
        CastAnswer.from_dict(line, path=file, place=f"line {number}")
        for number, line in read_jsonl(file)
    )


def _listed(data: Iterable[object]) -> str:
    return ", ".join(one.name if isinstance(one, Character) else str(one) for one in data)


def _with_data(block: Block, rows: Sequence[CastRow], names: Sequence[str]) -> Block:
    """The block with what it learnt from: a character's rows, or all of them."""
    whose = block.name if block.name in names else None
    return block.model_copy(update={"data": data_sources(rows, whose)})


def _names(rows: Iterable[CastRow]) -> tuple[str, ...]:
    """Who is learnt, in order of appearance.

    Raises:
        InputError: a name that no character of a cast can bear.
    """
    first = {name: row for row in reversed(list(rows)) for name in row.characters}
    for name, row in first.items():
        if why := unfit_name(name):
            raise InputError(
                f"no character can be named {name[:80]!r}: {why}",
                place=row.source,
                mend="Give it another name in the data",
            )
    return tuple(dict.fromkeys(name for row in rows for name in row.characters))


def _profiles(cards: Sequence[Path | str | Character]) -> dict[str, Character]:
    """Cards by their characters' names.

    Raises:
        InputError: a path holds none.
    """
    found: dict[str, Character] = {}
    for card in cards:
        there = read_data([card]).cards
        if not there:
            raise InputError(
                "there is no card in it",
                path=_listed([card]),
                mend="Give dialogues as DATA, and here the cards that bring profiles",
            )
        found = {**there, **found}
    return found


def _gate(cards: Mapping[str, Character], names: Sequence[str]) -> PaperRouter:
    """The paper's gate.

    Raises:
        InputError: a character has no profile.
    """
    if bare := [name for name in names if name not in cards]:
        raise InputError(
            f"the paper's gate reads profiles, and {bare[0]!r} has none",
            mend="Give its card with --card, or take --protocol personae",
        )
    return PaperRouter.from_characters(cards)


def _at_rates(plan: TrainPlan, rates: Mapping[str, float]) -> TrainPlan:
    """The plan with rates that were chosen.

    Raises:
        UsageError: one that cannot be.
    """
    if strange := sorted(rates.keys() - {"lr", "shared_lr"}):
        raise UsageError(f"{strange[0]!r} is no rate: there are lr and shared_lr")
    return replace(
        plan, lr=rates.get("lr", plan.lr), shared_lr=rates.get("shared_lr", plan.shared_lr)
    )


def _asked(
    plan: TrainPlan,
    rates: Mapping[str, float],
    base: BaseModelRef,
    rows: Sequence[CastRow],
    cards: Mapping[str, Character],
) -> dict[str, Any]:
    """What makes one training another."""
    return {
        "asked": json.loads(json.dumps({**asdict(plan), "rates": dict(rates)})),
        "base": base.sha256,
        "rows": content_hash([row.to_dict() for row in rows]),
        "cards": content_hash({name: card.to_dict() for name, card in sorted(cards.items())}),
    }


def _refuse_a_strangers(out: Path) -> None:
    """Refuse a folder that is no training of ours, before anything is read.

    Raises:
        UsageError: it is such a folder.
    """
    if (out / TRAINING / PLAN).is_file():
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not a training of ours; choose another --out")


def _refuse_another(out: Path, asked: Mapping[str, Any]) -> None:
    """Refuse a folder in which something else has been learnt.

    Raises:
        UsageError: it is such a folder.
        InputError: its plan cannot be read.
    """
    file = out / TRAINING / PLAN
    if not file.is_file() or not (_has_ended(out) or (out / TRAINING / CHECKPOINT).exists()):
        return
    there = read_json(file, limit=MAX_PLAN)
    there = there if isinstance(there, dict) else {}
    plan = f"plan{_differing(there.get('asked'), asked['asked'])}"
    parts = {"asked": plan, "base": "base model", "rows": "data", "cards": "cards"}
    if other := [parts[key] for key in parts if there.get(key) != asked[key]]:
        raise UsageError(
            f"{out} holds a training with another {' and another '.join(other)}; "
            "choose another --out"
        )


def _differing(there: object, asked: Mapping[str, Any]) -> str:
    """The numbers in which a plan differs from the one that is there, in brackets."""
    if not isinstance(there, dict):
        return ""
    flat = [
        {**{k: v for k, v in one.items() if k != "rates"}, **(one.get("rates") or {})}
        for one in (there, asked)
    ]
    other = [
        f"{name.replace('_', ' ')} {flat[0].get(name)} there, {value} here"
        for name, value in flat[1].items()
        if flat[0].get(name) != value
    ]
    return f" ({'; '.join(other)})" if other else ""


def _has_ended(out: Path) -> bool:
    return (out / MANIFEST).is_file() or (out / COMMIT / MANIFEST).is_file()


def _claim(out: Path, plan: Mapping[str, Any]) -> None:
    """Make the folder this training's."""
    write_atomically(out / TRAINING / PLAN, json.dumps(plan, ensure_ascii=False, indent=2) + "\n")


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Within it no other process trains there.

    Raises:
        UsageError: one does.
        OutputError: the folder cannot be made.
    """
    from filelock import FileLock, Timeout

    folder = out / TRAINING
    try:
        fresh = not out.exists()
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise UsageError(f"another process is training in {out}") from None
    except OSError as error:
        raise OutputError(f"{out}: cannot be written ({error.strerror})") from None
    try:
        yield
    finally:
        lock.release()
        if not (folder / PLAN).exists():  # nothing was begun: leave no trace
            (folder / LOCK).unlink(missing_ok=True)
            for made in (folder, out) if fresh else (folder,):
                with contextlib.suppress(OSError):
                    made.rmdir()


def _read_outcome(out: Path) -> Outcome:
    """What the training said of itself.

    Raises:
        InputError: there is none, or it is none.
    """
    file = out / TRAINING / OUTCOME
    return Outcome.from_dict(read_json(file, limit=MAX_OUTCOME), path=file)


def _baselines(
    base: LoadedBase,
    encoded: Mapping[str, Sequence[Encoded]],
    plan: TrainPlan,
    cast: Cast,
    watcher: Watcher,
) -> dict[str, str]:
    """Train what the cast is compared with; says of each what became of it."""
    from personae.cast.baselines import TRAINED, read_kept, train_method

    there = {(kept.method, kept.seed) for kept in read_kept(cast.path)}
    said: dict[str, str] = {}
    for method in TRAINED:
        if method == "retrained":  # that is the cast itself
            continue
        if method == "dense_gate" and (bare := [n for n in encoded if n not in cast.cards]):
            said[method] = f"not trained: its gate reads profiles, and {bare[0]!r} has no card"
            continue
        if (method, plan.seed) not in there:
            made = train_method(
                base, method, encoded, plan, cast.path, cards=cast.cards, watcher=watcher
            )
            made.stack.detach()
        said[method] = "trained"
    return said
