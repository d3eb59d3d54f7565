"""From rows to batches: little padding, and each token under the blocks it belongs to."""

from pathlib import Path
from typing import Any

from personae.cast.encode import Encoded
from personae.cast.plan import Stage, TrainPlan

STAGE = Stage(
    "own", {"anna": {"shared": 1.0, "anna": 1.0}, "bo": {"bo": 0.5}}, ("anna", "bo"), 1e-3
)


def _row(name: str, tokens: int) -> Encoded:
    marks = (False,) * 2 + (True,) * (tokens - 2)
    return Encoded(tuple(range(10, 10 + tokens)), marks, (name,) * tokens, name, "a.jsonl:1")


def _rows(*given: Encoded, mode: Any = "full") -> list[Any]:
    from personae.cast.batches import rows_of

    by_name: dict[str, list[Encoded]] = {"anna": [], "bo": []}
    for row in given:
        for name in dict.fromkeys(who for who in row.speaker if who in by_name):
            by_name[name].append(row)
    return rows_of(by_name, TrainPlan(mode=mode), [STAGE])


def test_rows_of_like_length_go_together() -> None:
    from personae.cast.batches import micro_batches

    rows = _rows(*(_row("anna", n) for n in (5, 40, 7, 39, 6, 38, 8)), _row("bo", 90))
    parts = [[len(row.ids) for row in part] for part in micro_batches(rows, 100)]
    assert parts == [[90], [40, 39], [38], [8, 7, 6, 5]]
    assert [len(p) for p in micro_batches(rows, 10_000)] == [8]


def test_a_batch_says_where_what_is_predicted_and_for_whom(tiny_base: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from personae.cast.batches import Voices, people_of
    from personae.cast.stacked import StackedLoRA

    loader: Any = AutoModelForCausalLM
    stack = StackedLoRA(loader.from_pretrained(tiny_base), ("shared", "anna", "bo"), rank=2)
    voices = Voices(stack, STAGE, people_of([STAGE]))
    long, short = _rows(_row("anna", 6), _row("bo", 4))
    batch = voices.batch([long, short], ("anna", "bo"))
    assert batch.ids.tolist() == [[10, 11, 12, 13, 14, 15], [10, 11, 12, 13, 0, 0]]
    assert batch.at.tolist() == [1, 2, 3, 4, 7, 8]
    assert batch.labels.tolist() == [12, 13, 14, 15, 12, 13]
    assert batch.whose.tolist() == [0, 0, 0, 0, 1, 1]
    assert batch.real == 10
    weights: Any = batch.weights
    assert weights.weights.tolist() == [[1, 1, 0], [0, 0, 0.5]]
    only = voices.batch([long, short], ("bo",))  # anna has finished: nothing of hers is asked for
    assert (only.at.tolist(), only.whose.tolist()) == ([7, 8], [0, 0])

    speakers = (None, "anna", "anna", "bo", "dora", None)
    scene = Encoded(
        (1, 2, 3, 4, 5, 6), (False, False, True, True, True, False), speakers, None, "s"
    )
    (row,) = _rows(scene, mode="speaker")
    assert row.tokens == {"anna": 1, "bo": 1}
    batch = voices.batch([row], ("anna", "bo"))
    assert batch.labels.tolist() == [3, 4]
    weights = batch.weights
    assert weights.weights.tolist() == [
        [[0, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0.5], [0, 0, 0], [0, 0, 0]]
    ]
    assert torch.is_tensor(row.seats)
