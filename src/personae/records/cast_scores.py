"""How well a cast and its baselines fit held-out lines, and what each of them costs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from personae.records.base import Record
from personae.records.benchmark import Language, NotBlank
from personae.records.call import Failure
from personae.records.cast import BaseModelRef, CastProtocol, DataSource, Mode

MethodName = Literal[
    "cast",
    "retrained",
    "base",
    "icl",
    "rag",
    "one_shared",
    "one_shared_active",
    "one_per_character",
    "dense_gate",
]
"""`cast`: as given. `retrained`: the same plan once a seed. `base`: the cast's own prompt, no
blocks. `icl`: the profile in the prompt, no blocks. `rag`: the pieces of the profile that fit what
was asked, no blocks. `one_shared`: one LoRA for all of as many parameters as the whole cast.
`one_shared_active`: one of as many as work for one character. `one_per_character`: isolated LoRAs.
`dense_gate`: Neeko's released code."""

MetricName = Literal[
    "nll", "margin", "identified", "identified_unnamed", "switch_cost", "switch_leak", "lift"
]
"""`nll`: nats a token of the character's held-out lines. `margin`: by how many nats a token the
blocks of others fit them worse, in the mean over the others. `identified`: share of dialogues that
the character's own blocks fit best, ties counted as wrong. `identified_unnamed`: of those in which
its name does not occur. `switch_cost`: nats a token that a first line after a switch costs more
with the earlier character's turns before it than without. `switch_leak`: share of such lines that
the earlier character's blocks fit no worse. `lift`: persona lift of generated answers."""

Why = Literal["cannot_tell", "one_character", "no_units", "none_scored", "not_run"]
"""Why there is no figure: the method has nothing of a character's own to exchange; the cast has one
character; the held-out rows hold no such unit; all of them failed; it was not asked for."""


class DialogueScore(Record):
    """One line of results.jsonl: what one character says in one held-out row, under one method.

    Attributes:
        seed: that the method was trained with here; None where nothing was trained.
        row: the number of the row among the held-out ones, from 1.
        source: of the row.
        cut: turns that were left out at the front, because they did not fit.
        named: a name of the character stands in the row's turns.
        tokens: supervised ones; None where it could not be scored.
        nll: nats of all of them together, under the prompt that the method runs with.
        fits: nats of the same tokens under the same nameless prompt, by whose blocks (or profile)
            speak; its own among them. None where the method cannot tell characters apart.
        failure: why there is no figure.
    """

    kind: Literal["dialogue"] = "dialogue"
    method: MethodName
    seed: int | None = None
    row: int = Field(ge=1)
    source: NotBlank
    language: Language
    character: NotBlank
    cut: int = Field(default=0, ge=0)
    named: bool
    tokens: int | None = Field(default=None, ge=1)
    nll: float | None = Field(default=None, ge=0)
    fits: dict[str, float] | None = None
    failure: Failure | None = None

    @model_validator(mode="after")
    def _scored_or_failed(self) -> Self:
        if (self.failure is None) == (self.nll is None or self.tokens is None):
            raise ValueError("a line has a likelihood or a failure")
        if self.fits is not None and self.character not in self.fits:
            raise ValueError("its own blocks are missing among those that were tried")
        return self


class SwitchScore(Record):
    """One line of results.jsonl: the first line of a character after another one's.

    Attributes:
        turn: of the row, from 1.
        previous: the character that spoke before.
        nll: nats of the line with all that was said before it.
        nll_without: with nothing before the earlier character's last turn, nor that turn.
        nll_previous: as `nll`, but through the blocks of the earlier character; None where the
            method cannot tell characters apart.
    """

    kind: Literal["switch"] = "switch"
    method: MethodName
    seed: int | None = None
    row: int = Field(ge=1)
    source: NotBlank
    language: Language
    character: NotBlank
    previous: NotBlank
    turn: int = Field(ge=2)
    tokens: int | None = Field(default=None, ge=1)
    nll: float | None = Field(default=None, ge=0)
    nll_without: float | None = Field(default=None, ge=0)
    nll_previous: float | None = Field(default=None, ge=0)
    failure: Failure | None = None

    @model_validator(mode="after")
    def _scored_or_failed(self) -> Self:
        figures = (self.tokens, self.nll, self.nll_without)
        if (self.failure is None) == any(figure is None for figure in figures):
            raise ValueError("a line has its likelihoods or a failure")
        return self


class LiftScore(Record):
    """One line of results.jsonl: an answer that was generated to a held-out question.

    Attributes:
        question: what was said before the character's first line in the row.
        answer: the likeliest tokens one by one (greedy); None where there is none.
        lift: persona lift of the answer in nats a token, by the base without blocks.
    """

    kind: Literal["lift"] = "lift"
    method: MethodName
    seed: int | None = None
    row: int = Field(ge=1)
    source: NotBlank
    language: Language
    character: NotBlank
    question: str
    answer: str | None = None
    lift: float | None = None
    failure: Failure | None = None

    @model_validator(mode="after")
    def _scored_or_failed(self) -> Self:
        if (self.failure is None) == (self.lift is None or self.answer is None):
            raise ValueError("a line has an answer and its lift, or a failure")
        return self


