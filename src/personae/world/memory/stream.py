"""One character's memories, and their recall by relevance, recency and importance."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from personae.errors import InputError, UsageError
from personae.records import Language, Memorised
from personae.records.base import Record
from personae.world.memory.lexical import LexicalIndex

if TYPE_CHECKING:
    from personae.world.embedding import Embedder
    from personae.world.memory.dense import DenseIndex

MemoryKind = Literal["observation", "action", "speech", "reaction", "belief", "seed"]
Scores = NDArray[np.float64]
Ids = NDArray[np.intp]

MAX_TEXT = 4_000
"""Characters of one memory; a longer one ends there in "…", which the trace shows."""
_DIGITS = 6
"""Decimals of a score: what differs by less, as between two machines' last bits, is a tie."""


class Memory(Record):
    """One thing a character remembers.

    Attributes:
        id: its number in the stream, from 0.
        step: the step of the game at which it came about; 0 is before the play.
        importance: 0 to 1, given by the caller.
    """

    id: int = Field(ge=0)
    step: int = Field(ge=0)
    kind: MemoryKind
    text: str = Field(min_length=1, max_length=MAX_TEXT)
    importance: float = Field(ge=0, le=1)


class Weights(Record):
    """How much each component counts; the defaults are measured (`docs/memory.md`).

    Attributes:
        relevance, recency, importance: the alphas of Park et al. 2023, section 4.1.
        decay: what is left of recency after one step of the game.
        lexical: of relevance, the share of shared words where there is an embedder too.
    """

    relevance: float = Field(default=3.0, ge=0)
    recency: float = Field(default=0.5, ge=0)
    importance: float = Field(default=0.5, ge=0)
    decay: float = Field(default=0.995, gt=0, le=1)
    lexical: float = Field(default=0.2, ge=0, le=1)


DEFAULT_WEIGHTS = Weights()


