"""The words of the report in English and Chinese, and how it writes numbers."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from personae.records import Estimate, Language
from personae.records.shown import clean

__all__ = ["Words", "clean", "flatten", "load_strings", "one_line"]

_PREFIXES = {
    "answer: ": "no_answer_because",
    "critique: ": "scenes.no_critique_because",
    "interviewer: ": "interviews.no_question_because",
}
"""Of causes that tell of another failure."""


def one_line(text: str, limit: int = 160) -> str:
    """The text on one line, cut with an ellipsis."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


@lru_cache(maxsize=2)
def load_strings(language: Language) -> dict[str, Any]:
    """The strings file of a language, by key; tables nest."""
    source = files("personae.reports") / "strings" / f"{language}.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def flatten(strings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys."""
    flat: dict[str, str] = {}
    for key, value in strings.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = str(value)
    return flat


@dataclass(frozen=True)
class Words:
    """The phrases of one language. Values put into a phrase are plain text, never markup.

    Attributes:
        room: the table whose phrases stand before the general ones of the same key.
    """

    language: Language
    room: str = ""

    @property
    def _phrases(self) -> dict[str, str]:
        return _flat(self.language)

    def __call__(self, key: str, /, **values: object) -> str:
        """The phrase of that key with its values; `KEY_one` is taken where `n` is 1."""
        phrases = self._phrases
        if f"{self.room}.{key}" in phrases:
            key = f"{self.room}.{key}"
        if values.get("n") == 1 and f"{key}_one" in phrases:
            key = f"{key}_one"
        shown = {
            name: f"{value:,}" if isinstance(value, int) else value
            for name, value in values.items()
        }
        return phrases[key].format(**shown)

    def known(self, table: str, name: str) -> str:
        """The phrase for a code such as a task or a cause; the code itself where none is known."""
        general = self._phrases.get(f"{table}.{name}", name)
        return self._phrases.get(f"{self.room}.{table}.{name}", general)

    def cause(self, cause: str) -> str:
        """What a failure's cause means.

        `answer: ...` is a judge that had nothing to judge, `critique: ...` one whose critique could
        not be had, `interviewer: ...` a question that could not be had.
        """
        for prefix, key in _PREFIXES.items():
            if cause.startswith(prefix):
                return self(key, cause=self.cause(cause.removeprefix(prefix)))
        return self.known("causes", cause)

    def number(self, value: float | None, digits: int = 2) -> str:
        """A figure, or the word for unknown."""
        return self("unknown") if value is None else f"{value:,.{digits}f}"

    def count(self, value: int | None) -> str:
        """A whole number with separators, or the word for unknown."""
        return self("unknown") if value is None else f"{value:,}"

    def signed(self, value: float | None) -> str:
        """A figure with its sign and a real minus."""
        if value is None:
            return self("unknown")
        shown = f"{value:+.2f}"
        return "0.00" if shown.strip("+-") == "0.00" else shown.replace("-", "\u2212")

    def share(self, value: float | None) -> str:
        """A share as per cent; a share that is not zero never reads as zero."""
        if value is None:
            return self("unknown")
        if 0 < value < 0.0005:
            return "<0.1%"
        return f"{value:.1%}" if value < 0.9995 or value == 1 else "99.9%"

    def usd(self, value: float | None) -> str:
        """Money; unknown stays unknown."""
        if value is None:
            return self("unknown")
        return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.4f}"

    def duration(self, seconds: float | None) -> str:
        """A time in the two largest units."""
        if seconds is None:
            return self("unknown")
        if seconds < 10:
            return self("seconds", n=f"{seconds:.1f}")
        whole = round(seconds)
        if whole < 60:
            return self("seconds", n=whole)
        if whole < 3600:
            return self("minutes", m=whole // 60, s=whole % 60)
        return self("hours", h=whole // 3600, m=whole % 3600 // 60)

    def interval(self, estimate: Estimate, *, signed: bool = False) -> str:
        """The 95 % interval, or why there is none."""
        if estimate.mean is None:
            return self("no_score")
        if estimate.low is None or estimate.high is None:
            return self("no_interval")
        show = self.signed if signed else self.number
        return f"[{show(estimate.low)}, {show(estimate.high)}]"


@lru_cache(maxsize=2)
def _flat(language: Language) -> dict[str, str]:
    return flatten(load_strings(language))
