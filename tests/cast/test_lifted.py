"""Answers to held-out questions, and their lift against sums over plain transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.cast.base import LoadedBase, load_base
from personae.cast.forgetting import profile_text
from personae.cast.heldout import units_of
from personae.cast.layout import layout_of
from personae.cast.lifted import lift_lines
from personae.cast.store import Cast, attach
from personae.judging.lift import contexts_of
from personae.records import Character, Message, Persona
from personae.records.cast import CastRow, CastTurn
from tests.cast.adding import starters_cast

torch.set_num_threads(1)


def row(number: int, *said: tuple[str | None, str], **more: Any) -> CastRow:
    return CastRow(
        characters=tuple(dict.fromkeys(who for who, _ in said if who is not None)),
        turns=tuple(CastTurn(speaker=who, text=text) for who, text in said),
        source=f"held-out, line {number}",
        **more,
    )


ROWS = [
    row(1, (None, "Who are you?"), ("Alice", "Alice."), (None, "And now?"), ("Alice", "Still.")),
    row(2, (None, "What do you count?"), ("Ada Lovelace", "Numbers.")),
    row(3, ("Alice", "I begin.")),
]


def short_cards(cast: Cast) -> Cast:
    """A byte is a token of the tiny base, and it reads 2,048."""
    cards = {n: Character(name=n, description=f"{n} is fond of {n[::-1]}.") for n in cast.names}
    return replace(cast, cards=cards)


@pytest.fixture(scope="module")
def base(tiny_base: Path) -> LoadedBase:
    return load_base(str(tiny_base), dtype="float32", device="cpu")


@pytest.mark.parametrize("mode", ["full", "speaker"])
def test_an_answer_s_lift_is_the_base_s_for_it_after_the_persona_and_after_others(
    base: LoadedBase, tiny_base: Path, tmp_path: Path, mode: Any
) -> None:
    cast = short_cards(starters_cast(tmp_path / "cast", tiny_base, mode=mode))
    layout = layout_of(base.tokenizer)
    units, _ = units_of(ROWS, cast.manifest.characters, layout, mode, 1024)
    stack = attach(base, cast)
    try:
        lines = lift_lines(base, stack, cast, units, layout, most=6)
    finally:
        stack.detach()
    assert [(line.method, line.row) for line in lines] == [
        ("cast", 1), ("cast", 2), ("base", 1), ("base", 2),
    ]  # fmt: skip
    assert [line.question for line in lines[:2]] == ["Who are you?", "What do you count?"]
    answered = [line for line in lines if line.failure is None]
    assert "cast" in {line.method for line in answered}
    assert {line.failure.cause for line in lines if line.failure is not None} <= {"empty"}
    people = [Persona(id=n, description=profile_text(cast.cards[n])) for n in cast.cards]
    for line in (answered[0], answered[-1]):
        assert line.answer is not None
        persona = next(p for p in people if p.id == line.character)
        means = []
        for context in contexts_of(persona, people, line.question, "en"):
            ids = layout.prompt_ids(context)
            whole = layout.prompt_segments(
                [*context, Message(role="assistant", content=line.answer)]
            )
            answer = layout.tokens(whole[1:2]).ids
            labels = torch.tensor([[-100] * len(ids) + list(answer)])
            with torch.no_grad():
                out = base.model(input_ids=torch.tensor([[*ids, *answer]]), labels=labels)
            means.append(-out.loss.item())
        assert len(means) == 1 + 1 + 2  # itself, a generic assistant, the two others
        wanted = means[0] - sum(means[1:]) / 3
        assert line.lift == pytest.approx(wanted, abs=1e-4)


def test_who_has_no_card_has_no_lift(base: LoadedBase, tiny_base: Path, tmp_path: Path) -> None:
    cast = short_cards(starters_cast(tmp_path / "cast", tiny_base))
    bare = replace(cast, cards={n: c for n, c in cast.cards.items() if n != "Alice"})
    layout = layout_of(base.tokenizer)
    units, _ = units_of(ROWS, cast.manifest.characters, layout, "full", 1024)
    stack = attach(base, bare)
    try:
        lines = lift_lines(base, stack, bare, units, layout, most=6)
    finally:
        stack.detach()
    causes = {line.failure.cause for line in lines if line.character == "Alice" and line.failure}
    assert causes <= {"no_card", "empty"}
    assert "no_card" in causes
    assert all(line.lift is None for line in lines if line.character == "Alice")
