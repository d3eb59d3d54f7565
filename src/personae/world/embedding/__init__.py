"""Who turns texts into vectors of their meaning.

`minilm` is an English sentence encoder whose weights come in a registry package; `st:NAME` any
sentence-transformers model; `provider/model` and `http://host:port/v1#model` an embeddings
endpoint. None, or `lexical`, is no embedder: memory then goes by shared words alone, in any
language and with nothing to fetch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from personae.errors import ServerError, UsageError

Vector = NDArray[np.float32]
"""One text's meaning: a unit vector, so that a dot product is a cosine."""

LEXICAL = "lexical"
MINILM = "minilm"
_ST = "st:"
MAX_DIMENSION = 16_384


class Embedder(Protocol):
    """Turns texts into unit vectors of one length."""

    @property
    def name(self) -> str:
        """As the user wrote it."""
        ...

    @property
    def dimension(self) -> int | None:
        """Length of the vectors, None until it is known."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """A vector for each text, in their order; a text's vector does not hang on the others.

        Raises:
            TransportError: an endpoint failed after its retries.
            WeightsError: weights cannot be fetched.
            ReplayMissError: a replay lacks one.
        """
        ...

    async def close(self) -> None:
        """Release connections, threads and files."""
        ...


def make_embedder(
    name: str | None,
    *,
    store: Path | None = None,
    replay: bool = False,
    timeout: float = 120.0,
) -> Embedder | None:
    """The embedder of a name, or None where memory goes by shared words alone.

    Args:
        name: None or `lexical`; `minilm`; `st:NAME`; `provider/model`; `http://host:port/v1#model`.
        store: file in the run directory that keeps every vector, so that a resumed or replayed run
            ranks by the very same ones. None keeps nothing.
        replay: answer from the store alone.
        timeout: seconds for one exchange with an endpoint.

    Raises:
        UsageError: no such embedder, a package or a key is missing, or a replay without a store.
        JournalError: the store cannot be used.
    """
    if name is None or name == LEXICAL:
        return None
    if replay and store is None:
        raise UsageError(f"a replay with the embedder {name!r} needs the run's store of vectors")
    maker = _maker(name, timeout)
    if importlib.util.find_spec("faiss") is None:  # the store of the vectors (memory.dense)
        raise UsageError(f"the embedder {name!r} needs faiss: pip install 'personae[memory]'")
    if store is None:
        return maker()
    from personae.world.embedding.kept import KeptEmbedder

    return KeptEmbedder(name, store, None if replay else maker())


def _maker(name: str, timeout: float) -> Callable[[], Embedder]:
    """What makes the embedder of a name; nothing is loaded, looked up or asked yet."""
    from personae.models.providers import is_endpoint_id

    if name == MINILM:
        from personae.world.embedding.minilm import MiniLM

        return MiniLM
    if name.startswith(_ST) and len(name) > len(_ST):
        from personae.world.embedding.transformers import SentenceTransformerEmbedder

        return lambda: SentenceTransformerEmbedder(name.removeprefix(_ST))
    if is_endpoint_id(name):
        from personae.world.embedding.endpoint import EndpointEmbedder

        return lambda: EndpointEmbedder(name, timeout=timeout)
    raise UsageError(
        f"{name!r} is no embedder: use lexical, minilm, st:NAME (sentence-transformers), "
        "provider/model or http://host:port/v1#model (docs/memory.md)"
    )


def unit_vectors(rows: Any, wanted: int, source: str) -> list[Vector]:
    """Rows of numbers as unit vectors.

    Raises:
        ServerError: they are not `wanted` rows of one length, or hold something without direction.
    """
    try:
        found = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError):
        raise ServerError(f"{source} gave vectors of different lengths, or no numbers") from None
    if found.ndim != 2 or len(found) != wanted or not 0 < found.shape[1] <= MAX_DIMENSION:
        raise ServerError(f"{source} gave vectors of shape {found.shape} for {wanted} texts")
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise ServerError(f"{source} gave a vector without direction (zero, NaN or infinite)")
    return list(found / lengths)
