"""Vectors from a sentence-transformers model (`st:NAME`), which brings torch."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from personae.errors import UsageError, WeightsError
from personae.world.embedding import Vector, unit_vectors


class SentenceTransformerEmbedder:
    """A model of the sentence-transformers library, on one thread of its own.

    Args:
        model: a name of the Hugging Face hub or a folder.

    Raises:
        UsageError: the library is not installed.
    """

    def __init__(self, model: str) -> None:
        if importlib.util.find_spec("sentence_transformers") is None:
            raise UsageError(
                f"st:{model} needs sentence-transformers: pip install sentence-transformers"
            )
        self.name = f"st:{model}"
        self._id = model
        self._model: Any = None
        self._dimension: int | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="personae-embed")

    @property
    def dimension(self) -> int | None:
        """Length of the vectors, None before the first."""
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode, list(texts))

    async def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: list[str]) -> list[Vector]:
        if self._model is None:
            from sentence_transformers import SentenceTransformer

            try:
                # No code of a model's repository is run, and no pickle is read.
                self._model = SentenceTransformer(
                    self._id,
                    trust_remote_code=False,
                    model_kwargs={"use_safetensors": True},
                )
            except (OSError, ValueError) as error:
                first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
                raise WeightsError(f"st:{self._id} cannot be loaded: {first}") from None
        # One at a time: in a batch the padding of its neighbours moves a vector's last bits.
        rows = [self._model.encode(text, show_progress_bar=False) for text in texts]
        vectors = unit_vectors(rows, len(texts), self.name) if texts else []
        if vectors:
            self._dimension = len(vectors[0])
        return vectors
