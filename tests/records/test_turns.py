"""Taking turns."""

from personae.records.turns import in_turns


def test_each_queue_gives_one_in_turn_until_all_are_empty():
    assert in_turns([[1, 2, 3], [4], [5, 6]]) == [1, 4, 5, 2, 6, 3]


def test_none_is_an_item_like_any_other_and_no_queue_gives_nothing():
    queues: list[list[str | None]] = [[None], ["a", "b"]]
    assert in_turns(queues) == [None, "a", "b"]
    empty: list[list[str]] = [[], []]
    assert in_turns(empty) == in_turns(empty[:0]) == []
