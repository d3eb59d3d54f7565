"""One batch, many characters: each row as if it were alone; nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.cast.expand import with_slot
from personae.cast.generate import (
    CastGenerator,
    Generated,
    Prompt,
    Wanted,
)
from personae.cast.stacked import StackedLoRA
from personae.cast.store import Cast, write_cast
from personae.errors import ContextLengthError, ServerError, UsageError
from personae.records.cast import Block, CastCharacter
from tests.cast.serving import NAMES, generator_of, loaded, prompt_of, small_cast

ADA, WU = NAMES
TEXTS = (
    "Good evening.",
    "What do you know of engines that weave flowers and leaves? Tell me all of it, slowly.",
    "酒店里的老虎",
    "Hi",
    "Who was it that you met on the ridge, and what had he to say for himself?",
)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Cast:
    return small_cast(tmp_path_factory.mktemp("casts") / "cast", tiny_base, seed=2)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def generator(cast: Cast, tiny_base: Path) -> Iterator[CastGenerator]:
    made = generator_of(cast, tiny_base)
    yield made
    made.close()


def greedy(generator: CastGenerator, text: str, who: str | None, **more: Any) -> Wanted:
    chosen: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, **more}
    return Wanted(prompt_of(generator, text, who), who, **chosen)


def by_hand(generator: CastGenerator, wanted: Wanted) -> list[int]:
    """Greedy decoding without a cache: the whole text again for each token."""
    weights = generator.cast.character(wanted.character).weights if wanted.character else {}
    ids, out = list(wanted.prompt.ids), list[int]()
    with torch.no_grad(), generator.stack.speaking(generator.stack.weights([weights])):
        while len(out) < wanted.max_tokens:
            token = int(generator.base.model(torch.tensor([ids + out])).logits[0, -1].argmax())
            if token == generator.base.tokenizer.eos_token_id:
                break
            out.append(token)
    return out


def mixed(generator: CastGenerator) -> list[Wanted]:
    speakers = (ADA, WU, None, WU, ADA)
    return [greedy(generator, t, who) for t, who in zip(TEXTS, speakers, strict=True)]


def test_each_row_of_a_mixed_batch_is_what_it_is_without_a_batch_and_without_a_cache(
    generator: CastGenerator,
) -> None:
    wanted = mixed(generator)
    found = generator.run(wanted)
    assert [list(one.ids) for one in found] == [by_hand(generator, one) for one in wanted]
    assert len({one.ids[:8] for one in found}) == len(wanted)


def test_the_speaker_decides_the_reply(generator: CastGenerator) -> None:
    found = generator.run([greedy(generator, TEXTS[0], who) for who in (ADA, WU, None)])
    assert len({one.ids for one in found}) == 3


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's own call
def test_a_row_is_what_peft_generates_through_that_adapter_alone(
    generator: CastGenerator, cast: Cast, tiny_base: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    base = loaded(tiny_base)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=list(cast.manifest.targets))
    tuned: Any = get_peft_model(base.model, config, adapter_name="ada")
    tuned.add_adapter("wu", config)
    for adapter, name in (("ada", ADA), ("wu", WU)):
        slots = [0, [b.name for b in cast.manifest.blocks].index(name)]
        for target in cast.manifest.targets:
            module = tuned.base_model.model.get_submodule(target)
            a, b = (torch.from_numpy(cast.tensors[f"{k}.{target}"][slots]) for k in "AB")
            with torch.no_grad():
                module.lora_A[adapter].weight.copy_(a.flatten(0, 1))
                module.lora_B[adapter].weight.copy_(b.movedim(0, 1).flatten(1))
    wanted = [greedy(generator, t, who) for t in TEXTS for who in (ADA, WU)]
    found = generator.run(wanted)
    tuned.eval()
    for one, reply in zip(wanted, found, strict=True):
        tuned.set_adapter("ada" if one.character == ADA else "wu")
        ids = torch.tensor([one.prompt.ids])
        made = tuned.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
        )[0, ids.shape[1] :].tolist()
        if made[-1] == base.tokenizer.eos_token_id:
            made = made[:-1]
        assert list(reply.ids) == made


def test_rows_that_come_while_others_speak_change_nothing(
    cast: Cast, tiny_base: Path, generator: CastGenerator
) -> None:
    wanted = [greedy(generator, t, who, max_tokens=n) for t, who, n in (
        (TEXTS[0], ADA, 40), (TEXTS[1], WU, 7), (TEXTS[2], WU, 25), (TEXTS[3], ADA, 3),
        (TEXTS[4], None, 31),
    )]  # fmt: skip
    alone = [list(generator.run([one])[0].ids) for one in wanted]
    narrow = generator_of(cast, tiny_base, rows=2, kept_bytes=0)  # three wait until two have left
    try:
        assert [list(one.ids) for one in narrow.run(wanted)] == alone
    finally:
        narrow.close()


def test_draws_with_a_seed_do_not_depend_on_who_shares_the_batch(
    generator: CastGenerator,
) -> None:
    def drawn(seed: int) -> Wanted:
        return greedy(generator, TEXTS[0], ADA, temperature=1.0, top_p=0.9, seed=seed)

    alone = generator.run([drawn(5)])[0]
    crowd = generator.run([*mixed(generator), drawn(5), drawn(6), drawn(5)])
    assert crowd[5].ids == crowd[7].ids == alone.ids != crowd[6].ids


def test_a_temperature_near_zero_draws_the_likeliest(generator: CastGenerator) -> None:
    cold, coldest = (
        generator.run([greedy(generator, TEXTS[1], WU, temperature=t, seed=3)])[0]
        for t in (1e-4, 0.0)
    )
    assert cold.ids == coldest.ids


def test_a_reply_ends_before_a_stop_string_even_when_it_spans_tokens(
    generator: CastGenerator,
) -> None:
    whole = generator.run([greedy(generator, TEXTS[1], ADA, max_tokens=60)])[0]
    stop = whole.text[9:13]
    assert len(stop) == 4
    found = generator.run([greedy(generator, TEXTS[1], ADA, max_tokens=60, stop=(stop, "zzzz"))])[0]
    assert found.finish == "stop"
    assert found.text == whole.text[: whole.text.index(stop)]


def test_max_tokens_ends_a_reply(generator: CastGenerator) -> None:
    found = generator.run([greedy(generator, TEXTS[0], ADA, max_tokens=5)])[0]
    assert (found.finish, found.tokens_out, len(found.ids)) == ("length", 5, 5)


def test_the_turns_end_is_counted_and_not_shown(generator: CastGenerator) -> None:
    end = generator.base.tokenizer.eos_token_id
    head = generator.base.model.get_output_embeddings()
    before = head.weight.detach().clone()
    try:
        with torch.no_grad():  # the likeliest token is the end whatever was said
            head.weight[end] = 50 * before.mean(0) + 40 * torch.sign(before.mean(0))
        outcomes = generator.run([greedy(generator, text, ADA) for text in TEXTS])
    finally:
        with torch.no_grad():
            head.weight.copy_(before)
    ended = [one for one in outcomes if one.finish == "stop"]
    assert ended
    for one in ended:
        assert end not in one.ids
        assert one.tokens_out == len(one.ids) + 1


def test_the_pieces_are_the_text_and_none_splits_a_character(generator: CastGenerator) -> None:
    async def listen() -> tuple[list[str], Generated]:
        speech = generator.stream(greedy(generator, TEXTS[2], WU, max_tokens=80))
        pieces = [piece async for piece in speech]
        return pieces, await speech.done()

    pieces, whole = asyncio.run(listen())
    assert "".join(pieces) == whole.text
    assert whole.text == generator.base.tokenizer.decode(whole.ids, skip_special_tokens=True)


def test_log_probabilities_are_those_of_the_full_distribution(generator: CastGenerator) -> None:
    wanted = greedy(generator, TEXTS[0], ADA, max_tokens=4, logprobs=3)
    found = generator.run([wanted])[0]
    assert found.logprobs is not None
    weights = generator.stack.weights([generator.cast.character(ADA).weights])
    with torch.no_grad(), generator.stack.speaking(weights):
        logits = generator.base.model(torch.tensor([[*wanted.prompt.ids, *found.ids]])).logits[0]
    expected = logits.log_softmax(-1)
    for n, one in enumerate(found.logprobs):
        at = expected[len(wanted.prompt.ids) - 1 + n]
        assert one.logprob == pytest.approx(float(at[found.ids[n]]), abs=1e-4)
        assert one.logprob == pytest.approx(one.top[0][1])
        assert len(one.top) == 3


def test_given_text_is_scored_as_a_plain_pass_scores_it(generator: CastGenerator) -> None:
    prompt = prompt_of(generator, TEXTS[0], WU)
    ids = generator.base.tokenizer(TEXTS[1] * 3, add_special_tokens=False)["input_ids"]
    assert len(ids) > 128  # more than one pass
    found = generator.score(prompt, ids, WU).result()
    weights = generator.stack.weights([generator.cast.character(WU).weights])
    with torch.no_grad(), generator.stack.speaking(weights):
        logits = generator.base.model(torch.tensor([[*prompt.ids, *ids]])).logits[0]
    rows = logits.log_softmax(-1)[len(prompt.ids) - 1 : -1]
    expected = rows.gather(-1, torch.tensor(ids)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(found), expected, atol=1e-4)


def test_leaving_the_iteration_cancels_the_reply(generator: CastGenerator) -> None:
    async def leave() -> None:
        async with generator.stream(greedy(generator, TEXTS[0], ADA, max_tokens=1500)) as speech:
            async for _piece in speech:
                break

    asyncio.run(leave())
    assert generator.between_steps(lambda: None).result() is None
    generator.run([greedy(generator, TEXTS[0], WU, max_tokens=2)])
    assert generator.busy == 0


def test_fifty_listeners_who_leave_leave_no_work_behind(cast: Cast, tiny_base: Path) -> None:
    generator = generator_of(cast, tiny_base, rows=4)
    steps = []
    hook = generator.base.model.register_forward_pre_hook(
        lambda _m, _a, k: steps.append(k["input_ids"].shape[0]), with_kwargs=True
    )

    async def crowd() -> None:
        tasks = [
            asyncio.create_task(generator.generate(greedy(generator, f"{n}", ADA, max_tokens=1900)))
            for n in range(50)
        ]
        while not steps:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in outcomes)

    asyncio.run(crowd())
    last = generator.run([greedy(generator, "and you?", WU, max_tokens=3)])[0]
    assert len(last.ids) <= 3
    assert generator.busy == 0
    assert len(steps) < 300  # of 1900 for each four of them
    hook.remove()
    generator.close()


def test_whoever_leaves_while_the_batch_is_full_does_not_wait_on(
    cast: Cast, tiny_base: Path
) -> None:
    generator = generator_of(cast, tiny_base, rows=1)
    speaks = generator.submit(greedy(generator, TEXTS[0], ADA, max_tokens=1900))
    while not generator.counts.drawn:
        generator.between_steps(lambda: None).result()
    waiting = [generator.submit(greedy(generator, f"{n}", WU)) for n in range(9)]
    for one in waiting[1:]:
        one.cancel()
    drawn = generator.counts.drawn
    while generator.counts.drawn < drawn + 2:
        generator.between_steps(lambda: None).result()
    assert not speaks.future.done()
    assert (generator.busy, generator.counts.cancelled) == (2, 8)
    speaks.cancel()
    assert waiting[0].future.result().ids
    generator.close()


def test_a_prompt_that_fills_the_context_is_refused(generator: CastGenerator) -> None:
    with pytest.raises(ContextLengthError, match="2048"):
        generator.submit(greedy(generator, "a" * 2048, ADA))


def test_a_prompt_that_fills_the_memory_for_keys_is_refused(cast: Cast, tiny_base: Path) -> None:
    generator = generator_of(cast, tiny_base, kv_bytes=100 * 2 * 2 * 2 * 16 * 4)
    assert generator.context == 100  # layers, keys and values, heads, width, bytes of a float
    with pytest.raises(ContextLengthError, match="100"):
        generator.submit(greedy(generator, "a" * 100, ADA))
    asked = greedy(generator, "a" * 40, ADA, max_tokens=200)
    found = generator.run([asked])[0]
    assert len(asked.prompt.ids) + found.tokens_out <= 100
    generator.close()


def test_a_full_context_ends_a_reply(generator: CastGenerator) -> None:
    found = generator.run([greedy(generator, "a" * 2040, ADA, max_tokens=100)])[0]
    assert (found.finish, found.tokens_out) == ("length", 8)


def test_an_unknown_character_is_refused_before_anything_is_computed(
    generator: CastGenerator,
) -> None:
    with pytest.raises(UsageError, match="no 'Nobody'"):
        generator.submit(Wanted(prompt_of(generator, "a", ADA), "Nobody"))


def test_a_model_that_fails_fails_those_who_wait_and_serves_the_next(
    generator: CastGenerator,
) -> None:
    def burst(*_a: Any, **_k: Any) -> None:
        raise RuntimeError("out of memory")

    hook = generator.base.model.register_forward_pre_hook(burst)
    with pytest.raises(ServerError, match="out of memory"):
        generator.run([greedy(generator, TEXTS[0], ADA)])
    hook.remove()
    assert generator.run([greedy(generator, TEXTS[0], ADA)])[0].ids


def test_closing_fails_what_is_under_way_and_ends_the_thread(cast: Cast, tiny_base: Path) -> None:
    generator = generator_of(cast, tiny_base)
    before = set(threading.enumerate())
    speech = generator.submit(greedy(generator, TEXTS[0], ADA, max_tokens=1900))
    (started,) = set(threading.enumerate()) - before
    generator.close()
    assert not started.is_alive()
    with pytest.raises(ServerError, match="closed"):
        speech.future.result()
    with pytest.raises(ServerError, match="closed"):
        generator.submit(greedy(generator, TEXTS[0], ADA))


def test_what_two_prompts_share_is_computed_once(generator: CastGenerator) -> None:
    first = greedy(generator, TEXTS[4], ADA)
    again = greedy(generator, TEXTS[4] + " Go on.", ADA)
    other = greedy(generator, TEXTS[4] + " Go on.", WU)
    generator.run([first])
    same, strange = generator.run([again])[0], generator.run([other])[0]
    assert same.cached == len(first.prompt.ids)
    assert strange.cached == 0  # other blocks, other keys and values
    assert list(same.ids) == by_hand(generator, again)
    assert list(strange.ids) == by_hand(generator, other)


def test_kept_keys_and_values_stay_within_their_bytes(cast: Cast, tiny_base: Path) -> None:
    generator = generator_of(cast, tiny_base, kept_bytes=200_000)
    token = generator._token_bytes
    generator.run([greedy(generator, f"{n}" * 60, ADA) for n in range(9)])
    kept = list(generator._kept._entries)
    assert 0 < sum(len(t) for t, _, _ in kept) * token <= 200_000
    assert all(size == len(t) * token for t, _, size in kept)
    generator.close()


def test_a_character_learnt_while_others_speak_speaks_through_its_blocks(
    generator: CastGenerator,
) -> None:
    under_way = generator.submit(greedy(generator, TEXTS[0], ADA, max_tokens=60))
    generator.learn("Both", {"shared": 1.0, ADA: 0.5, WU: 0.5})
    new = generator.run([greedy(generator, TEXTS[0], "Both")])[0]
    old = under_way.future.result()
    weights = generator.stack.weights([{"shared": 1.0, ADA: 0.5, WU: 0.5}])
    with torch.no_grad(), generator.stack.speaking(weights):
        ids = torch.tensor([prompt_of(generator, TEXTS[0], ADA).ids])
        first = int(generator.base.model(ids).logits[0, -1].argmax())
    assert new.ids[0] == first
    assert old.ids[:24] == tuple(by_hand(generator, greedy(generator, TEXTS[0], ADA)))


def test_a_character_that_was_added_on_disk_joins_while_others_speak(
    cast: Cast, tiny_base: Path, tmp_path: Path
) -> None:
    new = {name: t[1] * 0.7 for name, t in cast.tensors.items()}
    grown = write_cast(
        tmp_path / "grown",
        base=cast.manifest.base,
        rank=4,
        alpha=8.0,
        blocks=[*cast.manifest.blocks, Block(name="Lin Chong")],
        characters=[
            *cast.manifest.characters,
            CastCharacter(name="Lin Chong", how="expand", weights={"shared": 1, "Lin Chong": 1}),
        ],
        tensors=with_slot(cast.tensors, new),
    )
    running, fresh = generator_of(cast, tiny_base), generator_of(grown, tiny_base)
    try:
        alone = running.run([greedy(running, TEXTS[0], ADA, max_tokens=60)])[0]
        running.forget()
        under_way = running.submit(greedy(running, TEXTS[0], ADA, max_tokens=60))
        assert running.add(grown, "Lin Chong").result() == ("Lin Chong",)
        wanted = [greedy(running, text, "Lin Chong") for text in TEXTS]
        assert [r.ids for r in running.run(wanted)] == [r.ids for r in fresh.run(wanted)]
        assert under_way.future.result().ids == alone.ids
        with pytest.raises(UsageError, match="already"):
            running.add(grown, "Lin Chong").result()
    finally:
        running.close()
        fresh.close()


def other_model(kind: str, vocabulary: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": vocabulary, "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 3, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    more: dict[str, dict[str, Any]] = {
        "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256},
        "mistral": {"intermediate_size": 128, "num_key_value_heads": 2, "sliding_window": 8},
        "gemma2": {
            "intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
        },
        "bloom": {},
        "mamba": {},
    }  # fmt: skip
    torch.manual_seed(3)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **more[kind]}))
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # random weights as they begin say the same to everything
    return made


@pytest.mark.parametrize("kind", ["gpt2", "mistral", "gemma2", "bloom"])
def test_learnt_positions_sliding_windows_and_alibi_survive_the_padding(
    kind: str, cast: Cast, tiny_base: Path
) -> None:
    base = loaded(tiny_base)
    base.model = other_model(kind, len(base.tokenizer))
    stack = StackedLoRA(base.model, [block.name for block in cast.manifest.blocks], rank=4)
    for layer in stack.layers.values():
        torch.nn.init.normal_(layer.b, std=0.3)
    generator = CastGenerator(base, stack, cast, rows=3)
    wanted = []
    for n, text in enumerate(TEXTS):
        prompt = prompt_of(generator, text, NAMES[n % 2])
        mixed = tuple(who if at % 5 else None for at, who in enumerate(prompt.speakers))
        wanted.append(
            Wanted(Prompt(prompt.ids, mixed), NAMES[n % 2], max_tokens=4 + 3 * n, temperature=0.0)
        )
    found = generator.run(wanted)
    generator.close()
    for one, reply in zip(wanted, found, strict=True):
        out: list[int] = []
        while len(out) < one.max_tokens:
            voices = [*one.prompt.speakers, *[one.character] * len(out)]
            rows = [cast.character(v).weights if v else {} for v in voices]
            with torch.no_grad(), stack.speaking(stack.weights(rows)[None]):
                ids = torch.tensor([[*one.prompt.ids, *out]])
                token = int(base.model(ids, use_cache=False).logits[0, -1].argmax())
            if token == base.tokenizer.eos_token_id:
                break
            out.append(token)
        assert tuple(out) == reply.ids


def test_a_model_with_a_recurrent_state_is_refused(cast: Cast, tiny_base: Path) -> None:
    base = loaded(tiny_base)
    base.model = other_model("mamba", len(base.tokenizer))
    stack = StackedLoRA(base.model, [block.name for block in cast.manifest.blocks], rank=4)
    with pytest.raises(UsageError, match="state for the whole text"):
        CastGenerator(base, stack, cast)


def test_a_long_prompt_is_read_in_parts_between_the_steps_of_those_who_speak(
    cast: Cast, tiny_base: Path
) -> None:
    generator = generator_of(cast, tiny_base, prefill_tokens=64)
    long = greedy(generator, "Tell me more of the engine. " * 40, WU, max_tokens=8)
    short = greedy(generator, TEXTS[0], ADA, max_tokens=60)
    alone = [generator.run([one])[0].ids for one in (short, long)]
    generator.forget()
    passes: list[tuple[int, ...]] = []
    hook = generator.base.model.register_forward_pre_hook(
        lambda _m, _a, k: passes.append(tuple(k["input_ids"].shape)), with_kwargs=True
    )
    found = generator.run([short, long])
    hook.remove()
    assert [one.ids for one in found] == alone
    parts = [n for n, (_, tokens) in enumerate(passes) if tokens > 1][1:]
    assert len(parts) == -(-len(long.prompt.ids) // 64)
    assert all(later - earlier == 2 for earlier, later in itertools.pairwise(parts))
    assert all(tokens <= 64 for _, tokens in passes)
    generator.close()


def test_a_long_prompt_that_nobody_waits_for_is_not_read_to_its_end(
    cast: Cast, tiny_base: Path
) -> None:
    generator = generator_of(cast, tiny_base, prefill_tokens=16)
    speech = generator.submit(greedy(generator, "Tell me more of the engine. " * 60, WU))
    passes: list[int] = []

    def count(_module: Any, _args: Any, _kwargs: Any) -> None:
        passes.append(1)
        if len(passes) == 3:
            speech.cancel()

    hook = generator.base.model.register_forward_pre_hook(count, with_kwargs=True)
    generator.between_steps(lambda: None).result()
    while generator.busy:
        generator.between_steps(lambda: None).result()
    hook.remove()
    assert len(passes) <= 4
    assert generator.counts.cancelled == 1
    generator.close()


def test_a_generator_counts_what_it_does(cast: Cast, tiny_base: Path) -> None:
    generator = generator_of(cast, tiny_base)
    wanted = greedy(generator, TEXTS[1], ADA, max_tokens=5)
    generator.run([wanted])
    generator.run([wanted])
    asked = len(wanted.prompt.ids)
    counts = generator.counts
    assert (counts.finished, counts.drawn, counts.failed, counts.cancelled) == (2, 10, 0, 0)
    assert (counts.read, counts.cached) == (asked + 1, asked - 1)
    assert counts.passes == 2 * 5
    generator.close()
