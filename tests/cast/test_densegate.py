"""The dense gate against the released layer's formula, written out term by term."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from personae.cast.densegate import ALL_BLOCKS, DenseGate, dense_gate, speaks_as
from personae.cast.encode import Encoded
from personae.cast.evaluate import score_rows
from personae.cast.plan import TrainPlan
from personae.cast.train import train
from personae.errors import UsageError

torch.set_num_threads(1)

ROLES = ("Ada", "Bob", "Cleo")


def model_of(tiny_base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)


def embeddings(width: int = 16) -> Any:
    return np.random.default_rng(0).normal(size=(len(ROLES), width))


def a_gate(model: Any) -> DenseGate:
    gate = DenseGate(model, ROLES, embeddings(), rank=4, alpha=8.0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in gate.layers.values():
            layer.b.copy_(torch.randn(layer.b.shape, generator=generator) * 0.1)
    return gate


def test_a_layer_computes_what_the_released_code_computes(tiny_base: Path) -> None:
    gate = a_gate(model_of(tiny_base))
    layer = gate.layers["model.layers.0.self_attn.q_proj"]
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(2))
    with gate.speaking(gate.weights([{"Cleo": 1.0}, {"Ada": 1.0}])):
        found = layer(x)
    # moelora.py: A_out [b, t, E, r/E]; B_out = einsum over each expert's own columns [b, t, E, out];
    # Gate = softmax(W_g e); result += (B_out * Gate).sum(-2) * alpha / (r / E)
    a, b, w = layer.a[0], layer.b[0], layer.gate[0]
    for row, role in enumerate(("Cleo", "Ada")):
        e = embeddings()[ROLES.index(role)]
        e = torch.tensor(e / np.linalg.norm(e) * 4.0, dtype=torch.float32)  # sqrt(16)
        shares = torch.softmax(w @ e, dim=0)
        assert shares.min() > 0.01  # dense: no block is off
        wanted = layer.base(x[row])
        for k in range(3):
            block = slice(4 * k, 4 * k + 4)
            wanted = wanted + 8.0 / 4 * shares[k] * (x[row] @ a[block].T @ b[:, block].T)
        torch.testing.assert_close(found[row], wanted, rtol=1e-5, atol=1e-5)


def test_rows_whose_tokens_lie_one_after_the_other_are_each_their_own(tiny_base: Path) -> None:
    gate = a_gate(model_of(tiny_base))
    layer = gate.layers["model.layers.0.self_attn.q_proj"]
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad(), gate.speaking(gate.weights([{"Cleo": 1.0}, {"Ada": 1.0}])):
        torch.testing.assert_close(layer(x.flatten(0, 1)), layer(x).flatten(0, 1))


def test_a_row_that_speaks_as_nobody_is_the_base_alone(tiny_base: Path) -> None:
    model = model_of(tiny_base)
    ids = torch.tensor([[5, 9, 30], [7, 8, 9]])
    with torch.no_grad():
        bare = model(input_ids=ids).logits
        gate = a_gate(model)
        with gate.speaking(gate.weights([{}, {"Bob": 1.0}])):
            mixed = model(input_ids=ids).logits
        torch.testing.assert_close(mixed[0], bare[0])
        assert (mixed[1] - bare[1]).abs().max() > 0.01
        gate.detach()
        torch.testing.assert_close(model(input_ids=ids).logits, bare)


def test_its_state_is_all_there_is_to_it(tiny_base: Path) -> None:
    gate = a_gate(model_of(tiny_base))
    other = DenseGate(model_of(tiny_base), ROLES, embeddings(), rank=4, alpha=8.0, seed=9)
    other.load_state(gate.state())
    ids = torch.tensor([[5, 9, 30]])
    logits = []
    for one in (gate, other):
        with torch.no_grad(), one.speaking(one.weights([{"Ada": 1.0}])):
            logits.append(one.model(input_ids=ids).logits)
    assert torch.equal(*logits)
    broken = gate.state()
    broken.pop("G.model.layers.1.mlp.up_proj")
    with pytest.raises(UsageError, match=r"G\.model\.layers\.1\.mlp\.up_proj"):
        other.load_state(broken)


def line(name: str, token: int) -> Encoded:
    """Ten tokens, the last six of which are always the same."""
    return Encoded(
        ids=(5, 6, 7, 8, *(token,) * 6),
        supervised=(False,) * 4 + (True,) * 6,
        speaker=(None,) * 4 + (name,) * 6,
        character=name,
        row=f"{name}, line 1",
    )


def test_the_common_trainer_trains_all_blocks_and_the_gates_on_every_role(tiny_base: Path) -> None:
    model = model_of(tiny_base)
    gate: Any = DenseGate(model, ROLES, embeddings(), rank=4, alpha=8.0)
    before = gate.state()
    rows = {name: [line(name, 20 + n)] for n, name in enumerate(ROLES)}
    base: Any = SimpleNamespace(model=model)
    voices = [speaks_as(ROLES)[name] for name in ROLES]
    flat = [rows[name][0] for name in ROLES]
    at_first = score_rows(base, gate, flat, voices)
    plan = TrainPlan(rank=4, alpha=8.0, epochs=30, warmup=0, lr=5e-3)
    trained = train(base, rows, plan, stages=dense_gate(ROLES, plan.lr), stack=gate)
    after = gate.state()
    assert all((before[name] != after[name]).any() for name in before)
    assert [block.name for block in trained.blocks] == [ALL_BLOCKS]
    at_last = score_rows(base, gate, flat, voices)
    for first, last in zip(at_first, at_last, strict=True):
        assert last.per_token < first.per_token - 0.3  # tied, small embeddings: 0.6 is all
    # Roles are told apart by their embeddings alone: another's gate fits a role's line worse.
    swapped = score_rows(base, gate, flat, voices[1:] + voices[:1])
    assert all(s.nll > own.nll for s, own in zip(swapped, at_last, strict=True))


def test_roles_and_embeddings_must_be_as_many(tiny_base: Path) -> None:
    with pytest.raises(UsageError, match="an embedding"):
        DenseGate(model_of(tiny_base), ("Ada", "Bob"), embeddings())
    gate = a_gate(model_of(tiny_base))
    with pytest.raises(UsageError, match="Zoe"):
        gate.weights([{"Zoe": 1.0}])
