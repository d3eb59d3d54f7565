"""What a character remembers, and what comes back to it (Park et al. 2023, section 4.1).

A `MemoryStream` holds one character's observations, actions and beliefs and finds those that
matter now: relevant, recent, important. It is derived from the journal and kept in memory: playing
the same run again, from its journal or after a kill, fills it with the same memories in the same
order, and the same question recalls the same ones.
"""

from __future__ import annotations

from personae.world.memory.stream import (
    MAX_TEXT,
    Memory,
    MemoryKind,
    MemoryStream,
    Weights,
)

__all__ = ["MAX_TEXT", "Memory", "MemoryKind", "MemoryStream", "Weights"]
