"""The quality experiment: what it holds out, what it runs, what its intervals are, and a small run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.errors import InputError
from personae.judging.statistics import cluster_bootstrap, crossed_bootstrap
from personae.records.cast import CastRow, CastTurn
from tests.benchmarks.loading import load
from tests.cast.conftest import write_tiny_model

statistics, plan, data = load("quality_statistics"), load("quality_plan"), load("quality_data")
tables, quality = load("quality_tables"), load("cast_quality")

SAID = {
    "Ada": ("I count the cards twice, {n} of them.", "Numbers are my company at {n} o'clock."),
    "Alice": ("Curiouser and curiouser, said I, {n} times.", "The cat had {n} grins, I am sure."),
    "Sun": ("I leapt over {n} clouds before breakfast.", "My staff weighs {n} thousand pounds."),
}


@pytest.fixture(scope="module")
def neeko(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three characters in the shapes of the published files."""
    folder = tmp_path_factory.mktemp("neeko")
    for sub in (data.DIALOGUES, data.ANSWERS, data.PROFILES):
        (folder / sub).mkdir(parents=True)
    for name, said in SAID.items():
        dialogues = [dialogue(name, [said[t].format(n=n) for t in range(2)]) for n in range(5)]
        text = "".join(json.dumps(one) + "\n" for one in dialogues)
        (folder / data.DIALOGUES / f"{name}_multi.jsonl").write_text(text)
        answers = [single(name, f"What of {n}?", said[0].format(n=n)) for n in (7, 8, 9)]
        (folder / data.ANSWERS / f"{name}_single.json").write_text(json.dumps(answers))
        (folder / data.PROFILES / f"wiki_{name}.txt").write_text(
            f"# {name} Everyone\n\n{name} likes cards, clouds and cats. {said[0]}\n"
        )
    return folder


def dialogue(name: str, said: list[str]) -> dict[str, Any]:
    content = []
    for turn, text in enumerate(said):
        for role, who, words in (
            ("interviewer", "Man", f"And what of it, part {turn}?"),
            ("character", name, text),
        ):
            content.append(
                {
                    "turn_id": turn,
                    "turn_role": role,
                    "turn_content": [{"role": who, "action": "(speaking)", "content": words}],
                }
            )
    return {"character": name, "topic": "all", "qid": 0, "finished": True, "content": content}


def single(name: str, question: str, answer: str) -> dict[str, Any]:
    reply = {"role": name, "action": "(speaking)", "content": answer}
    return {"topic_id": "topic-1", "question": question, "reply": reply}


def row(question: str, answer: str) -> CastRow:
    turns = (CastTurn(text=question), CastTurn(speaker="Ada", text=answer))
    return CastRow(characters=("Ada",), turns=turns, source="test")


# What is held out.


def test_an_answer_that_shares_thirteen_words_with_a_dialogue_is_refused():
    said = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    pooled = data.runs(data.words(said), 13)
    twelve = " ".join(said.split()[:12])
    assert data.unfit(row("Why?", f"Well, {said.title()}!"), pooled, set(), ()) is not None
    assert data.unfit(row("Why?", f"{twelve} but no more"), pooled, set(), ()) is None


def test_an_answer_to_a_known_question_one_given_twice_and_a_repeated_prompt_are_refused():
    fit = row("Who are you?", "Ada.")
    assert data.unfit(fit, set(), set(), set()) is None
    assert data.unfit(fit, set(), {"who are you"}, set()) == "the question is in a dialogue"
    assert data.unfit(fit, set(), set(), {"who are you"}) == "answered twice"
    prompt = row("Who?", "<s> I want you to act like Ada. I am Ada.")
    assert data.unfit(prompt, set(), set(), set()) == "the answer repeats its prompt"


def test_no_dialogue_is_both_trained_and_tuned_on_and_refusals_are_counted(neeko: Path):
    answers = neeko / data.ANSWERS / "Ada_single.json"
    whole = answers.read_text()
    try:
        more = [*json.loads(whole), single("Ada", "What of 7?", "It is seven again.")]
        answers.write_text(json.dumps(more))
        roles = data.load(neeko, development=2)
    finally:
        answers.write_text(whole)
    for role in roles.values():
        said = [{t.text for t in one.turns if t.speaker == role.name} for one in role.train]
        tuned = [{t.text for t in one.turns if t.speaker == role.name} for one in role.development]
        assert (len(said), len(tuned), len(role.held)) == (3, 2, 3)
        assert not any(a & b for a in said for b in tuned)
        assert all(one.characters == (role.name,) for one in role.held)
    assert roles["Ada Everyone"].refused == {"answered twice": 1}
    assert roles["Sun Everyone"].refused == {}


def test_a_role_with_too_few_dialogues_is_an_error(neeko: Path):
    with pytest.raises(InputError, match="none is left"):
        data.load(neeko, development=5)


# Which jobs there are.


