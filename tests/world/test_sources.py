"""Sources: spread over the book, balanced over the cast, none twice in a wave."""

import pytest

from personae.world.book import Passage
from personae.world.sources import BookSupply, CastSupply, Member


def members(*given: str) -> list[Member]:
    return [Member(name, name) for name in given]


def book(count: int) -> BookSupply:
    return BookSupply("Book", [Passage(i, i, i + 1, "", "text") for i in range(count)])


def test_passages_are_spread_over_the_book_and_used_once_before_any_comes_again():
    supply = book(10)
    first, second = supply.next(4), supply.next(9)
    assert [s.key for s in first] == ["passage-1", "passage-3", "passage-6", "passage-8"]
    assert len(second) == 6
    assert not {s.key for s in first} & {s.key for s in second}
    assert len(supply.next(20)) == 10


def test_a_barren_passage_is_not_handed_out_again():
    supply = book(3)
    for source in supply.next(3)[:2]:
        supply.barren(source)
    assert [s.key for s in supply.next(5)] == ["passage-2"]
    supply.barren(supply.next(1)[0])
    assert supply.next(5) == []


def test_a_cast_gives_every_pair_and_three_once_and_everybody_alike():
    supply = CastSupply("c", members(*"ABCD"))
    first = supply.next(6)
    assert sorted(len(s.group) for s in first) == [2, 2, 2, 3, 3, 3]
    uses = [sum(name in s.names for s in first) for name in "ABCD"]
    assert max(uses) - min(uses) <= 1
    assert len({s.key for s in [*first, *supply.next(99)]}) == 4 + 6
    assert len(supply.next(99)) == 10  # all over again


def test_groups_depend_on_the_seed_and_on_nothing_else():
    people = members(*"ABCDEFGH")
    keys = [[s.key for s in CastSupply("c", people, seed).next(9)] for seed in (1, 1, 2)]
    assert keys[0] == keys[1] != keys[2]


def test_a_cast_of_a_thousand_is_sampled_and_one_of_one_is_refused():
    many = CastSupply("c", members(*(f"N{i}" for i in range(1000)))).next(50)
    assert len({s.key for s in many}) == 50
    with pytest.raises(ValueError, match="two or more"):
        CastSupply("c", members("A"))
