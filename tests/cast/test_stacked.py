"""Blocks over a model: each is a plain adapter, and what is not named does not work."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from personae.errors import UsageError

# of PEFT, about transformers
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

SLOTS = ("shared", "anna", "bo", "cy")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    return loader.from_pretrained(folder, dtype=torch.float64).eval()


def _filled(model: Any, slots: tuple[str, ...] = SLOTS, **more: Any) -> Any:
    """A stack in whose B something stands."""
    import torch

    from personae.cast.stacked import StackedLoRA

    stack = StackedLoRA(model, slots, **{"rank": 4, "alpha": 8.0, **more})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in stack.layers.values():
            layer.b.copy_(torch.randn(layer.b.shape, generator=generator) * 0.2)
    return stack


def _ids(rows: int = 3, tokens: int = 17, words: int = 250) -> Any:
    import torch

    return torch.randint(3, words, (rows, tokens), generator=torch.Generator().manual_seed(2))


def _logits(model: Any, ids: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def _spoken(stack: Any, ids: Any, rows: list[dict[str, float]]) -> Any:
    with stack.speaking(stack.weights(rows)):
        return _logits(stack.model, ids)


def _peft(model: Any, stack: Any, weights: Mapping[str, float], rank: int) -> Any:
    """Stock PEFT with one adapter that holds the weighted blocks side by side."""
    import torch
    from peft import LoraConfig, get_peft_model

    adapted: Any = get_peft_model(
        model,
        LoraConfig(
            r=rank,
            lora_alpha=int(stack.alpha / stack.rank * rank),
            target_modules=[*stack.layers],
            fan_in_fan_out=any(
                type(layer.base).__name__ == "Conv1D" for layer in stack.layers.values()
            ),
            init_lora_weights=True,
        ),
    ).double()
    chosen = [(stack.index(name), weight) for name, weight in weights.items()]
    with torch.no_grad():
        for name, layer in stack.layers.items():
            plain = adapted.base_model.model.get_submodule(name)
            plain.lora_A["default"].weight.copy_(torch.cat([layer.a[k] for k, _ in chosen]))
            plain.lora_B["default"].weight.copy_(
                torch.cat([w * layer.b[k].double() for k, w in chosen], 1)
            )
    return adapted.eval()


def test_a_slot_is_a_plain_peft_adapter(tiny_base: Path) -> None:
    stack = _filled(_load(tiny_base))
    ids = _ids()
    adapted = _peft(_load(tiny_base), stack, {"bo": 1.0}, 4)
    gap = _spoken(stack, ids, [{"bo": 1.0}] * 3) - _logits(adapted, ids)
    assert gap.abs().max() < 1e-12
    with adapted.disable_adapter():
        assert (_logits(adapted, ids) - _spoken(stack, ids, [{"bo": 1.0}] * 3)).abs().max() > 1e-3


def test_a_mix_of_slots_is_the_weighted_sum_of_their_updates(tiny_base: Path) -> None:
    stack = _filled(_load(tiny_base))
    mix = {"shared": 1.0, "anna": 0.75, "cy": -0.5}
    ids = _ids()
    summed: Any = _load(tiny_base)
    import torch

    with torch.no_grad():
        for name, layer in stack.layers.items():
            for slot, weight in mix.items():
                k = stack.index(slot)
                update = stack.alpha / stack.rank * layer.b[k].double() @ layer.a[k].double()
                summed.get_submodule(name).weight += weight * update
    assert (_spoken(stack, ids, [mix] * 3) - _logits(summed, ids)).abs().max() < 1e-10
    adapted = _peft(_load(tiny_base), stack, mix, 12)
    assert (_spoken(stack, ids, [mix] * 3) - _logits(adapted, ids)).abs().max() < 1e-10


def test_the_base_alone_is_the_base_bit_for_bit(tiny_base: Path) -> None:
    plain, model = _load(tiny_base), _load(tiny_base)
    stack = _filled(model)
    ids = _ids()
    assert _logits(model, ids).equal(_logits(plain, ids))
    assert _spoken(stack, ids, [{}, {}, {}]).equal(_logits(plain, ids))
    assert not _spoken(stack, ids, [{"anna": 1.0}] * 3).equal(_logits(plain, ids))
    stack.detach()
    assert _logits(model, ids).equal(_logits(plain, ids))
    assert [*model.state_dict()] == [*plain.state_dict()]


@pytest.mark.parametrize("tokens", [1, 5, 400])
def test_rows_with_different_speakers_are_answered_as_each_alone(
    tiny_base: Path, tokens: int
) -> None:
    stack = _filled(_load(tiny_base))
    ids = _ids(4, tokens)
    rows = [{"shared": 1.0, "anna": 1.0}, {}, {"bo": 0.6, "cy": 0.4}, {"shared": 1.0}]
    together = _spoken(stack, ids, rows)
    for number, row in enumerate(rows):
        alone = _spoken(stack, ids[number : number + 1], [row])
        assert (together[number] - alone[0]).abs().max() < 1e-10


@pytest.mark.parametrize("tokens", [1, 5, 400])
def test_weights_a_token_that_are_alike_along_a_row_are_weights_a_row(
    tiny_base: Path, tokens: int
) -> None:
    stack = _filled(_load(tiny_base))
    ids = _ids(3, tokens)
    rows = [{"shared": 1.0, "anna": 1.0}, {"bo": 1.0}, {"shared": 0.5}]
    by_row = stack.weights(rows)
    with stack.speaking(by_row[:, None].expand(-1, tokens, -1)):
        by_token = _logits(stack.model, ids)
    assert (by_token - _spoken(stack, ids, rows)).abs().max() < 1e-10


def test_what_stands_before_a_speaker_is_read_by_the_base_alone(tiny_base: Path) -> None:
    stack = _filled(_load(tiny_base))
    ids = _ids(2, 12)
    plain = _spoken(stack, ids, [{}, {}])
    weights = stack.weights([{}, {}])[:, None].repeat(1, 12, 1)
    weights[0, 7:, stack.index("anna")] = 1.0
    with stack.speaking(weights):
        spoken = _logits(stack.model, ids)
    assert (spoken[0, :7] - plain[0, :7]).abs().max() < 1e-12
    assert (spoken[1] - plain[1]).abs().max() < 1e-12
    assert (spoken[0, 7:] - plain[0, 7:]).abs().amax(-1).min() > 1e-4


def _tiny(kind: str) -> Any:
    import torch
    import transformers as t

    torch.manual_seed(0)
    small: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    configs: dict[str, Any] = {
        "qwen2": lambda: t.Qwen2Config(**small, tie_word_embeddings=True),
        "qwen3": lambda: t.Qwen3Config(**small, head_dim=8),
        "gemma2": lambda: t.Gemma2Config(**small, head_dim=8, final_logit_softcapping=5.0),
        "phi3": lambda: t.Phi3Config(**small),
        "gpt2": lambda: t.GPT2Config(
            vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1,
            eos_token_id=2,
        ),
    }  # fmt: skip
    return t.AutoModelForCausalLM.from_config(configs[kind](), dtype=torch.float64).eval()


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "gemma2", "phi3", "gpt2"])
def test_other_architectures_take_the_blocks_as_peft_takes_them(kind: str) -> None:
    model = _tiny(kind)
    other = copy.deepcopy(model)
    stack = _filled(model, SLOTS[:3])
    ids = _ids(2, 9, 97)
    adapted = _peft(other, stack, {"anna": 1.0}, 4)
    gap = _spoken(stack, ids, [{"anna": 1.0}] * 2) - _logits(adapted, ids)
    assert gap.abs().max() < 1e-10
    assert _spoken(stack, ids, [{"anna": 1.0}, {}])[1].equal(_spoken(stack, ids, [{}, {}])[1])


def test_the_output_embedding_is_never_adapted(tiny_base: Path) -> None:
    from personae.cast.stacked import linear_modules

    names = linear_modules(_load(tiny_base), "all-linear")
    assert len(names) == 2 * 7
    assert not any("head" in name for name in names)
    assert {*linear_modules(_load(tiny_base), ("q_proj", "v_proj"))} == {
        f"model.layers.{n}.self_attn.{kind}_proj" for n in (0, 1) for kind in "qv"
    }
    with pytest.raises(UsageError, match=r"'query'; there are .*q_proj"):
        linear_modules(_load(tiny_base), ("query",))


def test_gradients_reach_the_blocks_that_speak_and_no_other(tiny_base: Path) -> None:
    stack = _filled(_load(tiny_base))
    ids = _ids(3, 40)
    with stack.speaking(stack.weights([{"anna": 1.0}, {"anna": 0.5, "bo": 1.0}, {}])):
        stack.model(input_ids=ids, use_cache=False).logits.square().mean().backward()
    for layer in stack.layers.values():
        for gradient in (layer.a.grad, layer.b.grad):
            assert gradient[stack.index("anna")].any()
            assert gradient[stack.index("bo")].any()
            assert not gradient[stack.index("shared")].any()
            assert not gradient[stack.index("cy")].any()
    assert all(not p.requires_grad for n, p in stack.model.named_parameters() if ".base." in n)


@pytest.mark.parametrize("tokens", [3, 300])
def test_gradients_of_rows_together_are_those_of_rows_alone(tiny_base: Path, tokens: int) -> None:
    import torch

    stack = _filled(_load(tiny_base))
    ids = _ids(4, tokens)
    rows = [{"shared": 1.0, "anna": 1.0}, {"bo": 1.0}, {"shared": 1.0, "cy": 1.0}, {"bo": 0.3}]

    def gradients(chosen: list[int]) -> list[Any]:
        for parameter in stack.parameters():
            parameter.grad = None
        for part in ([n] for n in chosen) if len(chosen) > 1 else [[0, 1, 2, 3]]:
            with stack.speaking(stack.weights([rows[n] for n in part])):
                logits = stack.model(input_ids=ids[part], use_cache=False).logits
            logits.square().sum().backward()
        return [p.grad.clone() for p in stack.parameters()]

    for one, other in zip(gradients([0]), gradients([0, 1, 2, 3]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [3, 300])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("alike", [False, True])
def test_blocks_gathered_for_all_layers_at_once_learn_the_same(
    tiny_base: Path, tokens: int, dtype: str, alike: bool
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    stack = _filled(loader.from_pretrained(tiny_base, dtype=getattr(torch, dtype)).eval())
    ids, row = _ids(4, tokens), {"shared": 1.0, "anna": 1.0}
    rows = [row] * 4 if alike else [row, {"bo": 1.0}, {"shared": 1.0, "cy": 1.0}, {"bo": 0.3}]
    found = []
    for once in (None, tokens, 10 * tokens + 7):  # the last was wrongly announced
        for parameter in stack.parameters():
            parameter.grad = None
        with stack.speaking(stack.weights(rows), once=once):
            logits = stack.model(input_ids=ids, use_cache=False).logits.float()
            logits.log_softmax(-1).square().mean().backward()
        found.append([p.grad.clone() for p in stack.parameters()])
    for one, *others in zip(*found, strict=True):
        for other in others:
            scale = one.abs().max().item()
            tolerance = {"float32": 1e-5, "bfloat16": 3e-2}[dtype] * scale + 1e-12
            torch.testing.assert_close(other, one, rtol=0, atol=tolerance)


def test_a_block_over_a_bf16_base_stays_fp32(tiny_base: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.bfloat16).eval()
    exact = _filled(_load(tiny_base))
    stack = _filled(model)
    assert {p.dtype for p in stack.parameters()} == {torch.float32}
    rows = [{"shared": 1.0, "anna": 1.0}, {"bo": 1.0}, {}]
    spoken = _spoken(stack, _ids(), rows)
    assert spoken.dtype == torch.bfloat16
    assert (spoken.double() - _spoken(exact, _ids(), rows)).abs().max() < 0.1


def test_what_was_written_comes_back(tiny_base: Path) -> None:
    stack = _filled(_load(tiny_base))
    state = stack.state()
    name = "model.layers.0.mlp.down_proj"
    assert state[f"A.{name}"].shape == (4, 4, 128)
    assert state[f"B.{name}"].shape == (4, 64, 4)
    other = _filled(_load(tiny_base), seed=9)
    ids, rows = _ids(), [{"anna": 1.0}] * 3
    assert not _spoken(other, ids, rows).equal(_spoken(stack, ids, rows))
    other.load_state(state)
    assert _spoken(other, ids, rows).equal(_spoken(stack, ids, rows))
    state[f"A.{name}"] = state[f"A.{name}"][:, :3]
    with pytest.raises(UsageError, match=f"A.{name}"):
        other.load_state(state)


def test_a_mix_kept_over_many_passes_follows_the_blocks(tiny_base: Path) -> None:
    import torch

    stack = _filled(_load(tiny_base))
    ids, rows = _ids(), [{"anna": 1.0}, {"bo": 1.0}, {}]
    mix = stack.mix(stack.weights(rows))
    with stack.speaking(mix):
        first = _logits(stack.model, ids)
        again = _logits(stack.model, ids)
    assert first.equal(again)
    assert first.equal(_spoken(stack, ids, rows))
    with torch.no_grad():
        for layer in stack.layers.values():
            layer.b[stack.index("anna")] *= 2
    with stack.speaking(mix):
        later = _logits(stack.model, ids)
    assert later.equal(_spoken(stack, ids, rows))
    assert not later[0].equal(first[0])


def test_a_new_slot_leaves_every_other_as_it_was_bit_for_bit(tiny_base: Path) -> None:
    stack = _filled(_load(tiny_base))
    ids = _ids()
    rows = [{"shared": 1.0, "anna": 1.0}, {"bo": 1.0}, {"shared": 1.0, "anna": 0.5, "cy": 0.5}]
    before, state = _spoken(stack, ids, rows), stack.state()
    for number in range(6):  # past any spare room
        stack.add_slot(f"new {number}")
    assert stack.slots == (*SLOTS, *(f"new {n}" for n in range(6)))
    assert _spoken(stack, ids, rows).equal(before)
    grown = stack.state()
    assert all(grown[name][:4].tobytes() == tensor.tobytes() for name, tensor in state.items())
    assert all(not grown[name][4:].any() for name in grown if name.startswith("B."))
    assert all(grown[name][4:].any() for name in grown if name.startswith("A."))
    fresh = [{"shared": 1.0, "new 5": 1.0}] * 3  # B is 0: a new slot says nothing yet
    assert _spoken(stack, ids, fresh).equal(_spoken(stack, ids, [{"shared": 1.0}] * 3))
    with pytest.raises(UsageError, match="'bo'"):
        stack.add_slot("bo")


def test_slots_can_be_added_where_a_generator_runs(tiny_base: Path) -> None:
    import torch

    stack = _filled(_load(tiny_base), spare=1)
    ids, rows = _ids(), [{"anna": 1.0}, {"bo": 1.0}, {}]
    before = _spoken(stack, ids, rows)
    with torch.inference_mode():
        with stack.speaking(stack.weights(rows)):
            assert stack.model(input_ids=ids, use_cache=False).logits.equal(before)
        for number in range(3):
            stack.add_slot(f"new {number}")
        with stack.speaking(stack.weights(rows)):
            assert stack.model(input_ids=ids, use_cache=False).logits.equal(before)
    with stack.speaking(stack.weights([{"new 2": 1.0}] * 3)):
        stack.model(input_ids=ids, use_cache=False).logits.mean().backward()
    assert stack.parameters()[-1].grad[stack.index("new 2")].any()


def test_a_slot_added_with_values_speaks_with_them(tiny_base: Path) -> None:
    stack = _filled(_load(tiny_base))
    k = stack.index("bo")
    values = {name: tensor[k] for name, tensor in stack.state().items()}
    stack.add_slot("twin", values)
    ids = _ids()
    assert _spoken(stack, ids, [{"twin": 1.0}] * 3).equal(_spoken(stack, ids, [{"bo": 1.0}] * 3))
    values.popitem()
    with pytest.raises(UsageError, match="do not fit"):
        stack.add_slot("broken", values)
    assert stack.slots[-1] == "twin"


def test_some_slots_alone_hold_what_the_whole_holds_and_write_it_back(tiny_base: Path) -> None:
    import torch

    stack = _filled(_load(tiny_base))
    ids, row = _ids(), {"shared": 1.0, "cy": 1.0}
    before, state = _spoken(stack, ids, [row] * 3), stack.state()
    with stack.only(("shared", "cy")):
        assert stack.slots == ("shared", "cy")
        assert len(stack.parameters()[0]) == 2
        assert _spoken(stack, ids, [row] * 3).equal(before)
        with torch.no_grad():
            for parameter in stack.parameters():
                parameter[1] += 1
    assert stack.slots == SLOTS
    for name, tensor in stack.state().items():
        assert tensor[:3].tobytes() == state[name][:3].tobytes()
        assert (tensor[3] == state[name][3] + 1).all()


def test_a_stack_without_slots_or_with_two_of_a_name_is_refused(tiny_base: Path) -> None:
    from personae.cast.stacked import StackedLoRA

    model = _load(tiny_base)
    for slots in ((), ("anna", "anna")):
        with pytest.raises(UsageError, match="a name of its own"):
            StackedLoRA(model, slots)
    with pytest.raises(UsageError, match="counts from 1"):
        StackedLoRA(model, ("anna",), rank=0)
    with pytest.raises(UsageError, match=r"'dora'; it has anna"):
        StackedLoRA(model, ("anna",)).index("dora")


def test_a_model_that_bears_blocks_takes_no_others_over_them(tiny_base: Path) -> None:
    from personae.cast.stacked import StackedLoRA

    model = _load(tiny_base)
    stack = _filled(model)
    for targets in ("all-linear", "q_proj"):
        with pytest.raises(UsageError, match="bears blocks already"):
            StackedLoRA(model, ("x",), rank=2, targets=targets)
    stack.detach()
    assert StackedLoRA(model, ("x",), rank=2).slots == ("x",)


def test_weights_that_spoke_without_gradients_can_teach(tiny_base: Path) -> None:
    import torch

    model = _load(tiny_base)
    stack = _filled(model)
    weights = stack.weights([{"anna": 1.0}, {"bo": 1.0}])
    with torch.inference_mode(), stack.speaking(weights):
        model(input_ids=_ids(2))
    with stack.speaking(weights):
        model(input_ids=_ids(2)).logits.sum().backward()

    assert all(layer.b.grad is not None for layer in stack.layers.values())


def test_a_slot_can_be_added_where_nothing_is_learnt(tiny_base: Path) -> None:
    import torch

    model = _load(tiny_base)
    stack = _filled(model, spare=0)
    before = _spoken(stack, _ids(1), [{"anna": 1.0}])
    with torch.inference_mode():
        stack.add_slot("dora")
    assert _spoken(stack, _ids(1), [{"anna": 1.0}]).equal(before)
    with stack.speaking(stack.weights([{"dora": 1.0}])):
        model(input_ids=_ids(1)).logits.sum().backward()
    assert any(layer.b.grad[len(SLOTS)].any() for layer in stack.layers.values())


def test_a_pass_that_cannot_begin_leaves_no_weights_behind(tiny_base: Path) -> None:
    import torch

    model = _load(tiny_base)
    stack = _filled(model)
    alone = _logits(model, _ids(2))
    strange = stack.mix(torch.ones(2, len(SLOTS) + 9))  # of slots that there are not

    with pytest.raises((IndexError, RuntimeError)), stack.speaking(strange, once=17):
        pass
    assert _logits(model, _ids(2)).equal(alone)


def test_blocks_over_a_model_that_does_not_train_drop_nothing(tiny_base: Path) -> None:
    model = _load(tiny_base)
    stack = _filled(model, dropout=0.5)
    rows: list[dict[str, float]] = [{"anna": 1.0}]

    assert _spoken(stack, _ids(1), rows).equal(_spoken(stack, _ids(1), rows))
    model.train()
    assert not _spoken(stack, _ids(1), rows).equal(_spoken(stack, _ids(1), rows))


def test_modules_beside_each_other_may_read_different_tensors(tiny_base: Path) -> None:
    """Queries, keys and values share a product; what they are given is looked at each time."""
    import torch

    stack = _filled(_load(tiny_base))
    q, k, v = (stack.layers[f"model.layers.0.self_attn.{name}_proj"] for name in "qkv")
    draw = torch.Generator().manual_seed(4)
    one, other = torch.randn(2, 3, 5, 64, generator=draw, dtype=torch.float64)
    rows = [{"anna": 1.0}, {"shared": 1.0, "bo": 0.5}, {}]

    def want(layer: Any, x: Any) -> Any:
        made = layer.base(x).clone()
        for r, row in enumerate(rows):
            for slot, weight in row.items():
                a, b = (t[stack.index(slot)].double() for t in (layer.a, layer.b))
                made[r] += weight * stack.alpha / stack.rank * (x[r] @ a.T @ b.T)
        return made

    order = [(q, one), (k, other), (v, one), (v, other), (k, one), (q, other), (q, one), (v, one)]
    for learning in (False, True):
        with torch.set_grad_enabled(learning), stack.speaking(stack.weights(rows)):
            for layer, x in order:
                torch.testing.assert_close(layer(x), want(layer, x), rtol=1e-10, atol=1e-10)


def test_passes_within_one_context_have_gradients_of_their_own(tiny_base: Path) -> None:
    """Two passes before a backward, one after it, and one after the blocks have changed."""
    import torch

    stack = _filled(_load(tiny_base))
    ids, weights = _ids(2, 7), stack.weights([{"anna": 1.0}, {"shared": 1.0, "bo": 1.0}])

    def loss(part: Any) -> Any:
        return stack.model(input_ids=part, use_cache=False).logits.square().mean()

    def gradients() -> list[Any]:
        made = [p.grad.clone() for p in stack.parameters() if p.grad is not None]
        for parameter in stack.parameters():
            parameter.grad = None
        return made

    with stack.speaking(weights):
        loss(ids).backward()
    alone = gradients()
    with stack.speaking(weights):
        first, second = loss(ids), loss(ids)
        first.backward()
        second.backward()
        loss(ids).backward()
    for one, thrice in zip(alone, gradients(), strict=True):
        torch.testing.assert_close(thrice, 3 * one, rtol=1e-4, atol=1e-7)
    with stack.speaking(weights):
        before = loss(ids)
        with torch.no_grad():
            for parameter in stack.parameters():
                parameter.mul_(0.5)
        assert loss(ids) != before
