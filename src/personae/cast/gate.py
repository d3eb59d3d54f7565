"""Neeko's gate, as the paper has it (`--protocol paper`); ours is `cast.router`.

A matrix of role embeddings from the profiles, one row a role; an instruction selects the row that
is most similar to its own embedding; a learned linear map of that row, through a softmax, gives the
weight of each block (Yu et al. 2024, section 3.2, equation 6). A new role adds a row to the matrix
and dimensions to the map; all that was there is frozen (section 3.3, equation 8). It has no way to
say that a role is not there: its weights always sum to 1.

The paper embeds with DeBERTa-v3; its released code with a Swedish sentence encoder over the string
"I want you to act like {character}" and the first paragraph of each profile. Here any encoder
serves; the one built in hashes words and pairs of Han characters and needs nothing fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from personae.cast.profiles import terms_of
from personae.errors import InputError, UsageError
from personae.records import Character, Record
from personae.records.cast import Routed

Floats = NDArray[np.float64]
Encoder = Callable[[Sequence[str]], Floats]
"""From n texts to n unit vectors (n, d)."""

HASHED = 1_024
LEARNING_RATE = 0.5
STEPS = 400


def hashed(texts: Sequence[str], dimension: int = HASHED) -> Floats:
    """Signed feature hashing of a text's terms (Weinberger et al. 2009), as unit vectors (n, d)."""
    found = np.zeros((len(texts), dimension))
    for row, text in zip(found, texts, strict=True):
        for term in terms_of(text):
            code = int.from_bytes(blake2b(term.encode(), digest_size=8).digest(), "big")
            row[code % dimension] += 1 if code >> 63 else -1
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    return found / np.where(lengths > 0, lengths, 1.0)


def softmax(logits: Floats) -> Floats:
    """exp(x) over its sum, along the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return shares


@dataclass(frozen=True)
class Gate:
    """The gate of equation 6.

    Attributes:
        embeddings: E, the role embedding matrix (K, d), one unit row a role.
        weights: W, the gate's map (K, d).
    """

    embeddings: Floats
    weights: Floats

    @classmethod
    def trained(
        cls, embeddings: Floats, *, steps: int = STEPS, learning_rate: float = LEARNING_RATE
    ) -> Gate:
        """W learned on the profiles alone: each role's embedding should open its own block.

        Cross-entropy, full-batch gradient descent from zero; convex, so that nothing is drawn.
        """
        size = len(embeddings)
        weights = np.zeros_like(embeddings)
        for _ in range(steps):
            off = softmax(embeddings @ weights.T) - np.eye(size)
            weights -= learning_rate * off.T @ embeddings
        return cls(embeddings, weights)

    def select(self, instruction: Floats) -> tuple[int, float]:
        """The role whose embedding is most similar to an instruction's (d,), and the cosine."""
        cosines = self.embeddings @ instruction
        best = int(np.argmax(cosines))
        return best, float(cosines[best])

    def contributions(self, role: int) -> Floats:
        """The omega of equation 6, (K,): the weight of each block for a selected role."""
        return softmax(self.weights @ self.embeddings[role])

    def expanded(
        self, embedding: Floats, *, steps: int = STEPS, learning_rate: float = LEARNING_RATE
    ) -> Gate:
        """The gate with one more role (equation 8): a row of E, and a row of W learned alone.

        The old rows are frozen. The old roles' weights move all the same, for the softmax has one
        term more.
        """
        every = np.vstack([self.embeddings, embedding])
        weights = np.vstack([self.weights, np.zeros_like(embedding)])
        for _ in range(steps):
            share = softmax(weights @ embedding)[-1]
            weights[-1] -= learning_rate * (share - 1) * embedding
        return Gate(every, weights)


class PaperRouterFile(Record):
    """What router.json holds under `--protocol paper`."""

    format: Literal["personae-gate/1"]
    profiles: dict[str, str] = Field(min_length=1)
    weights: tuple[tuple[float, ...], ...]


class PaperRouter:
    """Neeko's role selection behind the interface of `cast.router.Router`.

    Args:
        profiles: of each role, the text that is embedded.
        encode: the encoder.
        gate: a trained gate; None trains one.
    """

    def __init__(
        self, profiles: Mapping[str, str], *, encode: Encoder = hashed, gate: Gate | None = None
    ) -> None:
        if not profiles:
            raise UsageError("a router needs a character")
        self._profiles = dict(profiles)
        self._encode = encode
        self.gate = gate or Gate.trained(encode(list(profiles.values())))

    @classmethod
    def from_characters(
        cls, characters: Mapping[str, Character], *, encode: Encoder = hashed
    ) -> PaperRouter:
        """A gate over the first paragraph of each profile, under the character's name."""
        return cls({role: first_paragraph(one) for role, one in characters.items()}, encode=encode)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in their order."""
        return tuple(self._profiles)

    def similarity(self, instruction: str) -> float:
        """The cosine with the selected role: the one sign of a stranger that the gate has."""
        return self.gate.select(self._encode([instruction])[0])[1]

    def route(self, instruction: str, *, previous: str | None = None) -> Routed:
        """The role with the greatest weight; always accepts.

        Args:
            instruction: any text.
            previous: not regarded: the paper's gate knows nothing of a dialogue.
        """
        selected, _ = self.gate.select(self._encode([instruction])[0])
        shares = self.gate.contributions(selected)
        best = int(np.argmax(shares))
        order = np.argsort(-shares, kind="stable")
        return Routed(
            decision="accept",
            role=self.roles[best],
            confidence=float(shares[best]),
            weights={self.roles[n]: float(shares[n]) for n in order},
        )

    def with_role(self, role: str, character: Character) -> PaperRouter:
        """The router with one more role (equation 8).

        Raises:
            UsageError: the role is there already.
        """
        if role in self._profiles:
            raise UsageError(f"the cast has {role!r} already")
        text = first_paragraph(character)
        gate = self.gate.expanded(self._encode([text])[0])
        return PaperRouter({**self._profiles, role: text}, encode=self._encode, gate=gate)

    def to_dict(self) -> dict[str, Any]:
        """What router.json holds. The encoder is not in it."""
        rows = tuple(tuple(row) for row in self.gate.weights.tolist())
        return PaperRouterFile(
            format="personae-gate/1", profiles=self._profiles, weights=rows
        ).to_dict()

    @classmethod
    def from_dict(cls, value: Any, *, path: object = None, encode: Encoder = hashed) -> PaperRouter:
        """The router of a router.json.

        Raises:
            InputError: it is none, or its gate was learned with another encoder.
        """
        file = PaperRouterFile.from_dict(value, path=path)
        embeddings = encode(list(file.profiles.values()))
        if any(len(row) != embeddings.shape[1] for row in file.weights) or len(file.weights) != len(
            embeddings
        ):
            raise InputError(
                f"its gate is not a map from {embeddings.shape[1]} dimensions to "
                f"{len(embeddings)} roles",
                path=None if path is None else str(path),
                mend="Read it with the encoder that it was made with",
            )
        gate = replace(Gate(embeddings, embeddings), weights=np.array(file.weights))
        return cls(file.profiles, encode=encode, gate=gate)


def first_paragraph(character: Character) -> str:
    """What Neeko's code embeds of a role: its name and the first paragraph of its profile."""
    paragraph = character.description.strip().split("\n", 1)[0]
    return f"{character.name}. {paragraph}"
