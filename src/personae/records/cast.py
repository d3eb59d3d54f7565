"""What a cast is, what it was trained on, and what it says of an instruction."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, Self

from pydantic import Field, model_validator

from personae.records.base import Record
from personae.records.benchmark import Language, NotBlank

Decision = Literal["accept", "ask", "reject"]
Mode = Literal["full", "speaker"]
How = Literal["trained", "fuse", "expand", "profile"]
CastProtocol = Literal["paper", "personae"]

SHARED = "shared"
"""The name of the block that all characters share; no character may bear it."""
BASE = "base"
"""`cast:DIR#base`: the model under a cast, nobody speaking; no character may bear it."""
MAX_NAME = 100
_TURNS_AROUND = re.compile("[\u202a-\u202e\u2066-\u2069]")


def unfit_name(name: str) -> str | None:
    """Why no character of a cast can go by a name; None: it can.

    Names stand in prompts and in model ids (`cast:DIR#NAME`).
    """
    if not name.strip():
        return "it is empty"
    if len(name) > MAX_NAME:
        return f"it has {len(name):,} characters, more than {MAX_NAME}"
    plain = unicodedata.normalize("NFKC", name).strip().casefold()
    if plain == SHARED:
        return "so is the shared block"
    if plain == BASE:
        return "cast:DIR#base is the model without blocks"
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
        return "it holds control characters or line breaks"
    if _TURNS_AROUND.search(name):
        return "it holds characters that turn the direction of reading"
    if found := next((c for c in "<>#" if c in name), None):
        return f"it holds {found!r}, which has a meaning in prompts or in model ids"
    return None


class Routed(Record):
    """Who an instruction asks for.

    Attributes:
        decision: `accept`: it is `role`. `ask`: perhaps `role`; ask the user. `reject`: it is
            nobody of the cast, or nobody can be told.
        role: who it is or may be; None on `reject`.
        confidence: 0 to 1, that somebody of the cast is wanted and is `role` (on `reject`: and is
            the nearest one). 1 where the instruction gives a name; else calibrated.
        weights: of the nearest characters, best first, at most three, summing to 1; {} where
            nothing in the instruction is in any profile. On `accept` by name the role alone.
        by: what told: a name (on `reject`: one that is nobody's), a misspelt name, retrieval over
            profiles, or the dialogue so far.
    """

    decision: Decision
    role: str | None = None
    confidence: float = Field(ge=0, le=1)
    weights: dict[str, float] = {}
    by: Literal["name", "spelling", "profile", "dialogue"] = "profile"


class CastAnswer(Record):
    """One answer to a question that was put to several: a block, and the base without it.

    Attributes:
        block: whose block spoke; None: the base alone, told to be that character.
        missing: the cause, where there is no answer.
    """

    question: NotBlank
    character: NotBlank
    block: NotBlank | None = None
    answer: str | None = None
    missing: NotBlank | None = None

    @model_validator(mode="after")
    def _answered_or_not(self) -> Self:
        if (self.answer is None) == (self.missing is None):
            raise ValueError("either an answer, or why there is none")
        return self


class CastTurn(Record):
    """One utterance of a training dialogue.

    Attributes:
        speaker: a character; None: the person at the other end, the narrator, whoever is played by
            nobody.
    """

    speaker: NotBlank | None = None
    text: NotBlank


class CastRow(Record):
    """One training dialogue, and where it comes from.

    Attributes:
        characters: whose lines are learnt; each speaks at least once.
        system: what stands before the dialogue; "" takes the cast's own system prompt.
        source: file and line, run and unit.
        licence: SPDX identifier or words, as far as it is known.
    """

    characters: tuple[NotBlank, ...] = Field(min_length=1)
    turns: tuple[CastTurn, ...] = Field(min_length=1)
    system: str = ""
    language: Language = "en"
    source: NotBlank
    licence: NotBlank | None = None

    @model_validator(mode="after")
    def _all_speak(self) -> Self:
        speakers = {turn.speaker for turn in self.turns}
        if silent := [name for name in self.characters if name not in speakers]:
            raise ValueError(f"{silent[0]!r} says nothing in this dialogue")
        if len(set(self.characters)) < len(self.characters):
            raise ValueError("a character is named twice")
        return self


class DataSource(Record):
    """What a block was trained on: rows of one file under one licence."""

    source: NotBlank
    licence: NotBlank | None = None
    rows: int = Field(ge=0)


class Block(Record):
    """One slot of the stack: `shared`, or a character's own.

    Attributes:
        tokens: supervised tokens seen in training, repeats counted.
        steps: optimiser steps.
        loss: mean loss in nats a supervised token of the first and of the last epoch; None where
            nothing was trained.
    """

    name: NotBlank
    data: tuple[DataSource, ...] = ()
    tokens: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)
    loss: tuple[float, float] | None = None


class CastCharacter(Record):
    """A character of a cast, and what it speaks through.

    Attributes:
        weights: of blocks, by name; the character's update is the weighted sum of theirs
            (Neeko eq. 7 done exactly). Trained: `{"shared": 1, NAME: 1}`.
        card: the file in the cast's directory, `cards/NAME.json`; None where there is none.
        card_hash: content hash of that card.
    """

    name: NotBlank
    aliases: tuple[NotBlank, ...] = ()
    how: How = "trained"
    weights: dict[str, float] = {}
    card: str | None = None
    card_hash: str | None = None


class BaseModelRef(Record):
    """The frozen model under a cast.

    Attributes:
        id: `local` and its kin, or the directory (of a training its absolute path, so that the cast
            works from anywhere on the machine).
        sha256: of the weights file(s): of `local` the GGUF; of a directory the digest over its
            weight files' digests in the order of their names.
    """

    id: NotBlank
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    architecture: NotBlank
    licence: NotBlank | None = None


class CastManifest(Record):
    """What cast.json holds.

    Attributes:
        targets: names of the adapted linear modules, as `model.layers.0.self_attn.q_proj`.
        alpha: the update of a block is `alpha / rank * B @ A`.
        mode: `full`: a character's blocks work on every token; `speaker`: on the tokens of its own
            utterances (docs/cast.md).
        blocks: in the order of the slots of blocks.safetensors.
        blocks_sha256: of blocks.safetensors.
    """

    format: Literal["personae-cast/1"] = "personae-cast/1"
    version: str
    base: BaseModelRef
    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    targets: tuple[NotBlank, ...] = Field(min_length=1)
    mode: Mode = "full"
    protocol: CastProtocol = "personae"
    seed: int = 0
    blocks: tuple[Block, ...] = Field(min_length=1)
    characters: tuple[CastCharacter, ...] = Field(min_length=1)
    blocks_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        blocks = [block.name for block in self.blocks]
        names = [character.name for character in self.characters]
        for kind, all_of in (("block", blocks), ("character", names)):
            if twice := next((n for n in all_of if all_of.count(n) > 1), None):
                raise ValueError(f"there are two {kind}s named {twice!r}")
        if SHARED in names:
            raise ValueError(f"no character may be named {SHARED!r}")
        for character in self.characters:
            if strange := [b for b in character.weights if b not in blocks]:
                raise ValueError(f"{character.name!r} speaks through {strange[0]!r}, no block here")
        return self

    def of(self, name: str) -> CastCharacter | None:
        """The character of that name."""
        return next((c for c in self.characters if c.name == name), None)