class MemoryStream:
    """The memories of one character.

    Args:
        language: whose question words are left out of a query; memories may be in any language.
        embedder: adds the closeness of meaning to the words shared; None is words alone.
        weights: of the components.
    """

    def __init__(
        self,
        language: Language,
        *,
        embedder: Embedder | None = None,
        weights: Weights = DEFAULT_WEIGHTS,
    ) -> None:
        self._language = language
        self._embedder = embedder
        self._weights = weights
        self._memories: list[Memory] = []
        self._steps = array("q")
        self._importance = array("d")
        self._lexical = LexicalIndex(language)
        self._dense: DenseIndex | None = None
        self._lock = asyncio.Lock()
        self._past: tuple[Ids, LexicalIndex] | None = None

    def __len__(self) -> int:
        return len(self._memories)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """All of them, in the order of their coming."""
        return tuple(self._memories)

    def add(self, text: str, *, step: int, kind: str, importance: float) -> Memory:
        """Remember something.

        Args:
            text: the words; beyond `MAX_TEXT` characters cut, with "…" in the place of the rest.
            step: of the game, from 0.
            kind: one of `MemoryKind`.
            importance: 0 to 1. No model is asked for it here: the released CharacterBox spends a
                third of its calls on ratings that it never reads (`research/upstream.md`, part B).

        Raises:
            InputError: there are no words, no such kind, or a number is out of its range.
        """
        words = _whole(text).strip()
        if not words:
            raise InputError("a memory has no words", mend="Add only what was seen, said or done")
        if len(words) > MAX_TEXT:
            words = words[: MAX_TEXT - 1] + "…"
        memory = Memory.from_dict(
            {
                "id": len(self._memories),
                "step": step,
                "kind": kind,
                "text": words,
                "importance": importance,
            }
        )
        self._memories.append(memory)
        self._steps.append(memory.step)
        self._importance.append(memory.importance)
        return memory

    async def recall(
        self, query: str, *, now: int, limit: int = 8, exclude_after: int | None = None
    ) -> tuple[Memorised, ...]:
        """The memories that score highest, best first; among equals the one that came first.

        Park et al. 2023, section 4.1: each component is brought to 0..1 over all memories (min-max;
        one on which all agree counts 0), weighted and summed. Recency is `decay` to the power of
        the steps gone by since the memory came about: game time, so that a replay is exact. In
        what comes back the three components are unweighted, and `score` is their weighted sum.

        Args:
            query: what the character has before it: the situation, a question, a plan.
            now: the step of the game. What lies after it is not known yet.
            limit: how many at most.
            exclude_after: the last step that may be remembered, where that is before `now`. What
                lies after it changes nothing, as though it had never been added.

        Raises:
            UsageError: `limit` is negative, or the embedder lacks a package.
            TransportError: an embedding endpoint failed after its retries.
            ReplayMissError: a replay needs a vector that the run does not hold.
        """
        if limit < 0:
            raise UsageError(f"limit is {limit}; it counts from 0")
        last = now if exclude_after is None else min(now, exclude_after)
        # Memories that are added while an embedder is awaited are not part of this recall.
        steps, weighed = np.array(self._steps), np.array(self._importance)
        known = np.flatnonzero(steps <= last)
        if not len(known) or not limit:
            return ()
        w = self._weights
        relevance = _normalised(await self._relevance(query, known))
        recency = _normalised(w.decay ** (now - steps[known]))
        importance = _normalised(weighed[known])
        scores = np.round(
            w.relevance * relevance + w.recency * recency + w.importance * importance, _DIGITS
        )
        best = np.argsort(-scores, kind="stable")[:limit]
        return tuple(
            Memorised(
                text=memory.text,
                round=memory.step,
                kind=memory.kind,
                score=float(scores[i]),
                relevance=float(relevance[i]),
                recency=float(recency[i]),
                importance=float(importance[i]),
            )
            for i in best
            for memory in [self._memories[known[i]]]
        )

    async def _relevance(self, query: str, known: Ids) -> Scores:
        """Shared words and closeness of meaning, each min-max-normalised, and joined.

        A convex combination beats ranks and needs one parameter (Bruch, Gai and Ingber 2023).
        """
        query = _whole(query[:MAX_TEXT])
        words = self._shared_words(query, known)
        if self._embedder is None or not query.strip():
            return words
        meaning = await self._closeness(self._embedder, query, known)
        share = self._weights.lexical
        return share * _normalised(words) + (1 - share) * _normalised(meaning)

    def _shared_words(self, query: str, known: Ids) -> Scores:
        """BM25 over the known memories alone: its word counts must not know of later ones."""
        if len(known) == len(self._memories):
            self._lexical.extend(m.text for m in self._memories[len(self._lexical) :])
            return self._lexical.scores(query)
        if self._past is None or not np.array_equal(self._past[0], known):
            texts = (self._memories[i].text for i in known)
            self._past = (known, LexicalIndex(self._language, texts))
        return self._past[1].scores(query)

    async def _closeness(self, embedder: Embedder, query: str, known: Ids) -> Scores:
        """The cosine of each known memory with the query."""
        from personae.world.memory.dense import DenseIndex

        async with self._lock:
            done = 0 if self._dense is None else len(self._dense)
            texts = [m.text for m in self._memories[done:]]
            vectors = await embedder.embed([*texts, query])
            if self._dense is None:
                self._dense = DenseIndex(len(vectors[-1]))
            self._dense.extend(vectors[:-1])
        return self._dense.cosines(vectors[-1])[known]


def _whole(text: str) -> str:
    """Text that UTF-8 can hold: half of a surrogate pair becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _normalised(values: Scores) -> Scores:
    """Min-max to 0..1; 0 for all where all are equal, for then nothing is told apart."""
    low, high = float(values.min()), float(values.max())
    if high - low < 10.0**-12:
        return np.zeros(len(values))
    return np.round((values - low) / (high - low), _DIGITS)
