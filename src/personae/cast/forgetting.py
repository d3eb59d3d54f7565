"""What an addition did to the characters who were there before.

Blocks do not overlap and whoever is added trains none but its own (Neeko, section 3.3), so that
nothing should be forgotten; this is where it is looked at and not taken for granted. Three things
are compared, each before and after:

* the blocks that an old character speaks through, byte for byte, as they lie in the file;
* where the language model is at hand: every logit of fixed answers to fixed probes
  (`prompts/LANGUAGE/cast/probes.md`), and the likelihood of held-out lines;
* the routes: an old character's own names, the sentences of its card, and the instructions that
  ship. A new role can steal a route even where no block has changed.

Under `--protocol paper` there is a fourth: the gate's softmax (eq. 6) gets a term more with every
role (eq. 8), so that the weights of old blocks move though no old parameter does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from personae.cast.calibrate import instructions
from personae.cast.gate import PaperRouter
from personae.cast.profiles import sentences
from personae.characters.prompt import persona_line
from personae.characters.starter import starter
from personae.prompts import LANGUAGES, render
from personae.records import Character, Language
from personae.records.cast import CastCharacter, CastManifest, CastRow, CastTurn, Routed
from personae.records.cast_reports import (
    Change,
    Forgetting,
    GateDrift,
    OldCharacter,
    Origin,
    RouteChange,
    Routes,
)

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.encode import Encoded
    from personae.cast.evaluate import Scored, Voices, Weights
    from personae.cast.stacked import StackedLoRA
    from personae.cast.store import Cast

DESCRIBED = 12
"""Sentences of each old card's description that are routed; of large casts fewer."""
DESCRIBED_IN_ALL = 480
_SENTENCE_CHARS = 400
_PROBE_TOKENS = 4_096


@dataclass(frozen=True)
class Measured:
    """What the language model says as each character.

    Attributes:
        logits: by character, `[tokens, vocabulary]` float32 of each probe, at the places that the
            answer's tokens are predicted from.
        scored: by character, of its held-out lines, where there are any.
    """

    logits: Mapping[str, tuple[np.ndarray, ...]] = field(repr=False)
    scored: Mapping[str, Scored]


def probes_of(character: CastCharacter, language: Language) -> list[CastRow]:
    """The probes as dialogues of one character: a question, and an answer that is nobody's."""
    said = render("cast/probes", language)
    return [
        CastRow(
            characters=(character.name,),
            turns=(
                CastTurn(text=asked.content),
                CastTurn(speaker=character.name, text=told.content),
            ),
            language=language,
            source=f"probe {number}",
        )
        for number, (asked, told) in enumerate(zip(said[::2], said[1::2], strict=True), 1)
    ]


def language_of(card: Character | None) -> Language:
    """A character's first language; English where nothing says another."""
    return (card.ours.language if card is not None else None) or "en"


def profile_text(card: Character) -> str:
    """A card's profile as one text: what a router compares, and what `profile` tells the model.

    Raises:
        InputError: `extensions.personae` of the card is malformed.
    """
    return persona_line(card, language=language_of(card)).description


def own_words(row: Encoded, name: str) -> Encoded:
    """The row with that character's words alone to be predicted."""
    supervised = tuple(
        wanted and who == name for wanted, who in zip(row.supervised, row.speaker, strict=True)
    )
    return replace(row, supervised=supervised)


