"""Taking turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

Item = TypeVar("Item")

_NONE_LEFT = object()


def in_turns(queues: Iterable[Sequence[Item]]) -> list[Item]:
    """The first of every queue, then the second of every queue that has one, and so on."""
    rounds = zip_longest(*queues, fillvalue=_NONE_LEFT)
    return [item for one in rounds for item in one if item is not _NONE_LEFT]  # type: ignore[misc]  # the mark is taken out here
