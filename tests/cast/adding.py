"""A cast of three of the starter cast over the tiny base, with random blocks and real cards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from personae.cast.base import base_ref
from personae.cast.gate import PaperRouter
from personae.cast.store import Cast, write_cast
from personae.characters.starter import starter
from personae.records.cast import Block, CastCharacter, CastProtocol, DataSource, Mode

IDS = {"Sherlock Holmes": "sherlock-holmes", "Alice": "alice", "Ada Lovelace": "ada-lovelace"}
OLD = tuple(IDS)
RANK = 4
SIZES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (64, 32),
    "self_attn.v_proj": (64, 32),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (64, 128),
    "mlp.up_proj": (64, 128),
    "mlp.down_proj": (128, 64),
}
"""Features in and out of the tiny base's linear modules."""


def random_blocks(slots: int, *, paper: bool = False, seed: int = 3) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    made = {}
    for layer in range(2):
        for name, (width, height) in SIZES.items():
            if paper and not name.endswith(("q_proj", "v_proj")):
                continue
            module = f"model.layers.{layer}.{name}"
            made[f"A.{module}"] = draw.normal(0, 0.1, (slots, RANK, width)).astype(np.float32)
            made[f"B.{module}"] = draw.normal(0, 0.1, (slots, height, RANK)).astype(np.float32)
    return made


def starters_cast(
    folder: Path,
    tiny_base: Path,
    *,
    mode: Mode = "full",
    protocol: CastProtocol = "personae",
    names: tuple[str, ...] = OLD,
) -> Cast:
    """Of protocol `personae` with a shared block, of `paper` with isolated ones and a gate."""
    paper = protocol == "paper"
    slots = names if paper else ("shared", *names)
    cards = {name: starter(IDS[name]) for name in names}
    shared = {} if paper else {"shared": 1.0}
    data = {
        "Alice": DataSource(source="alice.jsonl", licence="CC-BY-4.0", rows=3),
        "Ada Lovelace": DataSource(source="ada.jsonl", rows=2),
        "Sherlock Holmes": DataSource(source="holmes.jsonl", licence="MIT", rows=4),
    }
    return write_cast(
        folder,
        base=base_ref(str(tiny_base)),
        rank=RANK,
        alpha=2.0 * RANK,
        blocks=[Block(name=s, data=(data[s],) if s in data else ()) for s in slots],
        characters=[CastCharacter(name=n, weights={**shared, n: 1.0}) for n in names],
        tensors=random_blocks(len(slots), paper=paper),
        cards=cards,
        mode=mode,
        protocol=protocol,
        gate=PaperRouter.from_characters(cards) if paper else None,
    )
