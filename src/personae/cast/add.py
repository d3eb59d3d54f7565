"""`personae cast add`: one more character for a cast that exists.

Three ways, from no data to much (research/lora.md, section 6.6):

* `profile`: the card in the system prompt, on the shared block. The baseline of the other two.
* `fuse`: no data; the weighted sum of the nearest characters' updates (`cast.fuse`).
* `expand`: a block of its own, trained on its lines from where the fusion stands (`cast.expand`).

The cast is written anew, whole or not at all. After that `CAST/additions/` gets the record of what
was done and of what it did to the others (`records.cast_reports.Addition`), the dialogues that the
new one learnt from, and the course of its training. `fuse` and `profile` need no torch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from personae.cast.expand import Slot, expand, plan_for, with_slot
from personae.cast.forgetting import (
    Measured,
    forgetting,
    measure,
    own_words,
    profile_text,
)
from personae.cast.fuse import (
    BUDGET,
    NEIGHBOURS,
    eq7_error,
    fused_weights,
    paper_fuse,
    shares,
    tune_weights,
)
from personae.cast.gate import softmax
from personae.cast.history import TrainingStep, write_history
from personae.cast.rows import data_sources, read_rows, write_rows
from personae.cast.store import ADDITIONS, Cast, attach, read_cast, write_cast
from personae.cast.training import read_plan
from personae.characters.card import read_character
from personae.characters.prompt import plain_name
from personae.characters.starter import SCHEME, starter
from personae.errors import InputError, UsageError
from personae.journal.flow import NoWatcher, Watcher
from personae.records import Character
from personae.records.base import content_hash
from personae.records.cast import (
    SHARED,
    Block,
    CastCharacter,
    CastManifest,
    CastRow,
    CastTurn,
    How,
    unfit_name,
)
from personae.records.cast_reports import Addition, Tuning
from personae.records.files import read_jsonl, write_atomically

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.encode import Encoded, Report
    from personae.cast.evaluate import Voices, Weights
    from personae.cast.plan import TrainPlan
    from personae.cast.stacked import StackedLoRA

ROWS, HISTORY = ".rows.jsonl", ".history.jsonl"
TUNED_ROWS = 8
"""Dialogues that weights are tuned on: more cost time and hardly move two or three numbers."""


@dataclass(frozen=True)
class Added:
    """What an addition leaves.

    Attributes:
        cast: as it was read back.
        record: also in `CAST/additions/`.
        out: the file of the record.
        history: of the training, where there was one.
    """

    cast: Cast
    record: Addition
    out: Path
    history: tuple[TrainingStep, ...] = ()


@dataclass(frozen=True)
class _Made:
    """What the new character speaks through, and what was made for it."""

    weights: dict[str, float]
    block: Block | None = None
    slot: Slot | None = field(default=None, repr=False)
    eq7_error: float | None = None
    history: tuple[TrainingStep, ...] = ()
    left_out: Report | None = None


def add_character(
    path: Path | str,
    card: Character | Path | str,
    how: How,
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    data: Sequence[CastRow] = (),
    neighbours: Mapping[str, float] | None = None,
    tune: bool = False,
    budget: int = BUDGET,
    heldout: Sequence[CastRow] = (),
    measured: bool | None = None,
    plan: TrainPlan | None = None,
    seed: int = 0,
    base: LoadedBase | str | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Added:
    """Add a character to a cast (`personae cast add`).

    Args:
        path: the cast.
        card: the new character; a file, or `starter:ID`.
        how: `fuse`, `expand` or `profile`.
        name: it goes by; None: the card's.
        aliases: further names, for the router.
        data: dialogues in which it speaks, by its name, the card's, or an alias: what `expand`
            learns from, and what `tune` compares mixes on. Empty: the exchanges on its card.
        neighbours: weights by old character; None: the router's nearest to the card's profile
            (protocol `paper`: the gate's omega for it, eq. 6 and 7).
        tune: move these weights on the data, without gradients (`fuse.tune_weights`).
        budget: how many mixes that may try.
        heldout: dialogues of old characters; their likelihood before and after is reported.
        measured: whether the model is run for the report on forgetting; None: where it is needed
            anyway.
        plan: of `expand`; made to fit the cast. None: as the cast was trained, where it says, else
            the defaults for a base of this width.
        seed: of the new block, the order of rows, and the draws of tuning.
        base: a loaded model that bears no blocks, or where the cast's base lies; None: where the
            manifest says.
        checkpoint, resume: of `expand`, see `train.train`.
        watcher: hears of tuning and training.

    Raises:
        UsageError: wrong arguments; a name that is taken; nobody near enough to fuse; torch is
            missing where it is needed.
        InputError: the cast or the card cannot be read, or no line of the character is given.
        OutputError: the cast cannot be written; the old one is still there.
    """
    if how not in ("fuse", "expand", "profile"):
        raise UsageError(f"a character is added by fuse, expand or profile, not {how!r}")
    if how == "profile" and (tune or data or neighbours):
        raise UsageError(
            "profile takes the card alone: no data, no neighbours, nothing to tune (leave out "
            "--data and --tune)"
        )
    if how == "fuse" and data and not tune:
        raise UsageError(
            "fuse learns nothing from data: give --tune to move its weights on them, or take "
            "--how expand"
        )
    watcher = watcher or NoWatcher()
    cast = read_cast(path)
    if tune and cast.manifest.protocol == "paper":
        raise UsageError("protocol paper takes the weights of a fusion from its gate: no tuning")
    character = _card(card)
    name = (name or character.name).strip()
    aliases = tuple(dict.fromkeys(a.strip() for a in aliases if a.strip() and a.strip() != name))
    check_names(cast, name, aliases)
    near = _near(cast, name, character, neighbours, how)
    rows = _lines(data, card, name, character, aliases) if how == "expand" or tune else ()
    model = None
    if how == "expand" or tune or (bool(heldout) if measured is None else measured):
        model = _Model(_loaded(cast, base), cast, heldout)
    before, after, tuning = None, None, None
    try:
        if model and measured is not False:
            before = model.measure(cast)
        if model and tune and near:
            near, tuning = _tuned(model, name, near, rows, budget, seed, watcher)
        if how == "profile":
            made = _Made(_shared(cast.manifest))
        elif model and how == "expand":
            plan = plan_for(cast.manifest, plan or read_plan(cast.path) or model.plan(), seed)
            made = _expanded(model, name, near, rows, plan, checkpoint, resume, watcher)
        else:
            made = _fused(cast, name, near)
        written = _write(cast, name, aliases, how, character, made)
        stem = PurePosixPath(written.character(name).card or "").stem
        folder = written.path / ADDITIONS
        # At once: whatever becomes of the report, the cast has learnt from them.
        if rows:
            write_rows(rows, folder / f"{stem}{ROWS}")
        if made.history:
            write_history(folder / f"{stem}{HISTORY}", made.history)
        if model and before is not None:
            after = model.measure(written)
    finally:
        if model:
            model.leave()
    told = (before, after) if before is not None and after is not None else None
    record = _record(cast, written, name, made, near, tuning, seed, told)
    write_atomically(folder / f"{stem}.json", record.to_json() + "\n")
    return Added(written, record, folder / f"{stem}.json", made.history)


def added_rows(cast: Path) -> tuple[CastRow, ...]:
    """All dialogues that characters added to a cast have learnt from, or were tuned on.

    Raises:
        InputError: a file of them is damaged.
    """
    files = sorted((cast / ADDITIONS).glob(f"*{ROWS}"))
    return tuple(
        CastRow.from_dict(line, path=file, place=f"line {number}")
        for file in files
        for number, line in read_jsonl(file)
    )


def licences_of(manifest: CastManifest, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Under which licences the data are that a character's blocks learnt from.

    A fused character inherits those of its neighbours: it is made of their blocks.

    Returns:
        the licences, and the sources whose licence is not known, both sorted.

    Raises:
        UsageError: there is no such character.
    """
    character = manifest.of(name)
    if character is None:
        raise UsageError(f"the cast has no {name!r}")
    data = [
        source
        for block in manifest.blocks
        if character.weights.get(block.name)
        for source in block.data
    ]
    known = sorted({one.licence for one in data if one.licence})
    return tuple(known), tuple(sorted({one.source for one in data if not one.licence}))


def check_names(cast: Cast, name: str, aliases: Sequence[str] = ()) -> None:
    """Whether a new character's names are free.

    Raises:
        UsageError: a character, an alias or a block goes by one of them.
    """
    if not name:
        raise UsageError("the new character has no name: give one")
    for wanted in (name, *aliases):
        if why := unfit_name(wanted):
            raise UsageError(f"no character can be named {wanted[:80]!r}: {why}; give another name")
    taken = {plain_name(block.name): block.name for block in cast.manifest.blocks}
    for one in cast.manifest.characters:
        taken.update({plain_name(n): one.name for n in (one.name, *one.aliases)})
    for wanted in (name, *aliases):
        owner = taken.get(plain_name(wanted))
        if owner is not None:
            also = "" if plain_name(owner) == plain_name(wanted) else f" (it is {owner!r})"
            raise UsageError(
                f"{cast.path}: the cast has {wanted!r} already{also}; give the new character "
                "another name"
            )


# Neighbours and lines ----------------------------------------------------------------------------


def _card(card: Character | Path | str) -> Character:
    if isinstance(card, Character):
        return card
    if isinstance(card, str) and card.startswith(SCHEME):
        return starter(card)
    return read_character(card)


def _near(
    cast: Cast, name: str, card: Character, given: Mapping[str, float] | None, how: How
) -> dict[str, float]:
    """Weights of the neighbours, summing to 1; {}: none is needed or, to expand, none is near."""
    paper = cast.manifest.protocol == "paper"
    if how == "profile" or (how == "expand" and paper and given is None):
        return {}
    if given is not None:
        fused_weights(cast.manifest, given)  # refuses strangers and what are no weights
        return shares(given)
    if paper and cast.gate is not None:
        embedded = cast.gate.with_role(name, card).gate.embeddings[-1]
        omega = softmax(cast.gate.gate.weights @ embedded)
        found = {role: float(w) for role, w in zip(cast.gate.roles, omega, strict=True)}
    else:
        found = cast.router.neighbours(profile_text(card), len(cast.names))
    # Who speaks through the shared block alone has nothing of its own to give.
    able = {n for n in cast.names if any(b != SHARED for b in cast.character(n).weights)}
    found = {role: weight for role, weight in found.items() if role in able}
    if not paper:
        found = dict(list(found.items())[:NEIGHBOURS])
    if found:
        return shares(found)
    if how == "expand":
        return {}
    raise UsageError(
        f"nothing in the profile of {name!r} is in any profile of this cast, so there is nobody to "
        "fuse it from. Add it with --how expand and --data FILE (its own lines), or with --how "
        "profile"
    )


def _lines(
    data: Sequence[CastRow],
    source: Character | Path | str,
    name: str,
    card: Character,
    aliases: Sequence[str],
) -> tuple[CastRow, ...]:
    """The dialogues in which the character speaks, under the name that it has in the cast.

    Raises:
        InputError: it speaks in none.
    """
    known = {plain_name(one) for one in (name, card.name, card.called, *aliases)}
    rows = data or read_rows([source])[0]
    found = tuple(_renamed(row, known, name) for row in rows if known & _speakers(row))
    if found:
        return found
    if not data:
        raise InputError(
            f"the card of {name!r} holds no dialogue to learn from",
            mend="Give its lines with --data FILE",
        )
    there = sorted({one for row in data for one in row.characters})
    raise InputError(
        f"no line in these data is by {name!r}; there are lines of {', '.join(there[:8])}",
        mend="Name the character as the data do, or give that name as an alias",
    )


def _speakers(row: CastRow) -> set[str]:
    return {plain_name(one) for one in row.characters}


def _renamed(row: CastRow, known: set[str], name: str) -> CastRow:
    def called(speaker: str) -> str:
        return name if plain_name(speaker) in known else speaker

    return CastRow(
        characters=tuple(dict.fromkeys(called(one) for one in row.characters)),
        turns=tuple(
            CastTurn(speaker=called(turn.speaker) if turn.speaker else None, text=turn.text)
            for turn in row.turns
        ),
        system=row.system,
        language=row.language,
        source=row.source,
        licence=row.licence,
    )


# With the model ----------------------------------------------------------------------------------


def _loaded(cast: Cast, base: LoadedBase | str | None) -> LoadedBase:
    from personae.cast.base import base_of, load_base

    if base is None or isinstance(base, str):
        return load_base(base or base_of(cast))
    return base


class _Model:
    """The base with the blocks of one cast or the other over it."""

    def __init__(self, base: LoadedBase, cast: Cast, heldout: Sequence[CastRow]) -> None:
        from personae.cast.dialogue import profile_text as told_profile
        from personae.cast.encode import encode_all
        from personae.cast.layout import layout_of
        from personae.cast.plan import TrainPlan

        self.base, self.cast, self.mode = base, cast, cast.manifest.mode
        self.layout = layout_of(base.tokenizer)
        profiles = {name: told for name in cast.names if (told := told_profile(cast, name))}
        self.heldout, _ = encode_all(
            heldout, self.layout, self.mode, TrainPlan().max_tokens, profiles=profiles
        )
        self.stack: StackedLoRA = attach(base, cast)
        self._attached = cast

    def plan(self) -> TrainPlan:
        """What the cast's protocol trains by, at rates for this base."""
        from personae.cast.plan import TrainPlan

        plan = TrainPlan()
        if self.cast.manifest.protocol == "paper":
            return plan.paper()
        return plan.for_width(self.base.width)

    def measure(self, cast: Cast) -> Measured:
        """As the old characters of that cast, through the blocks that its file holds."""
        if cast is not self._attached:
            self.leave()
            self.stack, self._attached = attach(self.base, cast), cast
        return measure(
            self.base,
            self.stack,
            cast.manifest,
            names=self.cast.names,
            cards=cast.cards,
            heldout=self.heldout,
        )

    def leave(self) -> None:
        self.stack.detach()


def _tuned(
    model: _Model,
    name: str,
    near: Mapping[str, float],
    rows: Sequence[CastRow],
    budget: int,
    seed: int,
    watcher: Watcher,
) -> tuple[dict[str, float], Tuning]:
    from personae.cast.encode import encode_all
    from personae.cast.evaluate import score_rows
    from personae.cast.plan import TrainPlan

    drawn = list(rows)
    if len(drawn) > TUNED_ROWS:
        drawn = random.Random(f"{seed}/tune/{name}").sample(drawn, TUNED_ROWS)  # noqa: S311
    encoded, _ = encode_all(drawn, model.layout, model.mode, TrainPlan().max_tokens)
    lines: list[Encoded] = [own_words(row, name) for row in encoded.get(name, ())]
    manifest = model.cast.manifest
    old = {one.name: dict(one.weights) for one in manifest.characters}
    watcher.begin("tune", budget)

    def loss(weights: Mapping[str, float]) -> float:
        mix = fused_weights(manifest, weights)
        voices: Voices = {**old, name: mix}
        each: list[Weights | Voices] = [mix if row.character else voices for row in lines]
        found = score_rows(model.base, model.stack, lines, each)
        watcher.step("tune")
        return sum(one.nll for one in found) / sum(one.tokens for one in found)

    spoken = sum(_utterances(row) for row in lines)
    best = tune_weights(loss, near, lines=spoken, budget=budget, seed=seed)
    tuning = Tuning(
        start=dict(near),
        start_loss=best.start_loss,
        loss=best.loss,
        evaluations=best.evaluations,
        lines=spoken,
    )
    return best.weights, tuning


def _utterances(row: Encoded) -> int:
    """Stretches of tokens that are to be predicted: an utterance each."""
    return sum(now and not before for before, now in pairwise((False, *row.supervised)))


def _expanded(
    model: _Model,
    name: str,
    near: Mapping[str, float],
    rows: Sequence[CastRow],
    plan: TrainPlan,
    checkpoint: Path | None,
    resume: bool,
    watcher: Watcher,
) -> _Made:
    from personae.cast.encode import encode_all

    manifest = model.cast.manifest
    encoded, left_out = encode_all(rows, model.layout, model.mode, plan.max_tokens)
    if not encoded.get(name):
        raise UsageError(f"no dialogue of {name!r} fits into {plan.max_tokens} tokens; allow more")
    done = expand(
        model.base,
        model.stack,
        manifest,
        name,
        fused_weights(manifest, near) if near else _shared(manifest),
        encoded,
        plan,
        checkpoint=checkpoint,
        resume=resume,
        watcher=watcher,
    )
    block = done.block.model_copy(update={"data": data_sources(rows, name)})
    return _Made(done.weights, block, done.slot, history=done.history, left_out=left_out)


# Without it --------------------------------------------------------------------------------------


def _shared(manifest: CastManifest) -> dict[str, float]:
    """The shared block alone; a cast of isolated blocks has none."""
    return {SHARED: 1.0} if any(one.name == SHARED for one in manifest.blocks) else {}


def _fused(cast: Cast, name: str, near: Mapping[str, float]) -> _Made:
    """The exact sum as weights; under protocol `paper` a block of its own by equation 7."""
    manifest = cast.manifest
    mix = fused_weights(manifest, near)
    if manifest.protocol != "paper":
        return _Made(mix)
    omega = [mix.get(block.name, 0.0) for block in manifest.blocks]
    used = [block for block, weight in zip(manifest.blocks, omega, strict=True) if weight]
    block = Block(name=name, data=tuple(dict.fromkeys(d for one in used for d in one.data)))
    slot = paper_fuse(cast.tensors, omega)
    return _Made({name: 1.0}, block, slot, eq7_error(cast.tensors, omega))


def _write(
    cast: Cast, name: str, aliases: tuple[str, ...], how: How, card: Character, made: _Made
) -> Cast:
    """The cast with one character more.

    Raises:
        InputError: somebody else has written this cast meanwhile.
        OutputError: it cannot be written.
    """
    manifest = cast.manifest
    added = CastCharacter(name=name, aliases=aliases, how=how, weights=made.weights)
    tensors: Mapping[str, Any] = cast.tensors
    blocks = manifest.blocks
    if made.block is not None and made.slot is not None:
        blocks, tensors = (*blocks, made.block), with_slot(tensors, made.slot)
    gate = cast.gate.with_role(name, card) if cast.gate is not None else None
    return write_cast(
        cast.path,
        base=manifest.base,
        rank=manifest.rank,
        alpha=manifest.alpha,
        blocks=blocks,
        characters=(*manifest.characters, added),
        tensors=tensors,
        cards={**cast.cards, name: card},
        mode=manifest.mode,
        protocol=manifest.protocol,
        seed=manifest.seed,
        router=cast.router.with_role(name, card, (name, *aliases)),
        gate=gate,
        onto=manifest,
    )


def _record(
    cast: Cast,
    written: Cast,
    name: str,
    made: _Made,
    near: Mapping[str, float],
    tuning: Tuning | None,
    seed: int,
    told: tuple[Measured, Measured] | None,
) -> Addition:
    character = written.character(name)
    licences, unlicensed = licences_of(written.manifest, name)
    return Addition(
        role=name,
        aliases=character.aliases,
        how=character.how,
        protocol=cast.manifest.protocol,
        mode=cast.manifest.mode,
        seed=seed,
        neighbours=dict(near),
        tuning=tuning,
        weights=character.weights,
        block=made.block,
        shortened=made.left_out.shortened if made.left_out else 0,
        too_long=made.left_out.too_long if made.left_out else (),
        eq7_error=made.eq7_error,
        card_hash=character.card_hash,
        licences=licences,
        unlicensed=unlicensed,
        cast_before=content_hash(cast.manifest.to_dict()),
        cast_after=content_hash(written.manifest.to_dict()),
        forgetting=forgetting(cast, written, name, told),
    )