def measure(
    base: LoadedBase,
    stack: StackedLoRA,
    manifest: CastManifest,
    *,
    names: Sequence[str] | None = None,
    cards: Mapping[str, Character] | None = None,
    heldout: Mapping[str, Sequence[Encoded]] | None = None,
) -> Measured:
    """Ask the model as each character of a cast; the probes are asked one at a time.

    Args:
        manifest: what each character speaks through.
        names: who is asked; None: all of them.
        cards: for the language of each one's probes.
        heldout: encoded lines by character, in the manifest's mode; others' are not looked at.

    Raises:
        UsageError: the model has no chat template, or a likelihood is no finite number.
    """
    from personae.cast.encode import encode
    from personae.cast.evaluate import Scored, score_rows
    from personae.cast.layout import layout_of

    cards, heldout = cards or {}, heldout or {}
    layout = layout_of(base.tokenizer)
    voices = {one.name: dict(one.weights) for one in manifest.characters}
    logits, scored = {}, {}
    asked = [one for one in manifest.characters if names is None or one.name in names]
    for one in asked:
        rows = [
            encoded
            for row in probes_of(one, language_of(cards.get(one.name)))
            for encoded in encode(row, layout, manifest.mode, _PROBE_TOKENS)
        ]
        logits[one.name] = tuple(_logits(base, stack, row, voices) for row in rows)
        lines = [
            own for row in heldout.get(one.name, ()) if (own := own_words(row, one.name)).learnt
        ]
        if lines:
            found = score_rows(base, stack, lines, [_voice(row, voices) for row in lines])
            scored[one.name] = Scored(
                sum(line.nll for line in found), sum(line.tokens for line in found)
            )
    return Measured(logits, scored)


def _voice(row: Encoded, voices: Voices) -> Weights | Voices:
    return voices if row.character is None else voices[row.character]


def _logits(base: LoadedBase, stack: StackedLoRA, row: Encoded, voices: Voices) -> np.ndarray:
    import torch

    from personae.cast.base import still
    from personae.cast.evaluate import stack_speaking

    ids = torch.tensor([row.ids], device=stack.device)
    places = [number - 1 for number, wanted in enumerate(row.supervised) if wanted]
    speaking = stack_speaking(stack, [row], [_voice(row, voices)])
    with still(base.model), torch.inference_mode(), speaking([0], len(row.ids)):
        found = base.model(input_ids=ids, use_cache=False).logits[0, places]
        made: np.ndarray = found.float().cpu().numpy()
    return made


def forgetting(
    before: Cast,
    after: Cast,
    role: str,
    measured: tuple[Measured, Measured] | None = None,
) -> Forgetting:
    """What became of the old characters.

    Args:
        before, after: the cast as it was, and as it was read back after the addition.
        role: who was added.
        measured: what the model said before and after; None where it was not run.
    """
    gate: tuple[GateDrift, ...] = ()
    if before.gate is not None and after.gate is not None:
        gate = gate_drift(before.gate, after.gate, role)
    return Forgetting(
        characters=tuple(
            _compared(before, after, one, measured) for one in before.manifest.characters
        ),
        routes=compare_routes(before, after, role),
        gate=gate,
        measured=measured is not None,
    )


def _compared(
    before: Cast, after: Cast, one: CastCharacter, measured: tuple[Measured, Measured] | None
) -> OldCharacter:
    difference, probes, tokens = None, 0, 0
    old: Scored | None = None
    new: Scored | None = None
    if measured is not None:
        pairs = list(zip(*(m.logits[one.name] for m in measured), strict=True))
        difference = max((float(np.max(np.abs(a - b))) for a, b in pairs), default=None)
        probes = len(pairs)
        old, new = (m.scored.get(one.name) for m in measured)
        tokens = old.tokens if old is not None else 0
    return OldCharacter(
        name=one.name,
        blocks_identical=blocks_identical(before, after, one.name),
        logit_difference=difference,
        probes=probes,
        nll_before=None if old is None else old.per_token,
        nll_after=None if new is None else new.per_token,
        tokens=tokens,
    )


def blocks_identical(before: Cast, after: Cast, name: str) -> bool:
    """Whether a character speaks through the same bytes in the same weights."""
    old, new = before.manifest.of(name), after.manifest.of(name)
    if old is None or new is None or old.weights != new.weights:
        return False
    scales = [(c.manifest.rank, c.manifest.alpha, c.manifest.mode) for c in (before, after)]
    if scales[0] != scales[1] or before.tensors.keys() != after.tensors.keys():
        return False
    places = [[block.name for block in c.manifest.blocks] for c in (before, after)]
    return all(
        before.tensors[tensor][places[0].index(block)].tobytes()
        == after.tensors[tensor][places[1].index(block)].tobytes()
        for block in old.weights
        for tensor in before.tensors
    )


