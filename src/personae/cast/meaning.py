"""Meaning beside words, for the instructions that words leave open.

A vector costs ten times as much as a route by words, and on the starter cast an English encoder
adds nothing to it (`docs/routing.md`). It is for casts whose instructions come in other words than
their cards', or in another language, with an encoder that knows both (`st:NAME`, an endpoint). What
a name or the words decide stays as it is; nothing is accepted by meaning alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from personae.cast.calibrate import FALSE_ACCEPT, Example, accept_threshold
from personae.cast.profiles import TOP
from personae.cast.router import NEIGHBOURS, Router
from personae.errors import UsageError
from personae.records.cast import Routed

if TYPE_CHECKING:
    from personae.world.embedding import Embedder

Floats = NDArray[np.float64]
RANK = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Buettcher 2009)."""


class MeaningRouter:
    """A router that looks up the meaning of what words leave open; made by `made`."""

    def __init__(
        self, router: Router, embedder: Embedder, vectors: Floats, owner: NDArray[np.intp]
    ) -> None:
        self.router = router
        self._embedder = embedder
        self._vectors = vectors
        self._owner = owner
        self.ask_from = np.inf

    @classmethod
    async def made(
        cls,
        router: Router,
        embedder: Embedder,
        examples: Sequence[Example],
        *,
        false_ask: float = FALSE_ACCEPT,
    ) -> MeaningRouter:
        """A router with the vectors of all pieces, and a threshold from strangers.

        Args:
            examples: of these, what is `unknown` and left open by words sets the cosine from which
                the user is asked (split conformal, as in `cast.calibrate`).
            false_ask: the rate of such strangers that may be asked about.

        Raises:
            UsageError: there are too few strangers for the rate.
            TransportError: an embedding endpoint failed after its retries.
        """
        pieces = [(n, text) for n, role in enumerate(router.roles) for text in router.pieces(role)]
        vectors = await embedder.embed([text for _, text in pieces])
        owner = np.array([n for n, _ in pieces], dtype=np.intp)
        made = cls(router, embedder, np.stack(vectors).astype(np.float64), owner)
        strangers = [e.text for e in examples if e.kind == "unknown"]
        left = [text for text in strangers if _open(router.route(text))]
        made.ask_from = accept_threshold(
            [float((await made.closeness(text)).max()) for text in left], false_ask
        )
        if np.isinf(made.ask_from):
            raise UsageError(f"{len(left)} strangers are too few for a rate of {false_ask}")
        return made

    async def closeness(self, text: str) -> Floats:
        """Of each role, the mean cosine of its three nearest pieces."""
        (query,) = await self._embedder.embed([text])
        cosines = self._vectors @ query.astype(np.float64)
        return np.array(
            [
                np.sort(cosines[self._owner == n])[-TOP:].mean()
                for n in range(len(self.router.roles))
            ]
        )

    async def route(self, instruction: str, *, previous: str | None = None) -> Routed:
        """Who an instruction asks for; see `Router.route`.

        Where words leave it open, the role that is best by reciprocal ranks of words and meaning
        is asked about, if words would ask or the meaning is near enough.
        """
        found = self.router.route(instruction, previous=previous)
        if not _open(found) or not instruction.strip():
            return found
        near = await self.closeness(instruction)
        if found.decision == "reject" and near.max() <= self.ask_from:
            return found
        words = np.array(self.router.evidence(instruction).scores)
        joined = _reciprocal(near) + np.where(words > 0, _reciprocal(words), 0.0)
        order = np.argsort(-joined, kind="stable")[:NEIGHBOURS]
        roles, total = self.router.roles, float(joined[order].sum())
        return found.model_copy(
            update={
                "decision": "ask",
                "role": roles[order[0]],
                "weights": {roles[n]: float(joined[n]) / total for n in order},
            }
        )


def _open(found: Routed) -> bool:
    """Whether words have neither named nor accepted anybody, nor found a stranger's name."""
    return found.by == "profile" and found.decision != "accept"


def _reciprocal(scores: Floats) -> Floats:
    ranks = np.argsort(np.argsort(-scores, kind="stable"), kind="stable")
    shares: Floats = 1 / (RANK + 1 + ranks)
    return shares
