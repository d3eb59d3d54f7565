"""Keys and values of many dialogues: in a batch that rows join and leave, and kept for later.

A token's keys and values are decided by the tokens up to it and by the weights over the blocks that
each of them was computed under (its voice). So `Tokens` are ids with their voices, and two
dialogues share what they have in common in both.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from personae.errors import UsageError

_ROOM = 64  # tokens by which a cache grows

Voice = tuple[tuple[str, float], ...]
"""What a token was computed under: blocks with their weights, in the order of their names."""
Row = TypeVar("Row")


class Tokens:
    """Ids and, of each, the voice it is computed under."""

    def __init__(self, ids: np.ndarray, voices: Iterable[Voice]) -> None:
        numbers: dict[Voice, int] = {}
        self._ids = ids
        self._numbers = np.asarray(
            [numbers.setdefault(voice, len(numbers)) for voice in voices], dtype=np.int64
        )
        self._more: list[int] = []
        self._more_numbers: list[int] = []
        self.kinds: tuple[Voice, ...] = tuple(numbers)

    def __len__(self) -> int:
        return len(self._ids) + len(self._more)

    def append(self, token: int, voice: Voice) -> None:
        """One token more."""
        if voice not in self.kinds:
            self.kinds = (*self.kinds, voice)
        self._more.append(token)
        self._more_numbers.append(self.kinds.index(voice))

    @property
    def ids(self) -> np.ndarray:
        """All ids, `[T]`."""
        self._settle()
        return self._ids

    @property
    def numbers(self) -> np.ndarray:
        """Of each token, the place of its voice in `kinds`."""
        self._settle()
        return self._numbers

    def _settle(self) -> None:
        if self._more:
            self._ids = np.concatenate([self._ids, np.asarray(self._more, dtype=np.int64)])
            self._numbers = np.concatenate(
                [self._numbers, np.asarray(self._more_numbers, dtype=np.int64)]
            )
            self._more, self._more_numbers = [], []

    def part(self, start: int, end: int) -> Tokens:
        """Those from one place to another."""
        return Tokens(self.ids[start:end], [self.kinds[n] for n in self.numbers[start:end]])

    def common(self, other: Tokens) -> int:
        """How many first tokens are the same, and under the same voice."""
        n = min(len(self), len(other))
        same = self.ids[:n] == other.ids[:n]
        if self.kinds != other.kinds:
            place = {voice: k for k, voice in enumerate(self.kinds)}
            translated = np.asarray([place.get(voice, -1) for voice in other.kinds])
            same &= self.numbers[:n] == translated[other.numbers[:n]]
        else:
            same &= self.numbers[:n] == other.numbers[:n]
        return n if same.all() else int(np.argmin(same))


Layers = list[tuple[Tensor, Tensor]]
"""Of each layer keys and values, `[rows, heads, tokens, width]`."""


class _Growing(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers has no types
    """A layer's cache with room to grow into, so that a step does not copy all that is there."""

    _rooms: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append; returns keys and values of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if self._rooms is None or after > self._rooms[0].shape[-2]:
            rooms = []
            for new, old in ((key_states, self.keys), (value_states, self.values)):
                shape = (*new.shape[:-2], after + _ROOM, new.shape[-1])
                room = torch.zeros(shape, dtype=new.dtype, device=new.device)
                if before:
                    assert old is not None
                    room[..., :before, :] = old
                rooms.append(room)
            self._rooms = (rooms[0], rooms[1])
        for new, room in zip((key_states, value_states), self._rooms, strict=True):
            room[..., before:after, :] = new
        self.keys, self.values = (room[..., :after, :] for room in self._rooms)
        return self.keys, self.values


