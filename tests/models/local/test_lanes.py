"""Requests that begin alike follow one another on one slot; nobody waits for ever."""

from __future__ import annotations

import random

import pytest

from personae.models.local.lanes import Lanes, Request, common, prompt_text

LONG = 4800  # characters in common, about 1,200 tokens


def of(group: str, case: int, *, most: int = 40, lora: tuple[int, ...] = ()) -> Request[str]:
    shared = "".join(random.Random(group).choices("abcdefgh ", k=LONG))
    return Request(item=f"{group}{case}", text=f"{shared}{case:>300}", group=lora, most=most)


def served(lanes: Lanes[str], written: int = 15) -> list[list[tuple[int, str]]]:
    """Serve all that waits, all slots in step: who began, round by round."""
    rounds = []
    while began := lanes.assign():
        rounds.append([(slot, request.item) for slot, request in began])
        for slot, _ in began:
            lanes.free(slot, written)
    return rounds


def test_requests_of_one_group_follow_one_another_on_one_slot_and_groups_stand_beside() -> None:
    lanes: Lanes[str] = Lanes(3)
    for case in range(6):
        for group in "ABC":
            lanes.add(of(group, case))
    rounds = served(lanes)
    assert rounds == [[(0, f"A{n}"), (1, f"B{n}"), (2, f"C{n}")] for n in range(6)]


def test_a_slot_finishes_its_group_before_it_begins_another() -> None:
    lanes: Lanes[str] = Lanes(1)
    for case in range(3):
        for group in "AB":
            lanes.add(of(group, case))
    assert [x for r in served(lanes) for _, x in r] == ["A0", "A1", "A2", "B0", "B1", "B2"]


def test_unrelated_requests_take_all_slots_at_once_in_their_order() -> None:
    lanes: Lanes[str] = Lanes(4)
    for n in range(6):
        lanes.add(of(f"group {n} ", 0))
    began = lanes.assign()
    assert [slot for slot, _ in began] == [0, 1, 2, 3]
    assert [r.item for _, r in began] == [f"group {n} 0" for n in range(4)]
    lanes.free(2, 15)
    assert [(slot, r.item) for slot, r in lanes.assign()] == [(2, "group 4 0")]


def test_short_prompts_do_not_wait_for_each_other() -> None:
    lanes: Lanes[str] = Lanes(4)
    for n in range(4):
        lanes.add(Request(item=str(n), text=f"You are a pirate. Question {n}", group=(), most=200))
    assert len(lanes.assign()) == 4


def test_long_replies_spread_over_slots_since_batched_writing_gains_more_than_reading() -> None:
    lanes: Lanes[str] = Lanes(4)
    for n in range(4):
        lanes.add(of("A", n, most=2000))
        lanes.free(3, 2000)  # the replies seen of late were long
    assert len(lanes.assign()) == 4


def test_the_length_of_replies_is_learnt_for_each_kind() -> None:
    lanes: Lanes[str] = Lanes(4)
    story, verdicts = of("S", 0, most=2000), [of("A", n, most=2000) for n in range(4)]
    story.kind = "story"
    lanes.add(story)
    lanes.assign()
    lanes.free(0, 2000)
    for request in verdicts:
        lanes.add(request)
    assert [r.item for _, r in lanes.assign()] == ["A0"]


def test_slots_keep_what_they_hold_when_more_groups_than_slots_come_round_again() -> None:
    lanes: Lanes[str] = Lanes(2)
    for group in "ABC":
        lanes.add(of(group, 0))
    served(lanes)  # now C and B are held
    for group in "ABC":
        lanes.add(of(group, 1))
    assert {r.item for _, r in lanes.assign()} == {"B1", "C1"}


def test_a_group_that_never_ends_lets_older_requests_through() -> None:
    lanes: Lanes[str] = Lanes(1)
    lanes.add(of("A", 0))
    lanes.assign()
    lanes.add(of("B", 0))
    seen = []
    for case in range(1, 40):
        lanes.add(of("A", case))
        lanes.free(0, 15)
        ((_, request),) = lanes.assign()
        seen.append(request.item)
    assert seen.index("B0") == 16


def test_a_cache_under_other_adapters_is_no_cache() -> None:
    lanes: Lanes[str] = Lanes(2)
    lanes.add(of("A", 0))
    lanes.add(of("A", 1, lora=(1,)))
    assert [slot for slot, _ in lanes.assign()] == [0, 1]


def test_the_cache_of_a_slot_that_failed_is_not_counted_on() -> None:
    lanes: Lanes[str] = Lanes(1)
    lanes.add(of("A", 0))
    lanes.assign()
    lanes.free(0, None)
    lanes.add(of("B", 0))
    lanes.add(of("A", 1))
    assert [r.item for _, r in lanes.assign()] == ["B0"]


def test_a_request_that_nobody_waits_for_is_dropped_only_while_it_waits() -> None:
    lanes: Lanes[str] = Lanes(1)
    lanes.add(of("A", 0))
    lanes.add(of("B", 0))
    lanes.assign()
    assert not lanes.drop("A0")
    assert lanes.drop("B0")
    lanes.free(0, 15)
    assert lanes.assign() == []


@pytest.mark.parametrize("seed", range(20))
def test_every_request_is_served_once_whatever_the_mix(seed: int) -> None:
    drawn = random.Random(seed)
    lanes: Lanes[str] = Lanes(drawn.randint(1, 5))
    asked = [of(drawn.choice("ABCDEF"), n, lora=(drawn.randint(0, 1),)) for n in range(60)]
    begun: list[str] = []
    running: list[int] = []
    for request in asked:
        lanes.add(request)
        while running and drawn.random() < 0.5:
            lanes.free(running.pop(drawn.randrange(len(running))), drawn.randint(1, 400))
        for slot, taken in lanes.assign():
            assert slot not in running
            running.append(slot)
            begun.append(taken.item)
    while running:
        lanes.free(running.pop(), drawn.choice([None, 20]))
        for slot, taken in lanes.assign():
            running.append(slot)
            begun.append(taken.item)
    assert sorted(begun) == sorted(r.item for r in asked)


def test_what_two_texts_have_in_common_ends_where_they_differ() -> None:
    for one, two, length in (
        ("", "x", 0),
        ("abc", "abd", 2),
        ("abc", "abc", 3),
        ("ab", "abc", 2),
        ("xbc", "abc", 0),
    ):
        assert common(one, two) == length


def test_the_role_is_part_of_what_two_prompts_share() -> None:
    user = prompt_text([{"role": "user", "content": "same"}])
    system = prompt_text([{"role": "system", "content": "same"}])
    assert common(user, system) == 1
