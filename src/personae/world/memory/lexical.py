"""Relevance by shared words: BM25 (Robertson and Zaragoza 2009) over SQLite's FTS5, in memory.

Scripts that leave no spaces are indexed character by character. Measured on planted facts among
Chinese scene texts that finds as many as a dictionary of words does, and needs none
(`docs/decisions/0011-memory.md`).
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
import weakref
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from personae.errors import UsageError
from personae.records import Language

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Kana and Han: each character is a term of its own."""
_TERM = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
MAX_QUERY_TERMS = 256


def normalised(text: str) -> str:
    """Case and width made equal."""
    return unicodedata.normalize("NFKC", text).casefold()


def terms(text: str) -> list[str]:
    """The words of a text in order; of Chinese and Japanese, the characters."""
    return _TERM.findall(normalised(text))


def query_terms(text: str, language: Language) -> list[str]:
    """The terms of a question, once each, without the words that stand in any question.

    Where it has no others, they are kept: "Who are you?" still asks for something.
    """
    return content_terms(text, language) or list(dict.fromkeys(terms(text)))[:MAX_QUERY_TERMS]


def content_terms(text: str, language: Language) -> list[str]:
    """The terms of a question that do not stand in any question, once each; of some, none."""
    bare = _questions(language).sub(" ", normalised(text))
    return list(dict.fromkeys(_TERM.findall(bare)))[:MAX_QUERY_TERMS]


@lru_cache(maxsize=2)
def _questions(language: Language) -> re.Pattern[str]:
    source = files("personae.world.memory") / f"stopwords.{language}.txt"
    words = source.read_text(encoding="utf-8").split()
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(longest_first if language == "zh" else rf"\b(?:{longest_first})\b")


class LexicalIndex:
    """Texts numbered from 0 in the order of their coming, and how well each fits a question.

    Raises:
        UsageError: this Python's SQLite was built without FTS5.
    """

    def __init__(self, language: Language, texts: Iterable[str] = ()) -> None:
        self._language = language
        self._count = 0
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        weakref.finalize(self, self._db.close)
        try:
            self._db.execute(
                "CREATE VIRTUAL TABLE memory "
                "USING fts5(text, content='', tokenize='porter unicode61')"
            )
        except sqlite3.OperationalError as error:
            raise UsageError(
                f"this Python's SQLite has no full-text search ({error}): use a Python whose "
                "sqlite3 module has FTS5, as those of python.org, Debian, conda and uv do"
            ) from None
        self.extend(texts)

    def __len__(self) -> int:
        return self._count

    def extend(self, texts: Iterable[str]) -> None:
        """Take texts in."""
        rows = [(self._count + i, " ".join(terms(text))) for i, text in enumerate(texts)]
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO memory(rowid, text) VALUES (?, ?)", rows)
        self._db.execute("COMMIT")
        self._count += len(rows)

    def scores(self, query: str) -> NDArray[np.float64]:
        """BM25 of each text, one float a text; 0 where it shares no term with the query.

        k1 = 1.2 and b = 0.75, as FTS5 has them built in.
        """
        found = np.zeros(self._count)
        wanted = query_terms(query, self._language)
        if not wanted or not self._count:
            return found
        match = " OR ".join(f'"{term}"' for term in wanted)
        rows = self._db.execute(
            "SELECT rowid, -bm25(memory) FROM memory WHERE memory MATCH ?", (match,)
        ).fetchall()
        if rows:
            places, values = zip(*rows, strict=True)
            found[list(places)] = values
        return found