def walk(
    loss: Any, p: Any, roles: tuple[str, ...] = ("a", "b")
) -> tuple[dict[str, Any], list[Any]]:
    """Do jobs until nothing is wanted; a training's loss is a function of its job."""
    done: dict[str, Any] = {}
    order = []
    while jobs := plan.next_jobs(done, roles, p):
        job = jobs[0]
        order.append(job)
        done[job.key] = {"development": loss(job)} | (
            {"rates": {f"{r:g}": abs(r - p.new_rates[1]) for r in p.new_rates}}
            if job.part == "leave-one-out" and job.purpose == "tune"
            else {}
        )
    return done, order


def test_a_search_goes_on_past_the_edge_where_the_best_rate_lies_on_it():
    p = replace(plan.Protocol(), rates=(2e-4, 4e-4), edges=3)
    done, order = walk(lambda job: abs(np.log(job.settings.get("lr", 1) / 1.6e-3)), p)
    found = plan.search(plan.ISOLATED, done, p)
    assert found.best == {"lr": 1.6e-3}
    assert (found.trials, found.edge) == (5, False)
    tried = [j.settings["lr"] for j in order if (j.method, j.purpose) == (plan.ISOLATED, "tune")]
    assert tried == [2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3]


def test_a_rate_that_diverged_is_never_chosen_and_a_method_that_only_diverges_has_no_final_run():
    p = plan.Protocol()

    def loss(job: Any) -> float | None:
        if job.method == plan.TOGETHER:
            return None
        rate = job.settings.get("lr", job.settings.get("shared_lr", 0))
        return None if rate > 1.5e-3 else 1 - rate

    done, order = walk(loss, p)
    assert plan.search(plan.SHARED_TOTAL, done, p).best == {"lr": 1e-3}
    assert plan.search(plan.TOGETHER, done, p).best is None
    assert not [j for j in order if (j.method, j.purpose) == (plan.TOGETHER, "final")]


def test_no_tuning_seed_is_a_final_one_and_only_final_jobs_come_once_the_search_is_over():
    p = plan.Protocol()
    done, order = walk(lambda job: 1.0 + job.settings.get("share", 0) + job.seed, p)
    for method in plan.METHODS:
        runs = [j for j in order if (j.part, j.method) == ("main", method)]
        finals = [j for j in runs if j.purpose == "final"]
        assert {j.seed for j in runs if j.purpose == "tune"} <= {plan.TUNING_SEED}
        assert [j.seed for j in finals] == ([0] if method == plan.BASE else [0, 1, 2])
        assert len({json.dumps(dict(j.settings)) for j in finals}) == 1
    # 0.25 of the budget for the shared block had the least loss
    assert plan.search(plan.OWN, done, p).best["share"] == 0.25
    new = [j for j in order if (j.method, j.purpose) == (plan.NEW, "final")]
    assert {(j.out, j.seed) for j in new} == {(r, s) for r in "ab" for s in (0, 1, 2)}
    assert all(j.settings["new_lr"] == p.new_rates[1] for j in new)
    assert plan.next_jobs(done, ("a", "b"), p) == []


# What the intervals are.


def held(seed: int, roles: int = 4, answers: int = 30, seeds: int = 3, shift: float = 0.0) -> Any:
    """Answers whose difficulty all methods share (stream 1) and their own noise."""
    shared, own = np.random.default_rng(1), np.random.default_rng(seed)
    nats, tokens = {}, {}
    for r in range(roles):
        count = shared.integers(5, 60, answers).astype(float)
        hard = shared.normal(2, 0.5, answers)
        noise = own.normal(0, 0.05, (seeds, answers))
        nats[f"r{r}"] = (hard + shift + noise) * count
        tokens[f"r{r}"] = count
    return statistics.Held(nats, tokens)


def test_a_figure_is_the_mean_over_roles_of_nats_over_tokens():
    one = statistics.Held(
        {"a": np.array([[2.0, 4.0], [4.0, 4.0]]), "b": np.array([[3.0], [3.0]])},
        {"a": np.array([1.0, 3.0]), "b": np.array([1.0])},
    )
    assert one.of("a") == pytest.approx((6 / 4 + 8 / 4) / 2)
    assert one.mean() == pytest.approx((1.75 + 3) / 2)


def test_answers_alone_is_the_bootstrap_of_a_mean_where_all_answers_are_of_one_length():
    rng = np.random.default_rng(3)
    a, b = rng.normal(2, 1, 80), rng.normal(2.3, 1, 80)
    ones = {"r": np.ones(80)}
    ours, other = (statistics.Held({"r": x[None]}, ones) for x in (a, b))
    found = statistics.difference(ours, other, "answers")
    expected = cluster_bootstrap((b - a).tolist(), seed=5)
    assert found.value == pytest.approx(expected.value)
    assert found.low == pytest.approx(expected.low, abs=0.02)
    assert found.high == pytest.approx(expected.high, abs=0.02)


