"""Which waiting request goes to which slot of the sampler next.

A slot keeps the key-value cache of its last prompt, and a prompt that begins alike is read only
from where it differs. llama.cpp itself chooses a slot when a request arrives; so the six cases of
one judged answer, which share 94 % of their prompt, go to six slots and are read six times.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")

_WORTH_CHARS = 400  # a shorter beginning in common is not worth waiting for: 0.3 s of reading
_STREAK = 16  # a slot goes on with its prefix over the heads of older requests this often
_CHARS_PER_TOKEN = 4
# Decoding one token alone costs six times the reading of one (46 against 296 tokens/s, decision
# 0002), and company halves it. So n requests that wait for a prefix of p tokens, with r tokens to
# write each, are better spread over two slots when 3 n r > p.
_DECODE_TO_READ = 3
_FIRST_GUESS = 64  # tokens of a reply before any of its kind was seen
_SMOOTHING = 0.3
_KINDS = 256  # remembered


@dataclass
class Request(Generic[Item]):
    """One waiting request.

    Attributes:
        text: the prompt, in the order in which it is read.
        group: what must be equal for a cache to be of use, such as the adapters.
        most: tokens that the reply may have.
        kind: what foretells how long the reply will be, such as its grammar.
    """

    item: Item
    text: str
    group: Hashable
    most: int
    kind: Hashable = None


@dataclass
class _Lane:
    text: str = ""
    group: Hashable = None
    kind: Hashable = None
    busy: bool = False
    used: int = 0  # turn of the last assignment
    streak: int = 0


@dataclass
class Lanes(Generic[Item]):
    """The queue. Not safe for threads; its owner holds a lock.

    A slot that falls free goes on with the prefix it has cached, at most `_STREAK` times while an
    older request waits; otherwise the oldest request that need not wait for a busy slot's prefix
    takes the slot that was idle the longest. A request waits only for what is being read right
    now, so none waits for ever.
    """

    slots: int
    _lanes: list[_Lane] = field(init=False)
    _waiting: list[Request[Item]] = field(default_factory=list, init=False)
    _turn: int = field(default=0, init=False)
    _replies: dict[Hashable, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._lanes = [_Lane() for _ in range(self.slots)]

    def add(self, request: Request[Item]) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def drop(self, item: Item) -> bool:
        """Take a waiting request out; False when it does not wait."""
        for at, request in enumerate(self._waiting):
            if request.item == item:
                del self._waiting[at]
                return True
        return False

    def free(self, slot: int, written: int | None) -> None:
        """A slot has finished; `written` tokens, None if it failed and its cache is unknown."""
        lane = self._lanes[slot]
        lane.busy = False
        if written is None:
            lane.text = ""
        else:
            before = self._replies.pop(lane.kind, _FIRST_GUESS)
            self._replies[lane.kind] = before + _SMOOTHING * (written - before)
            if len(self._replies) > _KINDS:
                del self._replies[next(iter(self._replies))]

    def assign(self) -> list[tuple[int, Request[Item]]]:
        """Who goes where now."""
        out: list[tuple[int, Request[Item]]] = []
        for slot, lane in enumerate(self._lanes):
            if not lane.busy and lane.streak < _STREAK:
                found = next((r for r in self._waiting if _worth(r, lane)), None)
                if found is not None:
                    streak = lane.streak + (found is not self._waiting[0])
                    out.append(self._give(slot, found, streak))
        behind: dict[int, int] = {}  # requests already left waiting for that slot's prefix
        for request in list(self._waiting):
            idle = [n for n, lane in enumerate(self._lanes) if not lane.busy]
            if not idle:
                break
            slot = min(idle, key=lambda n: (-_worth(request, self._lanes[n]), self._lanes[n].used))
            if not _worth(request, self._lanes[slot]):
                sharing = [n for n, lane in enumerate(self._lanes) if _worth(request, lane)]
                if sharing:
                    best = max(sharing, key=lambda n: _worth(request, self._lanes[n]))
                    behind[best] = behind.get(best, 0) + 1
                    reply = min(self._replies.get(request.kind, _FIRST_GUESS), request.most)
                    decoding = _DECODE_TO_READ * behind[best] * reply
                    if decoding <= _worth(request, self._lanes[best]) / _CHARS_PER_TOKEN:
                        continue
                    behind[best] = 0
            out.append(self._give(slot, request, 0))
        return out

    def _give(self, slot: int, request: Request[Item], streak: int) -> tuple[int, Request[Item]]:
        self._waiting.remove(request)
        self._turn += 1
        lane = self._lanes[slot]
        lane.text, lane.group, lane.kind = request.text, request.group, request.kind
        lane.busy = True
        lane.used, lane.streak = self._turn, streak
        return slot, request


def _worth(request: Request[Item], lane: _Lane) -> int:
    """Characters that a slot's cache saves this request; 0 when hardly any."""
    if request.group != lane.group:
        return 0
    shared = common(request.text, lane.text)
    return shared if shared >= max(_WORTH_CHARS, len(request.text) // 2) else 0


def common(one: str, two: str) -> int:
    """Characters that two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def prompt_text(messages: Sequence[dict[str, str]]) -> str:
    """Messages as one text, such that a common beginning is one of the prompts too."""
    return "".join(f"\0{m['role']}\0{m['content']}" for m in messages)
