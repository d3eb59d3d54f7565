"""Likelihoods against plain transformers, and what is made of them against sums by hand."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from personae.cast.encode import Encoded
from personae.cast.evaluate import score_method, score_rows, token_nlls
from personae.cast.heldout import Blocks, Prompted, units_of
from personae.cast.layout import layout_of
from personae.cast.stacked import StackedLoRA
from personae.errors import UsageError
from personae.records import Character
from personae.records.cast import CastCharacter, CastRow, CastTurn
from personae.records.cast_scores import DialogueScore, SwitchScore

torch.set_num_threads(1)


def encoded(
    length: int,
    supervised: Sequence[int],
    *,
    seed: int = 0,
    character: str | None = "Ada",
    speaker: Sequence[str | None] = (),
) -> Encoded:
    ids = np.random.default_rng(seed).integers(3, 250, size=length).tolist()
    return Encoded(
        ids=tuple(ids),
        supervised=tuple(n in supervised for n in range(length)),
        speaker=tuple(speaker) or (character,) * length,
        character=character,
        row="test, line 1",
    )


@pytest.fixture
def base(tiny_base: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
    return SimpleNamespace(model=model)


@pytest.fixture
def stack(base: Any) -> StackedLoRA:
    stack = StackedLoRA(base.model, ("shared", "Ada", "Bob"), rank=4, alpha=8.0)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for layer in stack.layers.values():
            layer.b.copy_(torch.randn(layer.b.shape, generator=generator) * 0.05)
    return stack


def loss_of_transformers(model: Any, row: Encoded) -> tuple[float, int]:
    """The sum and number behind the mean loss that transformers itself gives."""
    labels = [i if s else -100 for i, s in zip(row.ids, row.supervised, strict=True)]
    with torch.no_grad():
        out = model(input_ids=torch.tensor([row.ids]), labels=torch.tensor([labels]))
    return out.loss.item() * sum(row.supervised), sum(row.supervised)


ROWS = [
    encoded(9, [3, 4, 8], seed=1),
    encoded(40, range(5, 40), seed=2),
    encoded(2, [1], seed=3),
    encoded(17, [16], seed=4),
    encoded(40, [39], seed=5),
]


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_rows_of_any_length_have_the_loss_that_transformers_gives_each_alone(
    base: Any, batch_tokens: int
) -> None:
    found = score_rows(base, None, ROWS, [{}] * len(ROWS), batch_tokens=batch_tokens)
    for scored, row in zip(found, ROWS, strict=True):
        nll, tokens = loss_of_transformers(base.model, row)
        assert scored.tokens == tokens
        assert scored.nll == pytest.approx(nll, rel=1e-5)
        assert scored.per_token == pytest.approx(nll / tokens, rel=1e-5)


def test_what_a_model_does_to_its_logits_afterwards_is_done_to_the_few_too() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

    gemma = Gemma2Config(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, sliding_window=8,
        final_logit_softcapping=0.5,
    )  # fmt: skip
    gpt = GPT2Config(vocab_size=260, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    torch.manual_seed(0)
    models: list[Any] = [Gemma2ForCausalLM(gemma), GPT2LMHeadModel(gpt)]
    for model in models:
        model.eval()
        found = score_rows(SimpleNamespace(model=model), None, ROWS, [{}] * len(ROWS))  # type: ignore[arg-type]  # the model alone is asked
        for scored, row in zip(found, ROWS, strict=True):
            assert scored.nll == pytest.approx(loss_of_transformers(model, row)[0], rel=1e-5)


def test_each_row_of_a_mixed_batch_speaks_through_its_own_blocks(
    base: Any, stack: StackedLoRA
) -> None:
    weights: list[dict[str, float]] = [
        {"shared": 1.0, "Ada": 1.0},
        {"Bob": 0.5},
        {},
        {"shared": 1.0, "Bob": 1.0},
        {"Ada": 1.0},
    ]
    found = score_rows(base, stack, ROWS, weights)
    for scored, row, given in zip(found, ROWS, weights, strict=True):
        with stack.speaking(stack.weights([given])):
            nll, _ = loss_of_transformers(base.model, row)
        assert scored.nll == pytest.approx(nll, rel=1e-5)
    alone = score_rows(base, stack, ROWS, [{}] * len(ROWS))
    assert alone[2] == pytest.approx(found[2])
    assert alone[0].nll != pytest.approx(found[0].nll, rel=1e-3)


def test_in_speaker_mode_each_token_speaks_through_the_blocks_of_its_speaker(
    base: Any, stack: StackedLoRA
) -> None:
    speakers = [None] * 4 + ["Ada"] * 5 + [None] * 2 + ["Bob"] * 4
    row = encoded(15, [5, 6, 7, 8, 12, 13, 14], character=None, speaker=speakers)
    voices = {"Ada": {"shared": 1.0, "Ada": 1.0}, "Bob": {"shared": 1.0, "Bob": 1.0}}
    table = torch.zeros(1, 15, 3)
    table[0, 4:9] = torch.tensor([1.0, 1.0, 0.0])
    table[0, 11:] = torch.tensor([1.0, 0.0, 1.0])
    with stack.speaking(table):
        nll, tokens = loss_of_transformers(base.model, row)
    full = encoded(22, [20], seed=9)
    found = score_rows(base, stack, [full, row], [{"Ada": 1.0}, voices])
    assert found[1].tokens == tokens
    assert found[1].nll == pytest.approx(nll, rel=1e-5)
    with stack.speaking(stack.weights([{"Ada": 1.0}])):
        assert found[0].nll == pytest.approx(loss_of_transformers(base.model, full)[0], rel=1e-5)


def test_likelihoods_stand_in_the_order_of_the_supervised_tokens(base: Any) -> None:
    row = ROWS[0]
    (nlls,) = token_nlls(base.model, [row], _alone)
    with torch.no_grad():
        logs = base.model(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
    assert nlls == pytest.approx([-logs[t - 1, row.ids[t]].item() for t in (3, 4, 8)], rel=1e-5)


def _alone(batch: Sequence[int], width: int) -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_scoring_leaves_a_model_in_training_as_it_was(base: Any) -> None:
    base.model.train()
    score_rows(base, None, ROWS, [{}] * len(ROWS))
    assert base.model.training
    assert base.model(input_ids=torch.tensor([[5, 6]])).logits.shape[1] == 2


def test_scoring_leaves_blocks_that_learn_learning(base: Any, stack: StackedLoRA) -> None:
    layer = stack.layers["model.layers.0.self_attn.q_proj"]
    layer.train()
    base.model.model.eval()
    layer.train()
    score_rows(base, stack, ROWS, [{}] * len(ROWS))
    assert layer.training
    assert not base.model.model.layers[0].training


@pytest.mark.parametrize("supervised", [[], [0, 1]])
def test_a_row_without_anything_that_can_be_predicted_is_an_error(
    base: Any, supervised: list[int]
) -> None:
    with pytest.raises(UsageError, match="test, line 1"):
        score_rows(base, None, [encoded(4, supervised)], [{}])


def test_likelihoods_that_are_no_numbers_are_an_error_not_a_figure(base: Any) -> None:
    with torch.no_grad():
        base.model.model.layers[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(UsageError, match="not finite"):
        score_rows(base, None, ROWS, [{}] * len(ROWS))


def test_blocks_cannot_be_asked_for_where_there_are_none(base: Any) -> None:
    with pytest.raises(UsageError, match="base alone"):
        score_rows(base, None, ROWS[:1], [{"Ada": 1.0}])
    with pytest.raises(UsageError, match="weights for 2"):
        score_rows(base, None, ROWS[:1], [{}, {}])


# A whole method

NAMES = ("Ada", "Bob")
CAST = tuple(CastCharacter(name=n, weights={"shared": 1.0, n: 1.0}) for n in NAMES)
HELD = [
    CastRow(
        characters=(who,),
        turns=(CastTurn(text=asked), CastTurn(speaker=who, text=said)),
        source=f"held-out, line {number}",
    )
    for number, (who, asked, said) in enumerate(
        [("Ada", "And you?", "Numbers."), ("Bob", "Bob?", "A fish, " * 9), ("Ada", "Why?", "So.")],
        1,
    )
]
HELD.append(
    CastRow(
        characters=NAMES,
        turns=tuple(
            CastTurn(speaker=who, text=text)
            for who, text in ((None, "Ada."), ("Ada", "Yes."), (None, "Bob."), ("Bob", "No."))
        ),
        source="held-out, line 4",
    )
)


def test_a_method_is_scored_as_it_runs_nameless_and_after_switches(
    base: Any, stack: StackedLoRA, tiny_base: Path
) -> None:
    layout = layout_of(AutoTokenizer.from_pretrained(tiny_base))
    units, switches = units_of(HELD, CAST, layout, "full", 512)
    weights = {one.name: one.weights for one in CAST}
    way = Blocks(layout, "full", 2048, weights, {})
    heard: list[str] = []

    class Hears:
        def begin(self, stage: str, total: int) -> None:
            heard.append(f"{stage} {total}")

        def step(self, stage: str) -> None:
            heard.append(stage)

    made = score_method(
        base, stack, way, units, switches, NAMES, method="retrained", seed=3, watcher=Hears()
    )
    assert heard[0] == "retrained (seed 3) 18"  # 5 units under 1 + 2 prompts, and 3 for the switch
    assert len(heard) == 1 + 18
    dialogues = [line for line in made.lines if isinstance(line, DialogueScore)]
    (switch,) = [line for line in made.lines if isinstance(line, SwitchScore)]
    assert [(d.row, d.character) for d in dialogues] == [
        (1, "Ada"), (2, "Bob"), (3, "Ada"), (4, "Ada"), (4, "Bob"),
    ]  # fmt: skip
    assert [d.named for d in dialogues] == [False, True, False, True, True]

    def alone(row: Encoded, through: Any) -> float:
        with stack.speaking(stack.weights([through])):
            return loss_of_transformers(base.model, row)[0]

    for line, unit in zip(dialogues, units, strict=True):
        ((row, through),) = way.own(unit)
        assert line.nll == pytest.approx(alone(row, through), rel=1e-5)
        assert line.tokens == row.learnt
        assert line.fits is not None
        assert set(line.fits) == set(NAMES)
        for name in NAMES:
            ((row, through),) = way.fit(unit, name)
            assert line.fits[name] == pytest.approx(alone(row, through), rel=1e-5)
        assert line.fits["Ada"] != pytest.approx(line.fits["Bob"], rel=1e-4)
    for found, how in (
        (switch.nll, {}),
        (switch.nll_without, {"without": True}),
        (switch.nll_previous, {"previous": True}),
    ):
        ((row, through),) = way.switch(switches[0], **how)
        assert found == pytest.approx(alone(row, through), rel=1e-5)
    assert made.tokens > sum(d.tokens or 0 for d in dialogues)


def test_what_a_method_cannot_score_is_missing_with_its_cause(base: Any, tiny_base: Path) -> None:
    layout = layout_of(AutoTokenizer.from_pretrained(tiny_base))
    units, switches = units_of(HELD, CAST, layout, "full", 512)
    cards = {"Ada": Character(name="Ada", description="She counts.")}
    way = Prompted(layout, 2048, cards)
    made = score_method(base, None, way, units, switches, NAMES, method="icl")
    dialogues = [line for line in made.lines if isinstance(line, DialogueScore)]
    failures = [line.failure and line.failure.cause for line in dialogues]
    assert failures == [None, "no_card", None, None, "no_card"]
    assert all(line.fits is None for line in dialogues)  # nobody to tell Ada from
    assert all(line.failure is not None for line in made.lines if line.kind == "switch")


def test_a_dialogue_scored_line_by_line_is_the_sum_of_its_lines(base: Any, tiny_base: Path) -> None:
    layout = layout_of(AutoTokenizer.from_pretrained(tiny_base))
    card = Character(name="Ada", description="Her engine weaves algebra. She keeps three dogs.")
    given = CastRow(
        characters=("Ada",),
        turns=(
            CastTurn(text="The engine?"),
            CastTurn(speaker="Ada", text="It weaves."),
            CastTurn(text="The dogs?"),
            CastTurn(speaker="Ada", text="Three."),
        ),
        source="held-out, line 1",
    )
    units, _ = units_of([given], CAST[:1], layout, "full", 512)
    way = Prompted(layout, 2048, {"Ada": card}, retrieves=True)
    (line,) = score_method(base, None, way, units, [], ("Ada",), method="rag").lines
    assert isinstance(line, DialogueScore)
    rows = [row for row, _ in way.own(units[0])]
    assert len(rows) == 2
    whole = sum(loss_of_transformers(base.model, row)[0] for row in rows)
    assert line.nll == pytest.approx(whole, rel=1e-5)
    assert line.tokens == sum(row.learnt for row in rows)