# Routes ------------------------------------------------------------------------------------------


class _Asked(NamedTuple):
    """An instruction, where it is from, and whom of the cast it asks for."""

    text: str
    origin: Origin
    language: Language
    meant: str | None


def compare_routes(before: Cast, after: Cast, role: str) -> Routes:
    """Who finds the old characters: their names, what their cards say, the shipped instructions.

    The shipped ones are for the starter cast's eight; before another cast they are strangers'
    instructions, and a new role that takes one up which was rejected shows here all the same.
    """
    asked = [*_by_name(before), *_described(before), *_shipped(after)]
    changes = []
    for one in asked:
        old, new = before.route(one.text), after.route(one.text)
        change = change_of(old, new, role, one.meant)
        if change is not None:
            changes.append(
                RouteChange(
                    instruction=one.text,
                    origin=one.origin,
                    language=one.language,
                    meant=one.meant,
                    change=change,
                    before=old,
                    after=new,
                )
            )
    tried = Counter(one.origin for one in asked)
    return Routes(
        names=tried["name"], profiles=tried["profile"], dev=tried["dev"], changes=tuple(changes)
    )


def _by_name(cast: Cast) -> Iterator[_Asked]:
    for one in cast.manifest.characters:
        card = cast.cards.get(one.name)
        language = language_of(card)
        called = (card.called,) if card is not None else ()
        for name in dict.fromkeys((one.name, *one.aliases, *called)):
            (question,) = render("cast/ask_for", language, name=name)
            yield _Asked(name, "name", language, one.name)
            yield _Asked(question.content, "name", language, one.name)


def _described(cast: Cast) -> Iterator[_Asked]:
    each = max(1, min(DESCRIBED, DESCRIBED_IN_ALL // max(1, len(cast.cards))))
    for name, card in cast.cards.items():
        for sentence in sentences(card.description)[:each]:
            yield _Asked(sentence[:_SENTENCE_CHARS], "profile", language_of(card), name)


def _shipped(cast: Cast) -> Iterator[_Asked]:
    for language in LANGUAGES:
        for example in instructions("dev", language):
            if example.previous is None:  # else: in the middle of a dialogue with the eight
                name = starter(example.role).name if example.role is not None else None
                meant = name if name in cast.names else None
                yield _Asked(example.text, "dev", language, meant)


def change_of(before: Routed, after: Routed, role: str, meant: str | None) -> Change | None:
    """What kind of change it is (`records.cast_reports.RouteChange`).

    Args:
        role: who was added.
        meant: whom the instruction asks for; None: nobody of the cast.

    Returns:
        None where decision and role are the same.
    """
    if (before.decision, before.role) == (after.decision, after.role):
        return None
    was_right, is_right = (meant is not None and one.role == meant for one in (before, after))
    if was_right and after.role == role:
        return "stolen"
    if was_right and (not is_right or before.decision == "accept"):
        return "lost"
    return "found" if is_right else "moved"


def gate_drift(before: PaperRouter, after: PaperRouter, role: str) -> tuple[GateDrift, ...]:
    """What equation 8 makes of the old roles' weights of equation 6."""
    new = after.roles.index(role)
    places = [after.roles.index(name) for name in before.roles]
    drift = []
    for number, name in enumerate(before.roles):
        old = before.gate.contributions(number)
        now = after.gate.contributions(places[number])
        drift.append(
            GateDrift(
                name=name,
                own_before=float(old[number]),
                own_after=float(now[places[number]]),
                new=float(now[new]),
                greatest=float(np.max(np.abs(old - now[places]))),
            )
        )
    return tuple(drift)
