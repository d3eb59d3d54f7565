"""When two texts say nearly the same, in both languages."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.records.similarity import Distinct, normalised, similarity, trigrams

words = st.text(max_size=30)


def near(a: str, b: str) -> float:
    return similarity(trigrams(a), trigrams(b))


def test_two_trigrams_of_four_shared_are_half() -> None:
    # "ab" gives {"  a", " ab", "ab "}; "abc" gives {"  a", " ab", "abc", "bc "}.
    assert trigrams("ab") == {"  a", " ab", "ab "}
    assert near("ab", "abc") == pytest.approx(2 / 5)


@given(words)
def test_a_text_is_entirely_like_itself(text: str) -> None:
    assert near(text, text) == 1


@given(words, words)
def test_similarity_is_symmetric_and_from_0_to_1(a: str, b: str) -> None:
    assert near(a, b) == near(b, a)
    assert 0 <= near(a, b) <= 1


@given(words)
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("A Cook, from Lyon!", "a cook from lyon"),
        ("Ａ ＣＯＯＫ", "a cook"),
        ("snake_case", "snake case"),
        ("一位厨师，来自里昂。", "一位厨师 来自里昂"),
        ("STRASSE", "straße"),
        (unicodedata.normalize("NFD", "Café"), "café"),
    ],
)
def test_case_width_punctuation_and_spelling_of_accents_do_not_count(a: str, b: str) -> None:
    assert near(a, b) == 1


def test_a_persona_with_one_word_changed_is_refused() -> None:
    seen = Distinct()
    assert seen.add("A 45-year-old baker from Lyon who sings in a choir")
    assert not seen.add("A 46-year-old baker from Lyon who sings in a choir")
    assert not seen.add("a 45 year old baker from lyon, who sings in a choir!")
    assert seen.add("A marine biologist from Osaka who collects stamps")


def test_chinese_personas_are_told_apart_too() -> None:
    seen = Distinct()
    assert seen.add("一位来自成都的退休教师，喜欢养花和下棋")
    assert not seen.add("一位来自成都的退休教师，喜欢种花和下棋")
    assert seen.add("一名在青岛长大的年轻水手，梦想环游世界")


def test_what_was_refused_is_not_remembered() -> None:
    seen = Distinct(0.5)
    assert seen.add("abcdefgh")
    refused = "abcdefxy"
    assert not seen.add(refused)
    further = "abcxefxy"  # near the refused one, not near the first
    assert near(refused, further) >= 0.4
    assert near("abcdefgh", further) < 0.5
    assert seen.add(further)


@given(st.lists(words, max_size=8))
def test_no_two_accepted_texts_are_near_each_other(texts: list[str]) -> None:
    seen = Distinct()
    kept = [text for text in texts if seen.add(text)]
    assert all(near(a, b) < 0.6 for i, a in enumerate(kept) for b in kept[:i])


def test_at_threshold_one_only_the_same_text_is_refused() -> None:
    seen = Distinct(1.0)
    assert seen.add("ab")
    assert seen.add("abc")
    assert not seen.add("AB")