class Measure(Record):
    """A mean with its 95 % interval.

    Attributes:
        low, high: bootstrap over dialogues, and over seeds where there are several
            (docs/cast-evaluation.md); None below two dialogues.
        n: units (a character in a dialogue; a switch) that have a value under every seed.
        missing: share (0 to 1) of those that should have one and do not.
        reason: why there is no mean.
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = Field(default=0, ge=0)
    missing: float = Field(default=0, ge=0, le=1)
    reason: Why | None = None

    @model_validator(mode="after")
    def _mean_or_reason(self) -> Self:
        if (self.mean is None) == (self.reason is None):
            raise ValueError("a measure has a mean, or a reason why it has none")
        return self


class MethodScores(Record):
    """One method over the whole cast and for each character.

    Attributes:
        seeds: that it was trained with here; () where nothing was trained.
        parameters: trained ones, of the whole cast; None where they are not known.
        active: of those, how many work on a token of one character.
    """

    method: MethodName
    seeds: tuple[int, ...] = ()
    parameters: int | None = Field(default=None, ge=0)
    active: int | None = Field(default=None, ge=0)
    measures: dict[MetricName, Measure]
    characters: dict[str, dict[MetricName, Measure]]


class MethodDifference(Record):
    """A measure of `method` minus that of `other`, dialogue by dialogue (and seed by seed)."""

    method: MethodName
    other: MethodName
    metric: MetricName
    seeds: tuple[int, ...] = ()
    difference: Measure


class Figure(Record):
    """A quantity and how it is known.

    Attributes:
        value: None is unknown.
        how: `measured` on this machine, or `computed` from shapes and sizes.
    """

    value: float | None = Field(default=None, ge=0)
    how: Literal["measured", "computed", "unknown"] = "unknown"

    @model_validator(mode="after")
    def _known_or_unknown(self) -> Self:
        if (self.value is None) != (self.how == "unknown"):
            raise ValueError("a figure says how it is known, and only an unknown one is empty")
        return self


ConsumptionOf = Literal["model_each", "one_shared", "one_per_character", "dense_gate", "cast"]
"""`model_each`: a whole model trained for every character, as Character-LLM does."""


class Consumption(Record):
    """What one way of having a cast consumes (Neeko, Table 5).

    Attributes:
        parameters: trained ones.
        stored: bytes on disk beside the base.
        training_memory: bytes of weights, gradients and optimiser states while it trains; the
            largest of its trainings where they run one after another.
        serving_memory: bytes of weights that serve all characters at once, the base among them.
        training_seconds: of all its training, on one seed's budget.
        token_seconds: to score one held-out token, in batches.
    """

    method: ConsumptionOf
    parameters: Figure
    stored: Figure
    training_memory: Figure
    serving_memory: Figure
    training_seconds: Figure
    token_seconds: Figure


class HeldOut(Record):
    """What a cast was evaluated on.

    Attributes:
        tokens: supervised ones of the dialogues that `cast` could be scored on.
        left_out: of each name that is not in the cast, how many rows have it.
        refused: lines of the files that are no dialogue (refused.jsonl).
    """

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rows: int = Field(ge=0)
    dialogues: int = Field(ge=0)
    switches: int = Field(ge=0)
    tokens: int = Field(ge=0)
    sources: tuple[DataSource, ...] = ()
    left_out: dict[str, int] = {}
    refused: int = Field(default=0, ge=0)


class CastScores(Record):
    """scores.json of a `personae cast eval`.

    Attributes:
        blocks_sha256: of the cast that was evaluated.
        dtype: of the base as it was loaded (`float32`, `bfloat16`); blocks are float32 always.
        device: kind of it: `cpu`, `cuda`.
        seeds: that methods were trained with here.
        chance: of naming the character by guessing: 1 over the number of characters.
        notes: what a reader must know of these figures, as codes of docs/cast-evaluation.md.
    """

    format: Literal["personae-cast-scores/1"] = "personae-cast-scores/1"
    version: str
    base: BaseModelRef
    blocks_sha256: str
    dtype: NotBlank
    device: NotBlank
    mode: Mode
    protocol: CastProtocol
    characters: tuple[str, ...]
    held_out: HeldOut
    seeds: tuple[int, ...] = ()
    chance: float | None
    methods: tuple[MethodScores, ...]
    differences: tuple[MethodDifference, ...] = ()
    consumption: tuple[Consumption, ...] = ()
    notes: tuple[str, ...] = ()


class KeptMethod(Record):
    """A trained method beside the cast, and what its training took.

    Attributes:
        slots: of the stack in its file, in order; of the dense gate its roles.
        parameters: trained ones.
        active: of those, how many work on a token of one character.
        tokens: supervised tokens seen in training, repeats counted, of all characters.
        seconds: of training, on the machine and beside whatever else it did.
        peak_bytes: largest memory that the device gave out; None where the device does not say
            (CPU).
        recipe: hash of the plan, the stages and the rows: what is kept under another one is trained
            again.
        file: beside baselines.json.
    """

    method: MethodName
    seed: int
    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    slots: tuple[NotBlank, ...] = Field(min_length=1)
    parameters: int = Field(ge=1)
    active: int = Field(ge=1)
    tokens: int = Field(ge=1)
    seconds: float = Field(ge=0)
    peak_bytes: int | None = Field(default=None, ge=0)
    recipe: str = Field(pattern=r"^[0-9a-f]{64}$")
    file: NotBlank
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class KeptMethods(Record):
    """baselines.json: the trained methods that a cast is compared with."""

    format: Literal["personae-baselines/1"] = "personae-baselines/1"
    methods: tuple[KeptMethod, ...]
