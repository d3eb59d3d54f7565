from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from personae.models.providers import backend_for_endpoint
from personae.models.wire import OpenAICompatible
from tests.models.stub import StubEndpoint

Connect = Callable[..., OpenAICompatible]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def endpoint() -> AsyncIterator[StubEndpoint]:
    stub = StubEndpoint()
    await stub.start()
    yield stub
    await stub.stop()


@pytest.fixture
async def connect(endpoint: StubEndpoint) -> AsyncIterator[Connect]:
    """Makes backends (of the stub, unless an id is given) and closes them after the test."""
    made: list[OpenAICompatible] = []

    def make(
        model_id: str | None = None, *, timeout: float = 10.0, connect_timeout: float = 5.0
    ) -> OpenAICompatible:
        backend = backend_for_endpoint(
            model_id or endpoint.model_id, timeout=timeout, connect_timeout=connect_timeout
        )
        made.append(backend)
        return backend

    yield make
    for backend in made:
        await backend.close()
