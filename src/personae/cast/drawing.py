"""From logits to the next token, and from tokens to text.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from personae.records import TokenLogprob

_LIKELY = 512  # tokens looked at before all are sorted
_COLD = 1e-4  # a temperature below which logits over it leave float32
_UNFINISHED = "\ufffd"


def draw(
    logits: Tensor,
    temperature: Sequence[float],
    top_p: Sequence[float],
    draws: Sequence[random.Random],
) -> list[int]:
    """A token for each row of `[rows, vocabulary]`; temperature 0 takes the likeliest.

    By the inverse of the distribution function over the tokens in the order of their probability,
    cut where their sum first reaches top_p (Holtzman et al. 2020, section 3.1).

    Raises:
        FloatingPointError: a logit is no number.
    """
    if bool(logits.isnan().any()):
        raise FloatingPointError("the model gives no numbers (NaN)")
    chosen = logits.argmax(-1)
    warm = [n for n, one in enumerate(temperature) if one > _COLD]
    if warm:
        p = (logits[warm] / logits.new_tensor([temperature[n] for n in warm])[:, None]).softmax(-1)
        most = logits.new_tensor([top_p[n] for n in warm])
        u = logits.new_tensor([draws[n].random() for n in warm])
        likely = min(_LIKELY, p.shape[-1])
        best, which = p.topk(likely, dim=-1)
        found = _at(best, which, most, u)
        if likely < p.shape[-1]:
            # Row by row: which way a row goes must not depend on the others, ties fall differently.
            for n in (best.sum(-1) < most).nonzero()[:, 0].tolist():
                one, where = p[n : n + 1].sort(dim=-1, descending=True, stable=True)
                found[n : n + 1] = _at(one, where, most[n : n + 1], u[n : n + 1])
        chosen[warm] = found
    drawn: list[int] = chosen.tolist()
    return drawn


def _at(p: Tensor, which: Tensor, most: Tensor, u: Tensor) -> Tensor:
    """Of falling probabilities those whose predecessors sum to less than `most`, and of these u."""
    sums = p.cumsum(-1)
    inside = (sums - p) < most[:, None]
    total = (p * inside).sum(-1)
    at = (sums < (u * total)[:, None]).sum(-1)
    return which.gather(-1, torch.minimum(at, inside.sum(-1) - 1)[:, None])[:, 0]


def told(logits: Tensor, token: int, alternatives: int, tokenizer: Any) -> TokenLogprob:
    """The log-probability of a token in nats at temperature 1, and the likeliest alternatives.

    Args:
        logits: `[vocabulary]`.
    """
    all_of = logits.log_softmax(-1)
    values, which = all_of.topk(alternatives)
    return TokenLogprob(
        token=tokenizer.decode([token]),
        logprob=float(all_of[token]),
        top=tuple(
            (tokenizer.decode([int(one)]), float(value))
            for one, value in zip(which, values, strict=True)
        ),
    )


class Text:
    """Tokens to text: in whole characters, and up to the first stop string."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, [s for s in stop if s]
        self._ids: list[int] = []
        # A token's text depends on the one before it (SentencePiece drops a leading space), so the
        # new tokens are decoded behind some that have been read.
        self._from, self._read = 0, 0
        self._held = ""
        self._given: list[str] = []
        self.stopped = False

    @property
    def whole(self) -> str:
        """All that was given out."""
        return "".join(self._given)

    def push(self, token: int) -> str:
        """What is certain to be part of the text, now that this token is there."""
        self._ids.append(token)
        before, now = self._decode(self._from, self._read), self._decode(self._from, None)
        if len(now) <= len(before) or now.endswith(_UNFINISHED):
            return ""
        self._from, self._read = self._read, len(self._ids)
        return self._give(now[len(before) :])

    def end(self) -> str:
        """What was held back."""
        if self.stopped:
            return ""
        before, now = self._decode(self._from, self._read), self._decode(self._from, None)
        rest = self._give(now[len(before) :])
        held, self._held = ("" if self.stopped else self._held), ""
        if held:
            self._given.append(held)
        return rest + held

    def _decode(self, start: int, end: int | None) -> str:
        text: str = self._tokenizer.decode(
            self._ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _give(self, piece: str) -> str:
        text = self._held + piece
        places = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if places:
            self.stopped, self._held = True, ""
            text = text[: min(places)]
        else:
            begun = max((_begins(text, stop) for stop in self._stop), default=0)
            text, self._held = text[: len(text) - begun], text[len(text) - begun :]
        if text:
            self._given.append(text)
        return text


def _begins(text: str, stop: str) -> int:
    """How many last characters of a text are the first ones of a stop string."""
    most = min(len(stop) - 1, len(text))
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
