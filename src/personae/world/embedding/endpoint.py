"""Vectors from an OpenAI-compatible `/v1/embeddings` endpoint.

The calls stand outside the journal: their vectors are kept in the run's store, and their cost is in
no cap (docs/memory.md).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

from personae.errors import ServerError, TransportError
from personae.journal.client import FIRST_DELAY, LONGEST_DELAY, MOST_ATTEMPTS
from personae.models.complaints import as_dict
from personae.models.providers import Address, resolve
from personae.models.wire import OpenAICompatible
from personae.world.embedding import Vector, unit_vectors

BATCH = 64
"""Texts in one request: the least of the usual limits."""
IN_FLIGHT = 8


class _Wire(OpenAICompatible):
    """The wire of the chat models, its errors and its care for keys, at another path."""

    path = "/embeddings"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One attempt.

        Raises:
            TransportError: see `personae.errors`.
        """
        body = {"model": self._address.model, "input": list(texts), "encoding_format": "float"}
        answer, _ = await self._exchange(json.dumps(body).encode())
        rows = answer.get("data")
        if not isinstance(rows, list):
            raise ServerError(f"{self.endpoint} answered without vectors")
        entries = [as_dict(row) for row in rows]
        if sorted(str(e.get("index")) for e in entries) != sorted(map(str, range(len(texts)))):
            raise ServerError(
                f"{self.endpoint} gave {len(rows)} vectors for {len(texts)} texts, or numbered "
                "them otherwise"
            )
        ordered: list[Any] = [None] * len(texts)
        for entry in entries:
            ordered[int(entry["index"])] = entry.get("embedding")
        return unit_vectors(ordered, len(texts), self.endpoint)


class EndpointEmbedder:
    """An embedding model behind an endpoint.

    Args:
        name: `provider/model` or `http://host:port/v1#model`.
        timeout: seconds for one exchange.
        first_delay: seconds before the first retry, doubled with each.

    Raises:
        UsageError: no such provider, or a key is missing.
    """

    def __init__(
        self, name: str, *, timeout: float = 120.0, first_delay: float = FIRST_DELAY
    ) -> None:
        address: Address = resolve(name)
        self.name = name
        self._wire = _Wire(address, timeout=timeout)
        self._first_delay = first_delay
        self._dimension: int | None = None
        self._free = asyncio.Semaphore(IN_FLIGHT)
        self._jitter = random.Random()  # noqa: S311  (delays, not secrets)

    @property
    def dimension(self) -> int | None:
        """Length of the vectors, None before the first."""
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        batches = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]
        made = [v for part in await asyncio.gather(*map(self._batch, batches)) for v in part]
        lengths = {len(v) for v in made} | ({self._dimension} - {None})
        if len(lengths) > 1:
            raise ServerError(f"{self._wire.endpoint} gave vectors of different lengths")
        if made:
            self._dimension = len(made[0])
        return made

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()

    async def _batch(self, texts: Sequence[str]) -> list[Vector]:
        attempt = 0
        while True:
            try:
                async with self._free:
                    return await self._wire.embed(texts)
            except TransportError as error:
                attempt += 1
                if not error.retryable or attempt >= MOST_ATTEMPTS:
                    raise
                wish = getattr(error, "retry_after", None) or 0.0
                ceiling = min(LONGEST_DELAY, self._first_delay * 2.0**attempt)
                await asyncio.sleep(
                    min(float(wish), LONGEST_DELAY) + self._jitter.uniform(0, ceiling)
                )
