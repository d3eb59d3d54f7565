from __future__ import annotations

import math

import numpy as np
import pytest

from personae.world.memory.lexical import LexicalIndex, query_terms, terms


def test_chinese_is_indexed_by_character_and_english_by_word() -> None:
    assert terms("Neo去了ＴＨＥ Matrix，第3次！") == [
        "neo", "去", "了", "the", "matrix", "第", "3", "次",
    ]  # fmt: skip


def test_a_question_word_is_no_part_of_a_query() -> None:
    assert query_terms("Where did Bella hide the diary?", "en") == ["bella", "hide", "diary"]
    assert query_terms("香囊在什么地方？", "zh") == ["香", "囊"]


def test_a_query_of_question_words_alone_keeps_them() -> None:
    assert query_terms("Who are you?", "en") == ["who", "are", "you"]
    assert query_terms("为什么？", "zh") == ["为", "什", "么"]


def test_a_longer_word_that_holds_a_question_word_stays_whole() -> None:
    assert query_terms("the theatre, whoever", "en") == ["theatre", "whoever"]


def test_bm25_is_that_of_robertson_and_zaragoza() -> None:
    texts = ["letter letter floor", "rain", "rain on the roof", "a roof", "snow"]
    scores = LexicalIndex("en", texts).scores("letter")
    # One text of five has the term, twice; it is 3 words long where the mean is 11 / 5.
    idf = math.log((5 - 1 + 0.5) / (1 + 0.5))
    weight = 2 * 2.2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / (11 / 5)))
    assert scores == pytest.approx([idf * weight, 0, 0, 0, 0])


def test_an_english_word_is_found_in_another_form() -> None:
    scores = LexicalIndex("en", ["The soup was poisoned.", "It rains.", "Snow.", "Fog."]).scores(
        "What poison?"
    )
    assert scores[0] > 0
    assert not scores[1:].any()


def test_a_chinese_memory_is_found_by_a_part_of_a_word() -> None:
    texts = ["张飞立誓三年之内滴酒不沾。", "城北的石桥昨夜被洪水冲垮了。", "刘备卖过草鞋。"]
    assert np.argmax(LexicalIndex("zh", texts).scores("三弟还饮酒吗？")) == 0
    assert np.argmax(LexicalIndex("zh", texts).scores("桥怎么了")) == 1


@pytest.mark.parametrize(
    "hostile",
    ["", "……！？", '" OR NEAR(', "a* AND b:c - ^d {e}", "\ud800", "\x00", "'; DROP TABLE memory", "(" * 9999],
)  # fmt: skip
def test_no_query_and_no_text_is_taken_for_syntax(hostile: str) -> None:
    index = LexicalIndex("en", [hostile, "an ordinary text about ships"])
    assert len(index.scores(hostile)) == 2
    assert np.argmax(index.scores("ships")) == 1


def test_the_words_of_full_text_search_are_words_like_others() -> None:
    index = LexicalIndex("en", ["near the near shore", "not a match", "far away", "gone"])
    assert np.argmax(index.scores("NEAR")) == 0
    assert np.argmax(index.scores("match AND")) == 1


def test_what_comes_later_is_found_too() -> None:
    index = LexicalIndex("en", ["rain", "snow"])
    assert not index.scores("fog").any()
    index.extend(["fog", "rain"])
    assert index.scores("fog").nonzero()[0].tolist() == [2]