def test_over_roles_and_seeds_is_the_crossed_bootstrap_where_each_role_has_one_answer():
    rng = np.random.default_rng(4)
    ours, other = rng.normal(2, 1, (3, 12)), rng.normal(2.5, 1, (3, 12))
    one = {f"r{n}": np.ones(1) for n in range(12)}
    methods = (
        statistics.Held({r: x[:, [n]] for n, r in enumerate(one)}, one) for x in (ours, other)
    )
    found = statistics.difference(*methods)
    expected = crossed_bootstrap((other - ours).tolist(), seed=5)
    assert found.value == pytest.approx(expected.value)
    assert found.low == pytest.approx(expected.low, abs=0.04)
    assert found.high == pytest.approx(expected.high, abs=0.04)


def test_what_all_answers_share_does_not_widen_a_paired_difference():
    ours, other = held(2), held(3, shift=0.1)
    found = statistics.difference(ours, other)
    assert found.low < 0.1 < found.high
    assert found.high - found.low < 0.05  # the answers' own spread is ten times that
    assert found.excludes_zero
    assert not statistics.difference(ours, held(4)).excludes_zero


def test_an_effect_in_one_role_alone_is_not_one_over_roles():
    ours, other = held(2), held(3)
    nats = dict(other.nats)
    nats["r0"] = nats["r0"] + 0.4 * other.tokens["r0"]
    one = statistics.Held(nats, other.tokens)
    assert statistics.difference(ours, one, "answers").excludes_zero
    assert not statistics.difference(ours, one).excludes_zero


def test_seeds_that_disagree_widen_the_interval():
    ours, other = held(2), held(3, shift=0.1)
    torn = {r: n + np.array([[-0.3], [0], [0.3]]) * other.tokens[r] for r, n in other.nats.items()}
    wide = statistics.difference(ours, statistics.Held(torn, other.tokens))
    assert wide.value == pytest.approx(statistics.difference(ours, other).value)
    assert not wide.excludes_zero


def test_the_way_closed_is_a_half_where_ours_lies_halfway():
    base, goal = held(2, shift=0.4), held(2)
    middle = statistics.Held({r: (base.nats[r] + goal.nats[r]) / 2 for r in base.nats}, base.tokens)
    found = statistics.closed(base, middle, goal)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_methods_that_were_scored_on_other_answers_are_not_compared():
    with pytest.raises(ValueError, match="same answers"):
        statistics.difference(held(2), held(2, answers=29))


# The whole, small.


@pytest.fixture(scope="module")
def smoke(neeko: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    load("quality_runs")
    folder = tmp_path_factory.mktemp("quality")
    base = write_tiny_model(folder / "base")
    options = ["--base", str(base), "--data", str(neeko), "--device", "cpu", "--smoke"]
    options += ["--seeds", "0", "1"]
    out = folder / "results.jsonl"
    assert quality.main([*options, "--out", str(out)]) == 0
    return out, options


def test_a_small_run_goes_all_the_way_and_its_tables_tell_of_every_method(
    smoke: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
):
    out, _ = smoke
    assert quality.main(["--report", str(out)]) == 0
    told = capsys.readouterr().out
    for name in (*plan.METHODS, *tables.CONDITIONS):
        assert f"| {name} |" in told
    done = quality.read_results([out])
    budget = quality.SMOKE.tokens
    for result in done.values():
        job = result["job"]
        if job["part"] == "main" and job["method"] != plan.BASE:
            assert result["development"] is not None
            first = job["settings"]["share"] if job["method"] == plan.FIRST else 1
            seen = sum(result["tokens"].values()) / (
                2 if job["method"] == plan.TOGETHER else 1  # its tokens teach two blocks
            )
            longest = 3 * 60  # a last dialogue may reach past the budget, once a stage and role
            assert 3 * budget * first <= seen <= 3 * budget * first + 2 * longest
        if job["method"] == plan.NEW and job["purpose"] == "final":
            assert result["old_unchanged"]
            assert sum(result["tuned"].values()) == pytest.approx(1)
            assert result["held"]["expansion"] != result["held"]["fusion"]


def test_what_is_done_is_not_run_again(
    smoke: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
):
    out, options = smoke
    before = out.read_text()
    assert quality.main([*options, "--out", str(out)]) == 0
    assert out.read_text() == before


def test_results_of_another_protocol_are_refused(smoke: tuple[Path, list[str]]):
    out, options = smoke
    with pytest.raises(InputError, match="another protocol"):
        quality.main([*options, "--rank", "3", "--out", str(out)])


def test_equal_size_is_equal_in_parameters(smoke: tuple[Path, list[str]]):
    runs = sys.modules["quality_runs"]
    ranks = {m: runs.rank_of(m, 8, 6) for m in plan.METHODS}
    assert ranks[plan.SHARED_TOTAL] == ranks[plan.OWN] * (6 + 1)
    assert ranks[plan.SHARED_ACTIVE] == 2 * ranks[plan.OWN] == ranks[plan.ISOLATED_ACTIVE]