def new_cache(layers: Layers | None, tokens: int) -> DynamicCache:
    """A cache that begins with the first tokens of some layers; those stay as they are."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = _Growing
    for keys, values in layers or ():
        layer: Any = _Growing()  # type: ignore[no-untyped-call]  # transformers has no types
        layer.update(keys[..., :tokens, :], values[..., :tokens, :])
        cache.layers.append(layer)
    return cache


def layers_of(cache: DynamicCache) -> Layers:
    """Keys and values of all layers.

    Raises:
        UsageError: the model keeps something else (a recurrent state, say), which cannot be padded,
            cut or taken out of a batch.
    """
    if not all(type(layer) is _Growing and layer.is_initialized for layer in cache.layers):
        raise UsageError("this model keeps another state than keys and values of each token")
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


class Batch(Generic[Row]):
    """The rows under way, their keys and values padded on the left to one length."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.cache = new_cache(None, 0)
        self._pads: list[int] = []
        self._length = 0

    def join(self, rows: list[Row], layers: Layers, pads: list[int]) -> None:
        """Take in rows whose keys and values are there."""
        length = layers[0][0].shape[-2]
        if self.rows:
            old = layers_of(self.cache)
            longest = max(length, self._length)
            layers = [
                (_stacked(a, c, longest), _stacked(b, d, longest))
                for (a, b), (c, d) in zip(old, layers, strict=True)
            ]
            pads = [
                *(pad + longest - self._length for pad in self._pads),
                *(pad + longest - length for pad in pads),
            ]
            length = longest
        self.rows, self._pads, self._length = [*self.rows, *rows], pads, length
        self.cache = new_cache(layers, length)

    def grow(self) -> Tensor:
        """The attention mask `[rows, tokens]` with one token more."""
        self._length += 1
        mask = torch.ones(len(self.rows), self._length, dtype=torch.long)
        for n, pad in enumerate(self._pads):
            mask[n, :pad] = 0
        return mask

    def of(self, row: int) -> Layers:
        """A copy of one row's keys and values without its padding."""
        pad = self._pads[row]
        return [
            (k[row : row + 1, :, pad:].clone(), v[row : row + 1, :, pad:].clone())
            for k, v in layers_of(self.cache)
        ]

    def keep(self, rows: list[int]) -> None:
        """Let the others go, and what is padding in all that stay."""
        if len(rows) == len(self.rows):
            return
        if not rows:
            self.__init__()  # type: ignore[misc]  # as new
            return
        spare = min(self._pads[n] for n in rows)
        layers = [(k[rows][:, :, spare:], v[rows][:, :, spare:]) for k, v in layers_of(self.cache)]
        self.rows = [self.rows[n] for n in rows]
        self._pads = [self._pads[n] - spare for n in rows]
        self._length -= spare
        self.cache = new_cache(layers, self._length)


def _stacked(first: Tensor, second: Tensor, length: int) -> Tensor:
    """Two batches' keys or values in one, padded on the left."""
    rows = first.shape[0] + second.shape[0]
    made = first.new_zeros((rows, first.shape[1], length, first.shape[3]))
    made[: first.shape[0], :, length - first.shape[2] :] = first
    made[first.shape[0] :, :, length - second.shape[2] :] = second
    return made


class Kept:
    """Keys and values of finished replies, the latest used ones up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._entries: deque[tuple[Tokens, Layers, int]] = deque()  # the latest last
        self._lock = threading.Lock()

    def longest(self, tokens: Tokens, most: int) -> tuple[Layers | None, int]:
        """The entry with the longest common beginning, and how long that is, at most `most`."""
        with self._lock:
            best, common = None, 0
            for entry in self._entries:
                n = min(entry[0].common(tokens), most)
                if n > common:
                    best, common = entry, n
            if best is None:
                return None, 0
            self._entries.remove(best)
            self._entries.append(best)
            return best[1], common

    def keep(self, tokens: Tokens, layers: Layers) -> None:
        """Add an entry; those that it continues, and the oldest ones, go."""
        size = sum(k.nbytes + v.nbytes for k, v in layers)
        with self._lock:
            stay: deque[tuple[Tokens, Layers, int]] = deque()
            for entry in self._entries:
                if entry[0].common(tokens) < len(entry[0]):
                    stay.append(entry)
            stay.append((tokens, layers, size))
            while stay and sum(entry[2] for entry in stay) > self._most:
                stay.popleft()
            self._entries = stay

    def clear(self) -> None:
        """Forget all of it."""
        with self._lock:
            self._entries.clear()
