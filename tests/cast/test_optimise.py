"""One AdamW over stacked slots is as many AdamWs as there are slots."""

from typing import Any

import pytest

from personae.errors import UsageError

SHAPES = ((3, 5), (4, 3), (2, 6))


def _stacked(slots: int, seed: int = 0) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(slots, *s, generator=generator)) for s in SHAPES]


def _gradients(parameters: list[Any], step: int, size: float = 1.0) -> None:
    import torch

    for number, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(100 * step + number)
        parameter.grad.copy_(torch.randn(parameter.shape, generator=generator) * size)


def test_each_slot_moves_as_under_an_adamw_and_a_clipping_of_its_own() -> None:
    import torch

    from personae.cast.optimise import SlotAdamW

    slots, rates = 4, [1e-2, 3e-3, 1e-3, 5e-2]
    # a slot sits out some steps: its count of steps is its own
    turns = [{0, 1, 2, 3}, {0, 2}, {0, 1, 2}, {2, 3}, {0, 1, 2, 3}, {1}]
    stacked = _stacked(slots)
    alone = [[torch.nn.Parameter(p.detach()[k].clone()) for p in stacked] for k in range(slots)]
    torches = [
        torch.optim.AdamW(own, lr=rates[k], betas=(0.9, 0.99), eps=1e-7, weight_decay=0.1)
        for k, own in enumerate(alone)
    ]
    ours = SlotAdamW(stacked, betas=(0.9, 0.99), eps=1e-7, weight_decay=0.1)
    clipped = 0
    for step, turn in enumerate(turns):
        ours.zero_grad()
        _gradients(stacked, step, size=0.2 if step % 2 else 0.05)
        for k in turn:
            for own, parameter in zip(alone[k], stacked, strict=True):
                own.grad = parameter.grad[k].clone()
            norm = torch.nn.utils.clip_grad_norm_(alone[k], 0.5)
            clipped += float(norm) > 0.5
            torches[k].param_groups[0]["lr"] = rates[k] / (step + 1)
            torches[k].step()
        norms = ours.step({k: rates[k] / (step + 1) for k in turn}, clip=0.5)
        assert set(norms) == turn
        for k in range(slots):
            for own, parameter in zip(alone[k], stacked, strict=True):
                torch.testing.assert_close(parameter[k], own, rtol=1e-6, atol=1e-7)
    assert 0 < clipped < sum(map(len, turns))


def test_a_slot_that_is_not_named_does_not_change_by_a_bit() -> None:
    import torch

    from personae.cast.optimise import SlotAdamW

    stacked = _stacked(3)
    before = [p.detach().clone() for p in stacked]
    ours = SlotAdamW(stacked, weight_decay=0.5)
    for step in range(3):
        ours.zero_grad()
        _gradients(stacked, step)
        ours.step({1: 0.1}, clip=1.0)
    for old, new in zip(before, stacked, strict=True):
        assert new[0].equal(old[0])
        assert new[2].equal(old[2])
        assert not torch.isclose(new[1], old[1]).any()


def test_a_gradient_that_several_losses_made_is_divided_before_it_is_clipped() -> None:
    import torch

    from personae.cast.optimise import SlotAdamW

    one, four = _stacked(1), _stacked(1)
    for parameters, size, divide in ((one, 0.05, None), (four, 0.2, {0: 4})):
        ours = SlotAdamW(parameters)
        _gradients(parameters, 1, size)
        norm = ours.step({0: 0.1}, clip=0.3, divide=divide)[0]
        assert norm == pytest.approx(0.05 * 6.06, rel=0.2)
    for a, b in zip(one, four, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_changes_nothing(wrong: float) -> None:
    from personae.cast.optimise import SlotAdamW

    stacked = _stacked(2)
    ours = SlotAdamW(stacked)
    _gradients(stacked, 0)
    stacked[1].grad[1, 0, 0] = wrong
    before = [p.detach().clone() for p in stacked]
    norms = ours.step({0: 0.1, 1: 0.1})
    assert norms[0] > 0
    assert not norms[1] < float("inf")
    assert all(old.equal(new) for old, new in zip(before, stacked, strict=True))


def test_a_state_written_and_read_goes_on_bit_for_bit() -> None:
    from personae.cast.optimise import SlotAdamW

    through, halves = _stacked(2), _stacked(2)
    first, half = SlotAdamW(through), SlotAdamW(halves)
    for step in range(3):
        _gradients(through, step)
        first.step({0: 0.1, 1: 0.02})
        _gradients(halves, step)
        half.step({0: 0.1, 1: 0.02})
    kept = {name: tensor.clone() for name, tensor in half.state().items()}
    later = SlotAdamW(halves)
    later.load_state(kept)
    for step in range(3, 5):
        for ours, parameters in ((first, through), (later, halves)):
            _gradients(parameters, step)
            ours.step({0: 0.1, 1: 0.02})
    assert all(a.equal(b) for a, b in zip(through, halves, strict=True))
    kept.pop("0.mean.1")
    with pytest.raises(UsageError, match="not the state"):
        later.load_state(kept)
    with pytest.raises(UsageError, match="nothing to optimise"):
        SlotAdamW([])
