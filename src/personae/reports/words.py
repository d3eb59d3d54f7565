"""What the characters are made of: the words of their descriptions, by how many share them.

The paper's Figure 3 is a word cloud of persona attributes. Lengths of bars can be compared, sizes
of words cannot; so here each word has a bar.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

from personae.records import Language

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_NAME = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][a-z]+(?: [A-Z][a-z]+)+\b")
_HAN = re.compile("[\u4e00-\u9fff]+")
ENOUGH = 8
"""Shared words from which on those of a single character are left out."""
_CHARS = 2_000
"""Of each description; a longer one is a biography, and its head says who it is about."""


@lru_cache(maxsize=2)
def stop_words(language: Language) -> frozenset[str]:
    """Words that say nothing about a character (in Chinese: characters that end a word)."""
    source = files("personae.reports") / "strings" / f"stopwords.{language}.txt"
    return frozenset(source.read_text(encoding="utf-8").split())


def _english(texts: list[str]) -> Counter[str]:
    """Words in lower case; names keep their capitals, and those of several words stay together."""
    stop = stop_words("en")
    counts: Counter[str] = Counter()
    lower: set[str] = set()
    capital: dict[str, str] = {}
    for text in texts:
        names = set(_NAME.findall(text))
        words = set()
        rest = _NAME.sub(" ", text)
        for match in _WORD.finditer(rest):
            word = match.group().removesuffix("'s").removesuffix("’s")
            key = word.lower()
            if len(key) < 3 or key in stop:
                continue
            words.add(key)
            if word == key:
                lower.add(key)
            elif rest[: match.start()].rstrip()[-1:] not in ("", ".", "!", "?"):
                capital[key] = word
        counts.update(names | words)
    return Counter({w if w in lower else capital.get(w, w): n for w, n in counts.items()})


def _chinese(texts: list[str]) -> Counter[str]:
    """Runs of two to six characters that recur, the longer one where both say the same.

    Without a dictionary there are no words; a run that several descriptions share, and that is
    not part of a longer one as frequent, is the nearest to one.
    """
    stop = stop_words("zh")
    splitter = re.compile("|".join(map(re.escape, sorted(stop, key=len, reverse=True))))
    shared: Counter[str] = Counter()
    for text in texts:
        runs = [part for run in _HAN.findall(text) for part in splitter.split(run) if part]
        shared.update(
            {run[i : i + n] for run in runs for n in range(2, 7) for i in range(len(run) - n + 1)}
        )
    least = 2 if len(texts) > 1 else 1
    common = {run: n for run, n in shared.items() if n >= least}
    inside = Counter[str]()
    for run, n in common.items():
        for size in range(2, len(run)):
            for i in range(len(run) - size + 1):
                part = run[i : i + size]
                inside[part] = max(inside[part], n)
    return Counter({run: n for run, n in common.items() if inside[run] < n})


def attribute_counts(
    descriptions: Iterable[str], language: Language, limit: int = 36
) -> list[tuple[str, int]]:
    """The most shared words with the number of descriptions that hold them, most shared first."""
    texts = [text[:_CHARS] for text in descriptions]
    counts = _chinese(texts) if language == "zh" else _english(texts)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0].lower()))[:limit]
    shared = [item for item in ordered if item[1] > 1]
    return shared if len(shared) >= ENOUGH else ordered
