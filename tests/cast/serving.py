"""Small casts over the tiny base: three slots of random blocks, written and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.cast.base import LoadedBase, base_ref, load_base
from personae.cast.generate import CastGenerator, Prompt
from personae.cast.store import Cast, attach, write_cast
from personae.errors import WeightsError
from personae.models.local import pull
from personae.records import Character
from personae.records.cast import Block, CastCharacter, CastTurn, Mode

NAMES = ("Ada Byron", "Wu Song")
OPENING = CastTurn(text="Good evening. Who are you?")


def loaded(tiny_base: Path) -> LoadedBase:
    return load_base(str(tiny_base), dtype="float32", device="cpu")


def random_blocks(base: LoadedBase, slots: int, rank: int, seed: int) -> dict[str, Any]:
    from personae.cast.stacked import StackedLoRA

    stack = StackedLoRA(base.model, [f"s{n}" for n in range(slots)], rank=rank)
    random = np.random.default_rng(seed)
    made = {
        name: random.normal(size=t.shape).astype(np.float32) * (0.5 if name[0] == "B" else 0.1)
        for name, t in stack.state().items()
    }
    stack.detach()
    return made


def small_cast(folder: Path, tiny_base: Path, *, mode: Mode = "full", seed: int = 1) -> Cast:
    """Ada Byron and Wu Song over `shared`."""
    base = loaded(tiny_base)
    return write_cast(
        folder,
        base=base.ref,
        rank=4,
        alpha=8.0,
        blocks=[Block(name=name) for name in ("shared", *NAMES)],
        characters=[CastCharacter(name=n, weights={"shared": 1.0, n: 1.0}) for n in NAMES],
        tensors=random_blocks(base, 3, 4, seed),
        mode=mode,
    )


def cast_with_a_profile(folder: Path, tiny_base: Path, *, mode: Mode = "full") -> Cast:
    """The small cast and Lin Chong, who has a card and no block of his own."""
    whole = small_cast(folder / "c", tiny_base, mode=mode)
    card = Character.model_validate(
        {"name": "Lin Chong", "description": "He was the arms instructor of the palace guard."}
    )
    lin = CastCharacter(name="Lin Chong", how="profile", weights={"shared": 1.0})
    return write_cast(
        folder / "d",
        base=whole.manifest.base,
        rank=4,
        alpha=8.0,
        blocks=whole.manifest.blocks,
        characters=[*whole.manifest.characters, lin],
        tensors=whole.tensors,
        cards={"Lin Chong": card},
        mode=mode,
    )


def generator_of(cast: Cast, tiny_base: Path, **options: Any) -> CastGenerator:
    base = loaded(tiny_base)
    return CastGenerator(base, attach(base, cast), cast, **options)


def prompt_of(generator: CastGenerator, text: str, speaker: str | None) -> Prompt:
    """Text as it is, all of it under one speaker's blocks."""
    ids = tuple(generator.base.tokenizer(text, add_special_tokens=False)["input_ids"])
    return Prompt(ids, (speaker,) * len(ids))


def cast_over_local(folder: Path) -> Cast:
    """Random blocks over q and v of the embedded model."""
    try:
        pull("local")
    except WeightsError as error:
        pytest.skip(f"the embedded model's weights cannot be had: {error}")
    random = np.random.default_rng(5)
    tensors = {}
    for layer in range(30):
        for module, height in (("q_proj", 576), ("v_proj", 192)):
            target = f"model.layers.{layer}.self_attn.{module}"
            tensors[f"A.{target}"] = random.normal(size=(3, 4, 576)).astype(np.float32) * 0.1
            tensors[f"B.{target}"] = random.normal(size=(3, height, 4)).astype(np.float32) * 0.1
    return write_cast(
        folder,
        base=base_ref("local"),
        rank=4,
        alpha=8.0,
        blocks=[Block(name=name) for name in ("shared", *NAMES)],
        characters=[
            *(CastCharacter(name=n, weights={"shared": 1.0, n: 1.0}) for n in NAMES),
            CastCharacter(name="Lin Chong", how="profile", weights={"shared": 1.0}),
        ],
        tensors=tensors,
    )
