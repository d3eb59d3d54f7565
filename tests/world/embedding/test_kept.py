from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from personae.errors import JournalError, ReplayMissError, ServerError
from personae.world.embedding import Vector
from personae.world.embedding.kept import KeptEmbedder
from personae.world.memory import MemoryStream
from tests.world.memory.compass import Compass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.sqlite"


async def test_a_text_is_embedded_once_in_the_life_of_a_run(path: Path) -> None:
    first, again = Compass(), Compass()
    kept = KeptEmbedder("compass", path, first)
    made = await kept.embed(["north", "east", "north"])
    assert first.asked == ["north", "east"]
    await kept.close()
    kept = KeptEmbedder("compass", path, again)
    assert np.array_equal(await kept.embed(["north", "east", "north"]), made)
    assert again.asked == []
    assert kept.dimension == 2
    await kept.close()


async def test_two_who_want_a_vector_at_once_ask_once(path: Path) -> None:
    class Slow(Compass):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            await asyncio.sleep(0)
            return await super().embed(texts)

    slow = Slow()
    kept = KeptEmbedder("compass", path, slow)
    one, other = await asyncio.gather(kept.embed(["north", "east"]), kept.embed(["east", "west"]))
    assert sorted(slow.asked) == ["east", "north", "west"]
    assert np.array_equal(one[1], other[0])
    await kept.close()


async def test_a_failure_reaches_all_who_wait_and_is_not_kept(path: Path) -> None:
    class Ill(Compass):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            await asyncio.sleep(0)
            if not self.asked:
                self.asked += texts
                raise ServerError("it broke")
            return await super().embed(texts)

    kept = KeptEmbedder("compass", path, Ill())
    both = await asyncio.gather(
        kept.embed(["north"]), kept.embed(["north"]), return_exceptions=True
    )
    assert [str(e) for e in both] == ["it broke", "it broke"]
    assert len(await kept.embed(["north"])) == 1
    await kept.close()


async def test_vectors_of_another_embedder_are_not_taken_for_its_own(path: Path) -> None:
    for name in ("compass", "another"):
        compass = Compass()
        kept = KeptEmbedder(name, path, compass)
        await kept.embed(["north"])
        assert compass.asked == ["north"]
        await kept.close()


async def test_a_replay_recalls_the_same_with_nobody_to_ask(path: Path) -> None:
    async def play(embedder: KeptEmbedder) -> object:
        memories = MemoryStream("en", embedder=embedder)
        for step, text in enumerate(("north", "east", "a\ud800b", "南")):
            memories.add(text, step=step, kind="observation", importance=0.5)
        found = await memories.recall("north \udfff", now=4)
        await embedder.close()
        return found

    live = await play(KeptEmbedder("compass", path, Compass()))
    before = path.read_bytes()
    assert await play(KeptEmbedder("compass", path, None)) == live
    assert path.read_bytes() == before


async def test_a_replay_that_lacks_a_vector_says_so(path: Path) -> None:
    kept = KeptEmbedder("compass", path, Compass())
    await kept.embed(["north"])
    await kept.close()
    kept = KeptEmbedder("compass", path, None)
    with pytest.raises(ReplayMissError, match="no vector of compass for 'east'"):
        await kept.embed(["north", "east"])
    await kept.close()


async def test_a_replay_without_the_file_says_so_and_makes_none(path: Path) -> None:
    kept = KeptEmbedder("compass", path, None)
    with pytest.raises(ReplayMissError):
        await kept.embed(["north"])
    await kept.close()
    assert not path.exists()


async def test_more_texts_than_a_statement_has_parameters_are_found(path: Path) -> None:
    texts = [f"{i} north" for i in range(1500)]
    kept = KeptEmbedder("compass", path, Compass())
    assert len(await kept.embed(texts)) == 1500
    await kept.close()


async def test_a_damaged_vector_is_refused(path: Path) -> None:
    kept = KeptEmbedder("compass", path, Compass())
    await kept.embed(["north"])
    await kept.close()
    for damage in (b"", b"abc", np.array([1, np.nan], dtype="<f4").tobytes(), "text"):
        db = sqlite3.connect(path)
        db.execute("UPDATE vectors SET data = ?", (damage,))
        db.commit()
        db.close()
        kept = KeptEmbedder("compass", path, None)
        with pytest.raises(JournalError, match="damaged vector"):
            await kept.embed(["north"])
        await kept.close()


def test_a_file_that_is_no_store_is_refused(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(JournalError, match="cannot be used"):
        KeptEmbedder("compass", path, Compass())
