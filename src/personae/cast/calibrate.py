"""From evidence to a decision: a logistic score, and thresholds with a stated rate of error.

The score is the log-odds that somebody of the cast is wanted and that the best profile is his or
hers, by a ridge-penalised logistic regression on a handful of features that name no character
(`FEATURES`), so that it serves any cast. No softmax over the cast: its shares always sum to 1, so
that somebody always wins (Neeko, equation 6).

`accept` is a split-conformal threshold (Vovk, Gammerman and Shafer 2005; Angelopoulos and Bates
2023): of strangers like those it was set on, at most `false_accept` are accepted, in the mean over
such sets. Scores of a set's own examples would be too good; those used come from models that did
not see the example (cross-conformal: Vovk 2015, to within the difference between those models and
the one that is kept).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from personae.errors import InputError, UsageError
from personae.records import Language, Record

Floats = NDArray[np.float64]
Split = Literal["dev", "heldout", "cross"]

FEATURES = (
    "held", "evidence", "margin", "bare", "proper", "is_a", "lead", "of_another", "unsaid",
    "described", "strange", "modifiers", "chinese",
)  # fmt: skip
"""What a route is judged by; see `Router.evidence`."""
FALSE_ACCEPT = 0.10
LOST = 0.02
RIDGE = 1.0
FOLDS = 8


class Example(Record):
    """One line of an instruction set.

    Attributes:
        kind: `named` and `misspelt` give a name; `implied` describes; `unknown` wants somebody who
            is not of the cast; `switch` is said in the middle of a dialogue.
        role: who is wanted; None for a stranger.
        previous: who has been playing.
        language: of the text where the file has several.
    """

    kind: Literal["named", "misspelt", "implied", "unknown", "switch"]
    role: str | None
    text: str = Field(min_length=1)
    previous: str | None = None
    language: Language | None = None


class Calibration(Record):
    """How evidence becomes a decision.

    Attributes:
        mean, scale: of each feature, to standardise it.
        weights: of each standardised feature; `bias` is added.
        accept: by language, log-odds from which a role is accepted.
        ask: by language, log-odds from which the user is asked.
        false_accept: the rate of accepted strangers that `accept` was set for.
        lost: the rate of known characters that may be rejected, which `ask` was set for.
        known, unknown: by language, how many examples the thresholds rest on.
    """

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    accept: dict[Language, float]
    ask: dict[Language, float]
    false_accept: float = Field(gt=0, lt=1)
    lost: float = Field(gt=0, lt=1)
    known: dict[Language, int] = {}
    unknown: dict[Language, int] = {}

    def score(self, features: Sequence[float]) -> float:
        """Log-odds that the best role is the one that is wanted."""
        standard = (np.asarray(features) - self.mean) / self.scale
        return float(standard @ np.asarray(self.weights) + self.bias)


def probability(score: float) -> float:
    """Log-odds as a probability."""
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, score))))


def instructions(split: Split, language: Language | None = None) -> tuple[Example, ...]:
    """The instruction sets that ship, for the eight named characters of the starter cast.

    Args:
        split: `dev` may tune; `heldout`, a third of all, is for final figures alone; `cross` asks
            for characters in the other language than their cards'.
        language: of the instructions; not for `cross`.
    """
    name = "cross.jsonl" if split == "cross" else f"{split}.{language}.jsonl"
    text = files("personae.data").joinpath("router", name).read_text("utf-8")
    return tuple(
        Example.from_dict(json.loads(line), path=name, place=f"line {number}")
        for number, line in enumerate(text.splitlines(), 1)
    )


@cache
def default_calibration() -> Calibration:
    """The calibration that ships: of `dev`, both languages (`benchmarks/router.py --calibrate`)."""
    text = files("personae.data").joinpath("router", "calibration.json").read_text("utf-8")
    return Calibration.from_dict(json.loads(text), path="calibration.json")


def logistic(x: Floats, y: Floats, *, ridge: float = RIDGE) -> tuple[Floats, float]:
    """Weights and bias of a ridge-penalised logistic regression, by Newton's method.

    Args:
        x: (n, d), standardised.
        y: n labels, 0 or 1.
        ridge: penalty on each squared weight, halved; the bias has none.
    """
    design = np.c_[x, np.ones(len(x))]
    penalty = np.diag([*np.full(x.shape[1], ridge), 1e-9])
    weights = np.zeros(design.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(design @ weights, -60, 60)))
        gradient = design.T @ (p - y) + penalty @ weights
        hessian = (design * (p * (1 - p))[:, None]).T @ design + penalty
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-10:
            break
    return weights[:-1], float(weights[-1])


def accept_threshold(strangers: Sequence[float], rate: float) -> float:
    """The score above which a stranger lies with a probability of at most `rate`.

    The ceil((n + 1)(1 - rate))-th smallest of n exchangeable scores (Angelopoulos and Bates 2023,
    section 1); infinite where n is too small for the rate.
    """
    rank = math.ceil((len(strangers) + 1) * (1 - rate) - 1e-9)
    return sorted(strangers)[rank - 1] if rank <= len(strangers) else math.inf


def ask_threshold(known: Sequence[float], rate: float) -> float:
    """The score below which a known one lies with a probability of at most `rate`."""
    return -accept_threshold([-score for score in known], rate)


def fit_calibration(
    features: Sequence[Sequence[float]],
    right: Sequence[bool],
    wanted: Sequence[bool],
    languages: Sequence[Language],
    names: tuple[str, ...] = FEATURES,
    *,
    false_accept: float = FALSE_ACCEPT,
    lost: float = LOST,
) -> Calibration:
    """A calibration from examples.

    Args:
        features: of each example.
        right: whether its best profile is of the role that is wanted.
        wanted: whether it wants somebody of the cast.
        languages: of each example; thresholds are set for each on its own.
        false_accept: of strangers, the rate that may be accepted.
        lost: of known characters, the rate that may be rejected without a question.

    Raises:
        UsageError: a language has too few strangers or known ones for these rates.
    """
    x, y = np.asarray(features, dtype=np.float64), np.asarray(right, dtype=np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < 1e-9] = 1.0
    standard = (x - mean) / scale
    out = np.zeros(len(x))
    for fold in range(FOLDS):
        test = np.arange(len(x)) % FOLDS == fold
        weights, bias = logistic(standard[~test], y[~test])
        out[test] = standard[test] @ weights + bias
    weights, bias = logistic(standard, y)
    accept: dict[Language, float] = {}
    ask: dict[Language, float] = {}
    counts: dict[str, dict[Language, int]] = {"known": {}, "unknown": {}}
    for language in dict.fromkeys(languages):
        here = np.array([one == language for one in languages])
        strangers = out[here & ~np.asarray(wanted)]
        known = out[here & np.asarray(right)]
        accept[language] = accept_threshold(list(strangers), false_accept)
        ask[language] = min(accept[language], ask_threshold(list(known), lost))
        if not (math.isfinite(accept[language]) and math.isfinite(ask[language])):
            raise UsageError(
                f"{len(strangers)} strangers and {len(known)} known characters in {language!r} "
                f"are too few for rates of {false_accept} and {lost}"
            )
        counts["known"][language], counts["unknown"][language] = len(known), len(strangers)
    return Calibration(
        features=names,
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(weights.tolist()),
        bias=bias,
        accept=accept,
        ask=ask,
        false_accept=false_accept,
        lost=lost,
        **counts,
    )


def check_features(calibration: Calibration) -> None:
    """Whether a calibration is for the features of this version.

    Raises:
        InputError: it is for others, or its lists differ in length.
    """
    size = len(FEATURES)
    lists = (calibration.mean, calibration.scale, calibration.weights)
    if calibration.features != FEATURES or any(len(one) != size for one in lists):
        raise InputError(
            f"the router's calibration is for other features ({', '.join(calibration.features)})",
            mend="Make the router anew from the cards",
        )
    if any(one <= 0 for one in calibration.scale):
        raise InputError("a scale of the router's calibration is not above 0")
