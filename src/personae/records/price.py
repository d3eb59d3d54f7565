"""What tokens cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from personae.records.call import Usage


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens; `cached` is what a cached prompt token costs."""

    tokens_in: float
    tokens_out: float
    cached: float | None = None

    def of(self, usage: Usage) -> float | None:
        """The price of one reply; None where the endpoint did not report its usage."""
        if usage.tokens_in is None or usage.tokens_out is None:
            return None
        return self.of_tokens(usage.tokens_in, usage.tokens_out, usage.cached or 0)

    def of_tokens(self, tokens_in: int, tokens_out: int, cached: int = 0) -> float:
        """The price of token sums."""
        cheap = self.tokens_in if self.cached is None else self.cached
        return ((tokens_in - cached) * self.tokens_in + cached * cheap
                + tokens_out * self.tokens_out) / 1e6  # fmt: skip


class Prices(Protocol):
    """Looks prices up; None is unknown, which is not free."""

    def __call__(self, model: str) -> Price | None:
        """The price of a model."""
        ...
