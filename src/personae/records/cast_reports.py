"""What an addition to a cast was, and what it did to those who were there before."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from personae.records.base import Record
from personae.records.benchmark import Language, NotBlank
from personae.records.cast import Block, CastProtocol, How, Mode, Routed

Change = Literal["stolen", "lost", "moved", "found"]
Origin = Literal["name", "profile", "dev"]


class OldCharacter(Record):
    """An old character before and after somebody was added; None is what was not measured.

    Attributes:
        blocks_identical: it speaks through the same blocks in the same weights, and they are the
            same bytes in the file that was written.
        logit_difference: the greatest |difference| of any logit over the answers to the probes;
            0: identical to the last bit.
        probes: how many were put to it.
        nll_before, nll_after: mean negative log-likelihood of its held-out lines, nats a token.
        tokens: of those lines.
    """

    name: NotBlank
    blocks_identical: bool
    logit_difference: float | None = Field(default=None, ge=0)
    probes: int = Field(default=0, ge=0)
    nll_before: float | None = None
    nll_after: float | None = None
    tokens: int = Field(default=0, ge=0)


class RouteChange(Record):
    """An instruction that the router answers otherwise than before.

    Attributes:
        origin: `name`: an old character's own name or alias, alone and as the paper asks for it;
            `profile`: a sentence of its card; `dev`: one of the instructions that ship
            (`cast.calibrate.instructions`).
        meant: whom it asks for, where that is one of the cast.
        change: `stolen`: it went to the old character who is meant, and goes to the new one.
            `lost`: it went there, and goes elsewhere, to nobody, or is asked about where it was
            accepted. `found`: it goes to who is meant, and did not, or is accepted where it was
            asked about. `moved`: nobody of the cast is meant, or it was wrong before and is so now.
    """

    instruction: NotBlank
    origin: Origin
    language: Language | None = None
    meant: str | None = None
    change: Change
    before: Routed
    after: Routed


class Routes(Record):
    """How the old characters are found after somebody was added.

    Attributes:
        names: how many instructions gave an old character's name.
        profiles: how many were sentences of an old character's card.
        dev: how many of the shipped ones were tried.
        changes: all instructions whose decision or role is another now.
    """

    names: int = Field(ge=0)
    profiles: int = Field(ge=0)
    dev: int = Field(ge=0)
    changes: tuple[RouteChange, ...] = ()

    @property
    def tried(self) -> int:
        """How many instructions were routed before and after."""
        return self.names + self.profiles + self.dev

    def count(self, change: Change) -> int:
        """How many changed so."""
        return sum(one.change == change for one in self.changes)


class GateDrift(Record):
    """What the paper's gate makes of an old role after equation 8; its parameters are the same.

    Attributes:
        own_before, own_after: omega of the role's own block (equation 6).
        new: omega of the new role's block.
        greatest: the greatest |change| of any old block's omega.
    """

    name: NotBlank
    own_before: float = Field(ge=0, le=1)
    own_after: float = Field(ge=0, le=1)
    new: float = Field(ge=0, le=1)
    greatest: float = Field(ge=0, le=1)


class Forgetting(Record):
    """What an addition did to the old characters.

    Attributes:
        measured: whether the language model was run for it; without it the blocks' bytes tell.
        gate: under `--protocol paper`.
    """

    characters: tuple[OldCharacter, ...]
    routes: Routes
    gate: tuple[GateDrift, ...] = ()
    measured: bool = False

    @property
    def forgotten(self) -> tuple[str, ...]:
        """Old characters whose blocks or logits are not what they were."""
        return tuple(
            one.name for one in self.characters if not one.blocks_identical or one.logit_difference
        )


class Tuning(Record):
    """How a fusion's weights were tuned on sample lines.

    Attributes:
        start: the router's weights by neighbour.
        loss, start_loss: of the lines, nats a token.
    """

    start: dict[str, float]
    start_loss: float
    loss: float
    evaluations: int = Field(ge=1)
    lines: int = Field(ge=1)


class Addition(Record):
    """What `personae cast add` did.

    Attributes:
        neighbours: weights by old character, summing to 1, as they were used; {} where none was.
        weights: by block, of the new character.
        block: the new one, where there is one.
        shortened: dialogues that lost turns because they were too long to be learnt whole.
        too_long: sources of those that do not fit even with one turn; they are not learnt.
        eq7_error: of a fusion by equation 7: its relative distance from the exact weighted sum.
        licences: of everything that the new character speaks through was trained on.
        unlicensed: sources among these whose licence is not known.
        cast_before, cast_after: content hashes of cast.json.
    """

    format: Literal["personae-addition/1"] = "personae-addition/1"
    role: NotBlank
    aliases: tuple[NotBlank, ...] = ()
    how: How
    protocol: CastProtocol
    mode: Mode
    seed: int = 0
    neighbours: dict[str, float] = {}
    tuning: Tuning | None = None
    weights: dict[str, float] = {}
    block: Block | None = None
    shortened: int = Field(default=0, ge=0)
    too_long: tuple[str, ...] = ()
    eq7_error: float | None = Field(default=None, ge=0)
    card_hash: str | None = None
    licences: tuple[str, ...] = ()
    unlicensed: tuple[str, ...] = ()
    cast_before: str
    cast_after: str
    forgetting: Forgetting
