"""Vectors kept in the run directory, keyed by the content: a replay asks nobody.

One SQLite file a run: a sentence that four characters perceive is embedded once. What is kept first
stays; a second answer of an endpoint may differ in its last bits, and a ranking must not.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from personae.errors import JournalError, ReplayMissError
from personae.world.embedding import MAX_DIMENSION, Embedder, Vector

_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    key BLOB PRIMARY KEY,   -- BLAKE2b of the embedder's name and the text
    data BLOB NOT NULL      -- float32, little-endian, unit length
) WITHOUT ROWID
"""
_BATCH = 500  # SQLite's oldest limit on the parameters of a statement is 999


class KeptEmbedder:
    """An embedder whose vectors stay in a file.

    Args:
        name: the embedder's.
        path: the file; made where it is not there.
        inner: who is asked for what the file lacks; None in a replay, which writes nothing.

    Raises:
        JournalError: the file cannot be opened or is none of these.
    """

    def __init__(self, name: str, path: Path, inner: Embedder | None) -> None:
        self.name = name
        self._path = path
        self._inner = inner
        self._dimension: int | None = None
        self._db: sqlite3.Connection | None = None
        self._running: dict[bytes, asyncio.Future[None]] = {}
        try:
            if inner is not None:
                self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.execute(_SCHEMA)
            elif path.is_file():
                uri = f"{path.resolve().as_uri()}?mode=ro"
                self._db = sqlite3.connect(
                    uri, uri=True, check_same_thread=False, isolation_level=None
                )
        except sqlite3.Error as error:
            if self._db is not None:
                self._db.close()
            raise self._unusable(error) from None

    @property
    def dimension(self) -> int | None:
        """Length of the vectors, None until one was seen."""
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        keys = {text: _key(self.name, text) for text in texts}
        kept = self._read(list(keys.values()))
        missing = [text for text, key in keys.items() if key not in kept]
        if missing:
            if self._inner is None:
                raise ReplayMissError(
                    f"{self._path}: holds no vector of {self.name} for {missing[0][:60]!r}; the "
                    "run was not finished with this embedder"
                )
            mine = {keys[text]: text for text in missing if keys[text] not in self._running}
            if mine:
                task = asyncio.ensure_future(self._make(mine, self._inner))
                self._running |= dict.fromkeys(mine, task)
            # What another character asked for a moment ago is waited for, not asked for again.
            await asyncio.gather(*{self._running[keys[text]] for text in missing})
            kept |= self._read([keys[text] for text in missing])
        return [kept[keys[text]] for text in texts]

    async def _make(self, texts: Mapping[bytes, str], inner: Embedder) -> None:
        """Have vectors made and keep them."""
        try:
            made = await inner.embed(list(texts.values()))
            rows = [(k, v.astype("<f4").tobytes()) for k, v in zip(texts, made, strict=True)]
            self._write(rows)
        finally:
            for key in texts:
                del self._running[key]

    async def close(self) -> None:
        """Close the file and the embedder behind it."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._inner is not None:
            await self._inner.close()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        found: dict[bytes, Vector] = {}
        if self._db is None:
            return found
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            marks = ",".join("?" * len(batch))
            try:
                rows = self._db.execute(
                    f"SELECT key, data FROM vectors WHERE key IN ({marks})",  # noqa: S608  only marks
                    batch,
                ).fetchall()
            except sqlite3.Error as error:
                raise self._unusable(error) from None
            for key, data in rows:
                found[key] = self._vector(data)
        return found

    def _vector(self, data: object) -> Vector:
        if isinstance(data, bytes) and len(data) % 4 == 0 and 0 < len(data) <= 4 * MAX_DIMENSION:
            vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
            if self._dimension is None:
                self._dimension = len(vector)
            if len(vector) == self._dimension and np.isfinite(vector).all():
                return vector
        raise JournalError(f"{self._path}: holds a damaged vector; delete the file and go on")

    def _write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        assert self._db is not None
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR IGNORE INTO vectors (key, data) VALUES (?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.Error) -> JournalError:
        return JournalError(f"{self._path}: the store of vectors cannot be used ({error})")


def _key(name: str, text: str) -> bytes:
    return blake2b(f"{name}\n{text}".encode("utf-8", "surrogatepass"), digest_size=32).digest()
