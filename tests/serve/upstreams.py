"""A cast without a base, an upstream engine over it, and the server over that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from personae.cast.store import write_cast
from personae.characters.starter import starter
from personae.records.cast import BaseModelRef, Block, CastCharacter, Mode
from personae.serve.run import Server, base_url, bind
from personae.serve.upstream import UpstreamEngine
from tests.cast.adding import IDS, OLD, RANK, random_blocks
from tests.serve.scripted import settings
from tests.serve.vllm_stub import RunningVllm


def write_three(path: Path, *, names: tuple[str, ...] = OLD, mode: Mode = "full") -> Path:
    """Holmes, Alice and Ada with their cards, over a base that is not on this machine."""
    write_cast(
        path,
        base=BaseModelRef(id="/models/llama", sha256="0" * 64, architecture="llama"),
        rank=RANK,
        alpha=2.0 * RANK,
        blocks=[Block(name=name) for name in ("shared", *names)],
        characters=[CastCharacter(name=n, weights={"shared": 1.0, n: 1.0}) for n in names],
        tensors=random_blocks(1 + len(names)),
        cards={name: starter(IDS[name]) for name in names},
        mode=mode,
    )
    return path


@asynccontextmanager
async def opened(cast: Path, vllm: RunningVllm, **more: Any) -> AsyncIterator[UpstreamEngine]:
    engine = await UpstreamEngine.open(cast, vllm.url, **{"timeout": 20.0, **more})
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def over(engine: UpstreamEngine) -> AsyncIterator[str]:
    """A server over an engine, in this loop; its base URL."""
    ready = asyncio.Event()
    with closing(bind("127.0.0.1", 0)) as listener:
        server = Server(engine, settings(max_concurrency=64), ready.set)
        serving = asyncio.ensure_future(server.serve([listener]))
        await ready.wait()
        try:
            yield base_url(listener)
        finally:
            server.should_exit = True
            await serving
