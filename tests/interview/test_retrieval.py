"""What fits a question is found, best first, within its room; what shares no word with it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.interview.people import read_interviewees
from personae.interview.retrieval import MOST_PASSAGES, MOST_TOKENS, Passages
from personae.records.tokens import estimate_tokens
from personae.world.memory.lexical import LexicalIndex

TEXTS = (
    "The lighthouse stands on the northern cliff.",
    "Her brother drowned in the great storm.",
    "A storm broke the lantern, and the storm took the boat.",
    "She reads Homer in the winter.",
)


def test_the_passages_that_share_words_with_the_question_come_best_first() -> None:
    found = Passages(TEXTS).find("What did the storm take?")
    assert found == (TEXTS[2], TEXTS[1])  # `storm` stands twice in the first of them


def test_the_order_is_that_of_bm25() -> None:
    query = "the storm, the lantern and Homer on the cliff"
    scores = LexicalIndex("en", TEXTS).scores(query)
    found = Passages(TEXTS).find(query)
    assert [scores[TEXTS.index(one)] for one in found] == sorted(scores[scores > 0], reverse=True)


def test_equal_passages_stand_in_their_own_order() -> None:
    texts = ("The cat sat.", "The dog ran.", "The cat ran.")
    assert Passages(texts).find("cat") == ("The cat sat.", "The cat ran.")


def test_a_question_that_shares_no_word_finds_nothing() -> None:
    assert Passages(TEXTS).find("Do you like sauerkraut?") == ()
    assert Passages(TEXTS).find("") == ()
    assert Passages(()).find("storm") == ()
    assert len(Passages(TEXTS)) == 4


def test_chinese_is_found_by_its_characters() -> None:
    texts = ("她的哥哥在大风暴中溺亡。", "灯塔立在北边的悬崖上。", "冬天她读荷马。")
    passages = Passages(texts, "zh")
    assert passages.find("你怎么看你的哥哥？") == (texts[0],)
    assert passages.find("灯塔在哪里？")[0] == texts[1]


def test_a_later_query_only_fills_the_places_that_are_left() -> None:
    passages = Passages(TEXTS)
    assert passages.find("And then?") == ()  # though `and` stands in a text
    assert passages.find("And then?", "the lighthouse") == (TEXTS[0],)
    assert passages.find("Homer", "the storm", k=2) == (TEXTS[3], TEXTS[2])
    assert passages.find("storm", "storm") == passages.find("storm")


def test_there_are_at_most_so_many_passages() -> None:
    texts = [f"storm number {n}" for n in range(20)]
    assert len(Passages(texts).find("storm")) == MOST_PASSAGES
    assert len(Passages(texts).find("storm", k=1)) == 1


def test_a_passage_that_has_no_room_is_passed_over_for_the_next() -> None:
    long = "storm storm storm " + "of words " * 500
    short = "After the storm came the calm."
    assert estimate_tokens(long) > MOST_TOKENS
    assert Passages([long, short]).find("storm") == (short,)


@given(
    st.lists(st.text("ab 灯\"'*()^:-", max_size=40), max_size=8),
    st.text("ab 灯\"'*()^:-", max_size=40),
    st.integers(0, 6),
    st.integers(0, 40),
)
def test_whatever_is_asked_the_passages_are_ours_and_have_room(
    texts: list[str], query: str, k: int, tokens: int
) -> None:
    found = Passages(texts).find(query, query, k=k, tokens=tokens)
    assert len(found) <= k
    assert set(found) <= set(texts)
    assert sum(estimate_tokens(one) for one in found) <= tokens


@pytest.mark.parametrize(
    ("who", "question", "fact"),
    [
        ("Julius Caesar", "Who stabbed you in the Senate?", "Casca"),
        ("Julius Caesar", "What happened when pirates took you?", "pirates"),
        ("Ludwig van Beethoven", "How did you lose your hearing?", "hearing"),
        ("Isaac Newton", "What did you do at the Royal Mint?", "Mint"),
        ("Socrates", "Why did you drink the hemlock?", "hemlock"),
    ],
)
def test_facts_of_neekos_profiles_are_found(
    shared_data: Callable[..., Path], who: str, question: str, fact: str
) -> None:
    people = {p.name: p for p in read_interviewees([shared_data("neeko", "profiles")], "en")}
    found = people[who].index.find(question)
    assert any(fact in passage for passage in found[:3])
