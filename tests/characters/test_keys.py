import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.characters.keys import (
    ALL_SECONDS,
    KEY_SECONDS,
    LOOK_CHARS,
    MAX_PATTERN_CHARS,
    Allowance,
    Heard,
    Key,
    Room,
    Syntax,
    key_of,
)

LONG = Heard.of("a" * 4000 + "!")


def key(text: str, syntax: Syntax = "text", *, whole: bool = False, case: bool = False) -> Key:
    return key_of(text, syntax=syntax, room=Room(), case_sensitive=case, whole_words=whole)


def at(one: Key, *texts: str) -> int | None:
    return one.within([Heard.of(text) for text in texts], Allowance())


def test_the_last_text_that_holds_a_key_is_named():
    assert at(key("cat"), "cat", "cat", "dog") == 1
    assert at(key("cat")) is None


def test_case_is_folded_beyond_ascii():
    assert at(key("STRASSE"), "Straße") == 0
    assert at(key("STRASSE", case=True), "Straße") is None


@given(st.text(min_size=1), st.text(), st.text())
def test_a_text_that_holds_the_key_is_found(word: str, before: str, after: str):
    one = key(word, case=True)
    if one.needle:
        assert at(one, f"{before} {one.needle} {after}") == 0


def test_a_whole_word_is_found_behind_one_that_only_begins_like_it():
    assert at(key("art", whole=True), "arts and art") == 0
    assert at(key("art", whole=True), "arts and parts") is None


def test_a_key_of_several_words_needs_no_border():
    assert at(key("black cat", whole=True), "two black cats") == 0


def test_slashes_make_a_pattern_where_they_may():
    assert key("/a+/", "text").pattern is None
    assert key("/a+/", "slashed").pattern is not None
    assert key("a+", "slashed").pattern is None
    assert key("a+", "pattern").pattern is not None
    assert (
        key("/a/b/", "slashed").pattern is None
    )  # an unescaped slash: SillyTavern takes it as text


def test_an_invalid_pattern_in_slashes_is_text_for_sillytavern_and_trouble_for_the_specification():
    assert at(key("/(/", "slashed"), "a /(/ b") == 0
    trouble = key("/(/", "pattern").trouble
    assert trouble is not None
    assert (trouble.key, trouble.what) == ("/(/", "invalid")


@pytest.mark.parametrize("syntax", ["pattern", "slashed"])
def test_a_pattern_that_is_too_long_is_not_compiled(syntax: Syntax):
    trouble = key(f"/{'a' * (MAX_PATTERN_CHARS + 1)}/", syntax).trouble
    assert trouble is not None
    assert trouble.what == "too_long"


def test_a_pattern_takes_from_the_room_of_its_book_and_a_text_does_not():
    room = Room(patterns=1)
    assert key_of("a", syntax="text", room=room).trouble is None
    assert key_of("a", syntax="pattern", room=room).trouble is None
    trouble = key_of("b", syntax="pattern", room=room).trouble
    assert trouble is not None
    assert trouble.what == "too_many"


def test_a_pattern_stopped_once_is_not_tried_again_in_the_same_activation():
    allowance = Allowance()
    one = key("(a+)+$", "pattern")
    assert one.within([LONG], allowance) is None
    left = allowance.left
    assert left == pytest.approx(ALL_SECONDS - KEY_SECONDS)
    assert allowance.stopped["(a+)+$"].what == "timeout"
    assert one.within([LONG], allowance) is None
    assert allowance.left == left


def test_a_sound_pattern_goes_without_answer_when_the_time_of_all_is_used_up():
    allowance = Allowance(left=0.0)
    assert key("a", "pattern").within([LONG], allowance) is None
    assert "all patterns" in allowance.stopped["a"].detail


def test_texts_need_no_time_allowance():
    assert key("a").within([LONG], Allowance(left=0.0)) == 0


def test_the_patterns_of_a_book_have_so_many_characters_together_and_no_more():
    room = Room(characters=5)
    assert key_of("abc", syntax="pattern", room=room).trouble is None
    trouble = key_of("abc", syntax="pattern", room=room).trouble
    assert trouble is not None
    assert trouble.what == "too_many"
    assert key_of("/ab/i", syntax="pattern", room=room).trouble is None


def test_text_keys_read_so_much_and_the_first_that_could_not_is_named():
    allowance = Allowance(characters=2 * (1 + LOOK_CHARS))
    two = [Heard.of("x"), Heard.of("y")]
    first, second, third = key("y"), key("b"), key("x")
    assert first.within(two, allowance) == 1  # reads one of two
    assert second.within(two, allowance) is None
    assert third.within(two, allowance) is None
    assert [allowance.trouble(one) is None for one in (first, second, third)] == [True, False, True]


def test_a_text_key_is_found_though_a_pattern_of_the_same_spelling_ran_out_of_time():
    allowance = Allowance()
    assert key("(a+)+$", "pattern").within([LONG], allowance) is None
    assert key("(a+)+$").within([Heard.of("x (a+)+$")], allowance) == 0
