"""Which of the two languages a text is in."""

from __future__ import annotations

import re
from collections.abc import Iterable

from personae.records.benchmark import Language

_HAN = re.compile("[\u3400-\u9fff]")
_LETTER = re.compile(r"[^\W\d_]")


def written_in(texts: Iterable[str]) -> Language:
    """The language that most of the texts are in: Chinese from three Han letters in ten."""
    letters = han = 0
    for text in texts:
        han += len(_HAN.findall(text))
        letters += len(_LETTER.findall(text))
    return "zh" if letters and han / letters >= 0.3 else "en"
