"""The stage `personae cast train`: from dialogues and a base model to a cast, in one folder.

Beside the cast itself the folder keeps, under `training/`, what it was trained on and how it went:
plan.json, rows.jsonl, refused.jsonl, history.jsonl, loss.svg, spent.json (the time it took), and
while it lasts a checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.cast.gate import PaperRouter
from personae.cast.history import TrainingStep, read_history, write_history
from personae.cast.plan import PLAN, ROWS, TRAINING, TrainPlan, stages_of
from personae.cast.rows import Data, data_sources, read_data, summary, write_rows
from personae.cast.store import MANIFEST, Cast, read_cast, write_cast
from personae.cast.training import spending, write_spent
from personae.errors import InputError, UsageError
from personae.journal.flow import NoWatcher, Watcher
from personae.records import Character, content_hash
from personae.records.cast import BaseModelRef, Block, CastAnswer, CastCharacter, CastRow
from personae.records.files import read_json, read_jsonl, write_atomically
from personae.stages import write_results

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.encode import Encoded

ANSWERS = "cast_answers.jsonl"
REFUSED, HISTORY, LOSS, CHECKPOINT = "refused.jsonl", "history.jsonl", "loss.svg", "checkpoint"
MAX_PLAN = 2**20


@dataclass(frozen=True)
class TrainedCast:
    """What `train_cast` leaves.

    Attributes:
        data: what was read, learnt or not.
        history: of the training.
        baselines: by name: trained, or why not.
        shortened: rows that lost turns because they were too long.
        too_long: rows that do not fit even with one turn; they are not learnt.
        padding: share of padding in what went through the model; None where nothing was trained.
    """

    cast: Cast
    data: Data
    history: tuple[TrainingStep, ...]
    baselines: Mapping[str, str]
    shortened: int = 0
    too_long: tuple[str, ...] = ()
    padding: float | None = None

    def document(self) -> dict[str, Any]:
        """What `personae cast train --json` prints."""
        manifest = self.cast.manifest
        counted = summary(self.data.rows)
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
                    **counted.characters[one.name].to_dict(),
                }
                for one in manifest.characters
            ],
            "blocks": [block.to_dict() for block in manifest.blocks],
            "rows": len(self.data.rows),
            "refused": len(self.data.refused),
            "shortened": self.shortened,
            "too_long": list(self.too_long),
            "padding": self.padding,
            "baselines": dict(self.baselines),
            "training": str(self.cast.path / TRAINING),
        }


def train_cast(
    data: Sequence[Path | str | Character],
    base: str,
    out: Path,
    *,
    plan: TrainPlan | None = None,
    cards: Sequence[Path | str | Character] = (),
    licence: str | None = None,
    character: str | None = None,
    baselines: bool = False,
    watcher: Watcher | None = None,
) -> TrainedCast:
    """Train a cast (`personae cast train`); after a kill, call it again to go on.

    Args:
        data: what `personae.cast.rows.read_data` takes; cards among it give profiles too.
        base: `local`, or a Hugging Face directory.
        out: the cast's folder.
        plan: None takes the defaults.
        cards: further cards, for profiles alone: the router and the baselines read them.
        licence: of rows that state none.
        character: who speaks where a row does not say.
        baselines: also train what the cast is compared with (`personae.cast.baselines`).

    Raises:
        UsageError: `out` holds something else, torch is missing, a plan that cannot be.
        InputError: data, card or base cannot be used, or nothing can be learnt from it.
        OutputError: the folder cannot be written.
    """
    from personae.cast.base import load_base
    from personae.cast.encode import encode_all
    from personae.cast.plot import write_plot
    from personae.cast.train import train

    plan, watcher = plan or TrainPlan(), watcher or NoWatcher()
    found = read_data(data, licence=licence, character=character)
    if not found.rows:
        why = found.refused[0].why if found.refused else "it is empty"
        raise InputError(f"nothing to learn from in {_listed(data)}: {why}")
    profiles = {**read_data(cards).cards, **found.cards} if cards else found.cards
    loaded = load_base(base, dtype=plan.dtype)
    _claim(out, plan, loaded.ref, found.rows)
    write_rows(found.rows, out / TRAINING / ROWS)
    write_results(found.refused, out / TRAINING / REFUSED)
    encoded, report = encode_all(found.rows, loaded.tokenizer, plan.mode, plan.max_tokens)
    encoded = {name: rows for name, rows in encoded.items() if rows}
    names = tuple(dict.fromkeys(n for row in found.rows for n in row.characters))
    if lost := [name for name in names if name not in encoded]:
        raise InputError(
            f"not one line of {lost[0]!r} fits into {plan.max_tokens} tokens",
            mend="Give --max-tokens more, or shorter dialogues",
        )
    known = {name: profiles[name] for name in names if name in profiles}
    gate = None
    if plan.protocol == "paper":
        if bare := [name for name in names if name not in known]:
            raise InputError(
                f"the paper's gate reads profiles, and {bare[0]!r} has none",
                mend="Give its card with --card, or take --protocol personae",
            )
        gate = PaperRouter.from_characters(known)
    done = out / MANIFEST
    if done.is_file():
        cast, history, padding = read_cast(out), read_history(out / TRAINING / HISTORY), None
    else:
        checkpoint = out / TRAINING / CHECKPOINT
        whole = not checkpoint.exists()
        with spending(loaded) as cost:
            trained = train(
                loaded, encoded, plan, checkpoint=checkpoint, resume=True, watcher=watcher
            )
        if whole and cost.spent is not None:  # of a resumed one only a part was measured
            write_spent(out, cost.spent)
        history, padding = trained.history, trained.padding
        write_history(out / TRAINING / HISTORY, history)
        write_plot(history, out / TRAINING / LOSS)
        weights = stages_of(plan, names)[-1].weights
        cast = write_cast(
            out,
            base=loaded.ref,
            rank=plan.rank,
            alpha=plan.alpha,
            blocks=[_with_data(block, found.rows, names) for block in trained.blocks],
            characters=[CastCharacter(name=n, weights=dict(weights[n])) for n in names],
            tensors=trained.stack.state(),
            cards=known,
            mode=plan.mode,
            protocol=plan.protocol,
            seed=plan.seed,
            gate=gate,
        )
        trained.stack.detach()
        shutil.rmtree(checkpoint, ignore_errors=True)
    compared = _baselines(loaded, encoded, plan, cast, watcher) if baselines else {}
    return TrainedCast(cast, found, history, compared, report.shortened, report.too_long, padding)


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


def _claim(out: Path, plan: TrainPlan, base: BaseModelRef, rows: Sequence[CastRow]) -> None:
    """Make the folder this training's, or find that it is already.

    Raises:
        UsageError: it is another's.
    """
    wanted = {
        "plan": asdict(plan),
        "base": base.sha256,
        "rows": content_hash([row.to_dict() for row in rows]),
    }
    wanted = json.loads(json.dumps(wanted))  # tuples become lists
    file = out / TRAINING / PLAN
    if file.is_file():
        there = read_json(file, limit=MAX_PLAN)
        there = there if isinstance(there, dict) else {}
        parts = {"plan": "plan", "base": "base model", "rows": "data"}
        other = [parts[k] for k in parts if there.get(k) != wanted[k]]
        if other:
            raise UsageError(
                f"{out} holds a training with another {' and another '.join(other)}; "
                "choose another --out"
            )
        return
    if (out / MANIFEST).is_file() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise UsageError(f"{out} exists and is not a training of ours; choose another --out")
    write_atomically(file, json.dumps(wanted, ensure_ascii=False, indent=2) + "\n")


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
