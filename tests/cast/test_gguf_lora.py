"""llama.cpp, with the adapters that we write, says what the stack says; tiny random weights."""

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.cast.export import PlainAdapter, export_gguf
from personae.cast.gguf_lora import Heads, heads_of, permuted, write_gguf_lora
from personae.cast.store import Cast, write_cast
from personae.errors import InputError, UsageError
from personae.models.local.header import read_header
from personae.records import Call, Message, Reply, ReplySchema, Sampling
from personae.records.cast import Block, CastCharacter
from tests.cast.tiny_gguf import in_turns, write_tiny_pair

QUESTION = "Who are you, and what is the use of it?"
CHARACTERS = (
    CastCharacter(name="Ada", weights={"shared": 1, "Ada": 1}),
    CastCharacter(name="孙悟空", weights={"孙悟空": 1}),
    CastCharacter(name="Fay", how="fuse", weights={"shared": 1, "Ada": 0.7, "孙悟空": -0.3}),
)


def test_rows_of_a_head_are_brought_to_turns() -> None:
    rows = np.arange(8)[:, None]  # two heads of four rows

    assert permuted(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    wide = np.random.default_rng(0).normal(size=(48, 5))
    assert np.array_equal(permuted(wide, 3), in_turns(wide, 3))


def make_cast(base: Any, path: Path) -> tuple[Any, Cast]:
    from personae.cast.stacked import StackedLoRA

    slots = ["shared", "Ada", "孙悟空"]
    stack = StackedLoRA(base.model, slots, rank=3, alpha=5.3)
    drawn = np.random.default_rng(2)
    state = {
        name: drawn.normal(size=tensor.shape, scale=0.2).astype(np.float32)
        for name, tensor in stack.state().items()
    }
    stack.load_state(state)
    cast = write_cast(
        path,
        base=base.ref,
        rank=3,
        alpha=5.3,
        blocks=[Block(name=slot) for slot in slots],
        characters=CHARACTERS,
        tensors=state,
    )
    return stack, cast


def said_by_the_stack(
    base: Any, stack: Any, weights: Mapping[str, float], tokens: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of the answer's tokens, and of the eight likeliest first ones."""
    import torch

    prompt = base.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_dict=True
    ).input_ids
    answer = [base.tokenizer.encode(token) for token in tokens]
    assert all(len(ids) == 1 for ids in answer)
    ids = torch.tensor([prompt + [one for (one,) in answer]])
    with torch.no_grad(), stack.speaking(stack.weights([weights])):
        all_of = base.model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    own = all_of.gather(1, torch.tensor(answer))[:, 0]
    return own.numpy(), all_of[0].topk(8).values.numpy()


def said_by_llama_cpp(gguf: Path, adapters: Mapping[str, Path]) -> dict[str | None, Reply]:
    """The answer "A" from llama.cpp, through each adapter and (None) through none.

    A schema makes it say that, so that no letter is cut in two; what it reports is the
    distribution before the schema.
    """
    from personae.models.local import LocalModel

    call = Call(
        role="character",
        model="local",
        messages=(Message(role="user", content=QUESTION),),
        sampling=Sampling(temperature=0, max_tokens=6, logprobs=8),
        reply_schema=ReplySchema(name="letter", body={"enum": ["A"]}),
    )

    async def ask() -> dict[str | None, Reply]:
        model = LocalModel(f"local:{gguf}", adapters=tuple(adapters.values()))
        try:
            said: dict[str | None, Reply] = {None: await model.complete(call)}
            for name, file in adapters.items():
                said[name] = await model.adapted({file: 1.0}).complete(call)
            return said
        finally:
            await model.close()

    return asyncio.run(ask())


def differences(
    base: Any, stack: Any, cast: Cast, name: str | None, reply: Reply
) -> tuple[np.ndarray, np.ndarray]:
    """Of log-probabilities: llama.cpp against the stack, and the stack against the base alone."""
    assert reply.text == '"A"'
    assert reply.logprobs is not None
    said = [one for one in reply.logprobs if one.token]  # which token ended it is not shown
    tokens, theirs = [one.token for one in said], [one.logprob for one in said]
    weights = {} if name is None else cast.character(name).weights
    theirs += [logprob for _, logprob in reply.logprobs[0].top]
    ours = np.concatenate(said_by_the_stack(base, stack, weights, tokens))
    plain = np.concatenate(said_by_the_stack(base, stack, {}, tokens))
    return np.abs(ours - theirs), np.abs(ours - plain)


@pytest.mark.skipif(
    any(importlib.util.find_spec(p) is None for p in ("xllamacpp", "openvino_genai")),
    reason="the extra `local` is not installed",
)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_llama_cpp_finds_the_log_probabilities_of_the_stack(kind: str, tmp_path: Path) -> None:
    import torch

    from personae.cast.base import load_base

    torch.set_num_threads(1)
    folder, gguf = write_tiny_pair(tmp_path / "base", kind)
    base = load_base(str(folder), dtype="float32")
    stack, cast = make_cast(base, tmp_path / "cast")
    done = export_gguf(cast, tmp_path / "out")
    replies = said_by_llama_cpp(gguf, done.paths)

    assert list(replies) == [None, *(one.name for one in CHARACTERS)]
    for name, reply in replies.items():
        off, moved = differences(base, stack, cast, name, reply)
        assert off.max() < 0.01  # llama.cpp keeps keys and values in float16
        if name is not None:
            assert moved.max() > 0.5


@pytest.mark.weights
def test_the_embedded_weights_with_an_adapter_say_what_the_stack_says(tmp_path: Path) -> None:
    import torch

    from personae.cast.base import load_base
    from personae.errors import WeightsError
    from personae.models.local import pull

    try:
        gguf = pull("local")
    except WeightsError as error:
        pytest.skip(f"the embedded model's weights cannot be had: {error}")
    torch.set_num_threads(1)
    base = load_base("local", dtype="float32")
    stack, cast = make_cast_of_the_real(base, tmp_path / "cast")
    done = export_gguf(cast, tmp_path / "out")

    for name, reply in said_by_llama_cpp(gguf, done.paths).items():
        off, moved = differences(base, stack, cast, name, reply)
        # Where the weights have 8 bits llama.cpp gives activations no more: without any adapter
        # 60 tokens' log-probabilities were off by 0.06 on average and by 0.27 at most.
        assert off.mean() < 0.25
        if name is not None:
            assert moved.mean() > 0.8


def make_cast_of_the_real(base: Any, path: Path) -> tuple[Any, Cast]:
    from personae.cast.stacked import StackedLoRA

    stack = StackedLoRA(base.model, ["shared", "Ada"], rank=4, alpha=8)
    drawn = np.random.default_rng(2)
    state = stack.state()
    for name, tensor in state.items():
        scale = 0.15 if name.startswith("B.") else tensor.shape[2] ** -0.5
        state[name] = drawn.normal(size=tensor.shape, scale=scale).astype(np.float32)
    stack.load_state(state)
    cast = write_cast(
        path,
        base=base.ref,
        rank=4,
        alpha=8,
        blocks=[Block(name="shared"), Block(name="Ada")],
        characters=[CastCharacter(name="Ada", weights={"shared": 1, "Ada": 1})],
        tensors=state,
    )
    return stack, cast


def test_the_file_says_what_it_is_and_its_alpha_goes_with_its_rank(tmp_path: Path) -> None:
    from gguf import GGUFReader

    folder, _ = write_tiny_pair(tmp_path / "base", "llama")
    adapter = PlainAdapter(
        {"model.layers.1.mlp.up_proj": np.ones((5, 64), np.float32)},
        {"model.layers.1.mlp.up_proj": np.full((128, 5), 2, np.float32)},
        rank=5,
        alpha=15,
    )
    file = tmp_path / "out" / "one.gguf"
    write_gguf_lora(file, adapter, heads_of(str(folder)), name="One")

    header = read_header(file)
    assert header["general.type"] == "adapter"
    assert header["adapter.type"] == "lora"
    assert header["general.architecture"] == "llama"
    reader: Any = GGUFReader(str(file))
    tensors = {t.name: t for t in reader.tensors}
    assert list(tensors) == ["blk.1.ffn_up.weight.lora_a", "blk.1.ffn_up.weight.lora_b"]
    b = tensors["blk.1.ffn_up.weight.lora_b"]
    assert b.shape.tolist() == [5, 128]  # llama.cpp reads the rank here ...
    assert reader.fields["adapter.lora.alpha"].contents() == 15  # ... and multiplies by 15 / 5
    assert [p.name for p in file.parent.iterdir()] == ["one.gguf"]


def test_only_the_rows_of_q_and_k_of_a_llama_change_places(tmp_path: Path) -> None:
    from gguf import GGUFReader

    heads = Heads("llama", layers=1, queries=4, keys=2)
    drawn = np.random.default_rng(0)
    rows = {"q_proj": 64, "k_proj": 32, "v_proj": 32, "o_proj": 64}
    a = {f"model.layers.0.self_attn.{m}": drawn.normal(size=(2, 64)) for m in rows}
    b = {f"model.layers.0.self_attn.{m}": drawn.normal(size=(n, 2)) for m, n in rows.items()}
    adapter = PlainAdapter(
        {k: v.astype(np.float32) for k, v in a.items()},
        {k: v.astype(np.float32) for k, v in b.items()},
        rank=2,
        alpha=2,
    )
    for architecture in ("llama", "qwen2"):
        file = tmp_path / f"{architecture}.gguf"
        write_gguf_lora(file, adapter, Heads(architecture, 1, heads.queries, heads.keys), name="x")
        reader: Any = GGUFReader(str(file))
        found = {t.name: np.array(t.data) for t in reader.tensors}
        for module, name, count in (
            ("q_proj", "attn_q", 4),
            ("k_proj", "attn_k", 2),
            ("v_proj", "attn_v", 0),
            ("o_proj", "attn_output", 0),
        ):
            given = adapter.b[f"model.layers.0.self_attn.{module}"]
            expected = in_turns(given, count) if count and architecture == "llama" else given
            assert np.array_equal(found[f"blk.0.{name}.weight.lora_b"], expected), name
            a_given = adapter.a[f"model.layers.0.self_attn.{module}"]
            assert np.array_equal(found[f"blk.0.{name}.weight.lora_a"], a_given), name


def test_heads_are_the_same_from_a_directory_and_from_a_gguf(tmp_path: Path) -> None:
    for kind in ("llama", "qwen2"):
        folder, gguf = write_tiny_pair(tmp_path / kind, kind)
        assert heads_of(str(folder)) == heads_of(f"local:{gguf}") == Heads(kind, 2, 4, 2)


def test_a_module_that_gguf_does_not_have_is_refused(tmp_path: Path) -> None:
    strange = PlainAdapter(
        {"model.vision.proj": np.ones((1, 4), np.float32)},
        {"model.vision.proj": np.ones((4, 1), np.float32)},
        rank=1,
        alpha=1,
    )

    with pytest.raises(InputError, match=r"no matrix for 'model.vision.proj'"):
        write_gguf_lora(tmp_path / "x.gguf", strange, Heads("llama", 2, 4, 2), name="x")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("config", ['{"model_type": "llama"}', '{"model_type": "phi3"}'])
def test_a_base_that_says_too_little_or_is_of_another_kind_is_refused(
    tmp_path: Path, config: str
) -> None:
    (tmp_path / "config.json").write_text(config)

    with pytest.raises(UsageError, match=r"does not state num_hidden_layers|is 'phi3'"):
        heads_of(str(tmp_path))
