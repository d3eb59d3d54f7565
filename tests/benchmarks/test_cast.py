"""The rivals of a cast do what they are said to do, and the benchmarks notice what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.loading import load

# peft's own call
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


rivals = load("cast_rivals")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["tiny", "tiny-llama"])
def model(request: pytest.FixtureRequest) -> Any:
    return rivals.model_of(rivals.SHAPES[request.param], dtype=torch.float32)


def stacked(model: Any) -> tuple[Any, Any]:
    """A twin of the model under blocks that do something, and the stack."""
    own = rivals.twin(model)
    stack = rivals.StackedLoRA(own, rivals.NAMES, rank=rivals.RANK, alpha=rivals.ALPHA)
    rivals.fill(stack, size=0.3)
    return own, stack


def prompts(model: Any, tokens: int = 9) -> Any:
    draw = torch.Generator().manual_seed(2)
    return torch.randint(model.config.vocab_size, (len(rivals.NAMES), tokens), generator=draw)


def test_a_twin_bears_blocks_of_its_own_over_the_same_weights(model: Any):
    own, stack = stacked(model)
    weight = stack.layers["model.layers.0.self_attn.q_proj"].base.weight
    assert weight.data_ptr() == model.model.layers[0].self_attn.q_proj.weight.data_ptr()
    assert not any("base" in name.split(".") for name, _ in model.named_modules())
    assert own.lm_head.weight is own.model.embed_tokens.weight  # tied, as it was


def test_all_contenders_bear_the_same_blocks(model: Any):
    own, stack = stacked(model)
    ids, state = prompts(model), stack.state()
    with torch.no_grad(), stack.speaking(stack.weights([{n: 1.0} for n in rivals.NAMES])):
        ours = own(ids).logits
    plain = model(ids).logits
    peft = rivals.as_peft(rivals.twin(model), state, rivals.NAMES)
    by_name = peft(ids, adapter_names=list(rivals.NAMES)).logits
    torch.testing.assert_close(by_name, ours, rtol=1e-4, atol=1e-4)
    for n in (0, 5):
        alone = rivals.merged(model, state, n)(ids[n : n + 1]).logits[0]
        torch.testing.assert_close(alone, ours[n], rtol=1e-4, atol=1e-4)
        assert (alone - plain[n]).abs().max() > 0.1
    assert torch.equal(model(ids).logits, plain)  # none of them touched the base


def test_the_dense_gate_runs_all_blocks_by_its_softmax(model: Any):
    state, name = stacked(model)[1].state(), "model.layers.1.mlp.down_proj"
    roles = torch.randn(2, rivals.DenseGate.EMBEDDING, generator=torch.Generator().manual_seed(1))
    gated, _ = rivals.as_dense_gate(rivals.twin(model), state, roles)
    layer = gated.get_submodule(name)
    x = torch.randn(2, 3, layer.base.in_features, generator=torch.Generator().manual_seed(0))
    want = layer.base(x)
    for row in range(2):
        shares = torch.softmax(layer.gate @ roles[row], 0)
        assert shares.max() < 0.9  # no row has a block to itself
        for k, share in enumerate(shares):
            a, b = (torch.from_numpy(state[f"{kind}.{name}"][k]) for kind in "AB")
            want[row] += rivals.ALPHA / rivals.RANK * share * (x[row] @ a.T @ b.T)
    torch.testing.assert_close(layer(x), want, rtol=1e-4, atol=1e-4)


def test_a_cache_of_fixed_size_and_the_product_say_what_peft_says_one_by_one(model: Any):
    own, stack = stacked(model)
    ids, new = prompts(model), 6
    peft = rivals.as_peft(rivals.twin(model), stack.state(), rivals.NAMES)
    alone = rivals.one_by_one(peft, ids, new, rivals.NAMES)
    with stack.speaking(stack.weights([{n: 1.0} for n in rivals.NAMES])):
        assert torch.equal(rivals.greedy(own, ids, new), alone)
        fixed = rivals.Decoder(own, len(ids), ids.shape[1] + new, graph=False)
        for _ in range(2):  # a second time over the same cache
            assert torch.equal(fixed(ids, new), alone)
    assert not torch.equal(rivals.greedy(model, ids, new), alone)
    switch = load("cast_switch")
    generator = rivals.generator_of(own, stack, {n: {n: 1.0} for n in rivals.NAMES})
    try:
        for row, name in enumerate(rivals.NAMES):
            whose = [name] * ids.shape[1]
            token = switch.first_token(generator, ids[row].tolist(), whose, name)
            assert token == int(alone[row, 0])
        found, wrong = switch.measure(generator, 1024, model.config.vocab_size, 2)
    finally:
        generator.close()
    assert wrong == 0
    assert set(found) == {switch.SPEAKER, switch.FULL, switch.KEPT}


def test_one_by_one_trains_the_character_under_way_alone(model: Any):
    rows = [rivals.row_of(length, 0.5, "role0", 300, 0) for length in (7, 12)]
    peft = rivals.as_peft(rivals.twin(model), None, rivals.NAMES)
    before = {n: p.detach().clone() for n, p in peft.named_parameters()}
    trainer = rivals.Sequential(peft, rivals.NAMES[:1])
    trainer.all_roles({"role0": [rivals.padded(rows, "cpu")]})
    changed = {n for n, p in peft.named_parameters() if not torch.equal(p, before[n])}
    assert changed
    assert all(".lora_B.role0." in name for name in changed)  # A waits for a B that is not 0


def test_rows_are_padded_at_the_end_and_learn_nothing_there():
    rows = [rivals.row_of(length, 0.5, "role0", 300, 0) for length in (5, 9)]
    ids, mask, labels = rivals.padded(rows, "cpu")
    assert rivals.paid([(ids, mask, labels)]) == (14, 18)
    assert labels[0, 5:].eq(-100).all()
    assert (labels[1] != -100).tolist() == list(rows[1].supervised)
    assert ids[1].tolist() == list(rows[1].ids)


def test_lengths_drawn_without_the_data_are_spread_as_those_of_the_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PERSONAE_DATA", str(tmp_path))
    lengths, source = rivals.neeko_lengths(4000, seed=1)
    assert "quantiles" in source
    assert min(lengths) >= 20
    assert max(lengths) <= 1255
    several = [n for n in lengths if n > 525]
    assert len(several) / len(lengths) == pytest.approx(300 / 855, abs=0.03)
    assert sum(several) / len(several) == pytest.approx(870, abs=15)  # measured on the data


def test_the_trainer_is_timed_by_the_step_without_the_first(model: Any):
    own, stack = stacked(model)
    rows = {n: [rivals.row_of(8 + k, 0.5, n, 300, k) for k in range(2)] for n in rivals.NAMES}
    before = stack.state()
    laps = rivals.jointly(own, stack, rows, batch_rows=2, steps=3, micro_tokens=64)
    assert len(laps) == 2
    assert all(lap.wall > 0 for lap in laps)
    after = stack.state()
    for name, value in after.items():  # every character was trained
        assert all((value[n] != before[name][n]).any() for n in range(len(rivals.NAMES)))


def test_the_gpu_script_checks_itself_and_writes_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script, out = load("gpu_cast"), tmp_path / "gpu.json"
    monkeypatch.setattr(
        sys,
        "argv",
        ["gpu_cast.py", "--device", "cpu", "--tiny", "--only", "checks", "--out", str(out)],
    )
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 0
    found = json.loads(out.read_text())
    checks = [row for row in found["rows"] if "check" in row]
    assert len(checks) >= 8
    assert all(row["ok"] for row in checks)
    assert "mixed greedy tokens against set_adapter" in capsys.readouterr().out


def test_a_check_that_fails_fails_the_gpu_script():
    report = load("gpu_cast").Report(1.0)
    report.check("near", 1e-6, 1e-5)
    report.check("far", 1e-4, 1e-5)
    report.check("nowhere", float("nan"), 1e-5)
    assert report.failed == ["far", "nowhere"]


def test_the_decoders_are_compared_before_they_are_timed(capsys: pytest.CaptureFixture[str]):
    decode = load("cast_decode")
    decode.main(["--shape", "tiny-llama", "--prompt", "12", "--new", "4", "--rounds", "1"])
    out = capsys.readouterr().out
    assert "tokens as PEFT with set_adapter: 1.0000" in out
    assert "ours against the base without LoRA" in out


def test_decoding_that_says_something_else_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch):
    decode = load("cast_decode")
    real = decode.one_by_one
    monkeypatch.setattr(decode, "one_by_one", lambda *a: real(*a) + 1)
    with pytest.raises(SystemExit, match="does not say"):
        decode.main(
            ["--shape", "tiny-llama", "--prompt", "12", "--new", "4", "--dtypes", "float32"]
        )
