"""Which rows a step takes: known ahead, even, and nobody's business but the character's own."""

from dataclasses import replace
from itertools import chain

import pytest

from personae.cast.encode import Encoded
from personae.cast.plan import Stage, TrainPlan, one_per_character
from personae.errors import UsageError

PLAN = TrainPlan(epochs=2, batch_rows=4, seed=5)


def _row(*speakers: str, tokens: int = 6) -> Encoded:
    whose = tuple(speakers[t % len(speakers)] for t in range(tokens))
    one = speakers[0] if len(speakers) == 1 else None
    return Encoded((3,) * tokens, (True,) * tokens, whose, one, "a.jsonl:1")


def _draws(rows: dict[str, list[Encoded]], plan: TrainPlan, stage: Stage) -> list[list[int]]:
    from personae.cast.batches import rows_of
    from personae.cast.order import draws_of

    return [list(draw.rows) for draw in draws_of(rows_of(rows, plan, [stage]), stage, plan)]


def test_an_epoch_is_cut_into_even_steps_and_sees_each_row_once() -> None:
    (stage,) = one_per_character(("anna",), 1e-3)
    draws = _draws({"anna": [_row("anna") for _ in range(9)]}, PLAN, stage)
    assert [len(draw) for draw in draws] == [3, 3, 3, 3, 3, 3]
    first, second = list(chain(*draws[:3])), list(chain(*draws[3:]))
    assert sorted(first) == sorted(second) == list(range(9))
    assert first != second


def test_the_order_of_ones_rows_does_not_depend_on_the_company() -> None:
    anna = [_row("anna") for _ in range(5)]
    others = {f"other {n}": [_row(f"other {n}") for _ in range(3 + n)] for n in range(4)}
    (alone,) = one_per_character(("anna",), 1e-3)
    (together,) = one_per_character((*others, "anna"), 1e-3)
    before = sum(len(rows) for rows in others.values())
    crowd = _draws({**others, "anna": anna}, PLAN, together)
    own = [[n - before for n in draw if n >= before] for draw in crowd]
    assert [draw for draw in own if draw] == _draws({"anna": anna}, PLAN, alone)


def test_a_fraction_of_an_epoch_is_cut_where_it_ends() -> None:
    (stage,) = one_per_character(("anna",), 1e-3)
    rows = {"anna": [_row("anna") for _ in range(8)]}
    half = _draws(rows, replace(PLAN, epochs=0.75), stage)
    assert [len(draw) for draw in half] == [4, 2]
    assert len(set(chain(*half))) == 6
    third = Stage("part", stage.weights, stage.trains, 1e-3, share=0.25)
    assert sum(map(len, _draws(rows, replace(PLAN, epochs=2), third))) == 4


def test_a_budget_of_tokens_counts_each_ones_own() -> None:
    (stage,) = one_per_character(("anna", "bo"), 1e-3)
    rows = {"anna": [_row("anna") for _ in range(3)], "bo": [_row("bo", tokens=21)] * 1}
    draws = _draws(rows, replace(PLAN, tokens_per_role=40, batch_rows=2), stage)
    # of 6 tokens 5 can be predicted, of 21 there are 20
    assert sum(n < 3 for draw in draws for n in draw) * 5 >= 40
    assert sum(n == 3 for draw in draws for n in draw) == 2


def test_a_scene_that_one_takes_is_not_taken_again_by_another() -> None:
    (stage,) = one_per_character(("anna", "bo"), 1e-3)
    scenes = [_row("anna", "bo") for _ in range(6)]
    solo = [_row("bo") for _ in range(2)]
    rows = {"anna": scenes, "bo": [*scenes, *solo]}
    plan = replace(PLAN, mode="speaker", epochs=1, batch_rows=2)
    solo_rows = [replace(row, character=None) for row in solo]
    draws = _draws({**rows, "bo": [*scenes, *solo_rows]}, plan, stage)
    seen = list(chain(*draws))
    assert sorted(seen) == list(range(8))


def test_a_rate_climbs_and_then_stays_or_falls() -> None:
    from personae.cast.order import rate

    warm = replace(PLAN, warmup=0.2)
    assert [rate(1.0, n, 10, warm) for n in range(4)] == [0.5, 1.0, 1.0, 1.0]
    cosine = replace(warm, schedule="cosine")
    falling = [rate(1.0, n, 10, cosine) for n in range(2, 10)]
    assert falling[0] == 1.0
    assert falling == sorted(falling, reverse=True)
    assert falling[4] == pytest.approx(0.5)
    assert 0 < falling[-1] < 0.05
    assert rate(1.0, 0, 10, replace(PLAN, warmup=0)) == 1.0


def test_watched_rows_are_a_share_of_each_ones_rows_and_one_is_always_left() -> None:
    from personae.cast.batches import rows_of
    from personae.cast.order import apart

    (stage,) = one_per_character(("anna", "bo"), 1e-3)
    rows = {"anna": [_row("anna") for _ in range(10)], "bo": [_row("bo") for _ in range(2)]}
    plan = replace(PLAN, development=0.3)
    learning, watched = apart(rows_of(rows, plan, [stage]), plan)
    assert [sum(name in row.tokens for row in watched) for name in ("anna", "bo")] == [3, 1]
    assert len(learning) == 12 - 4
    assert not {id(row) for row in learning} & {id(row) for row in watched}
    assert apart(learning, PLAN) == (learning, [])
    with pytest.raises(UsageError, match="'bo' has one row"):
        apart(rows_of({**rows, "bo": rows["bo"][:1]}, plan, [stage]), plan)
