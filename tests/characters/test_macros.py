"""Macros become what the card means, once, and the same again for the same seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.characters.macros import KNOWN, MAX_FILLED, MAX_NESTED, expand, macros_in


def filled(text: str, *, seed: int | str = 1, original: str | None = None) -> str:
    return expand(text, char="Ada", user="Sam", seed=seed, original=original)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{{char}} and {{user}}", "Ada and Sam"),
        ("{{CHAR}}, {{User}}, {{ char }}", "Ada, Sam, Ada"),
        ("<BOT> <bot> <char> <USER>", "Ada Ada Ada Sam"),
        ("a{{// not for you }}b{{//x}}c", "abc"),
        ("a{{comment: a note}}b", "ab"),
        ("a{{hidden_key:dragons}}b", "ab"),
        ("{{reverse:Hello}}", "olleH"),
        ("{{reverse:{{char}}}}", "adA"),
        ("{{//{{char}}}}x", "x"),
        ("{{{char}}}", "{Ada}"),
        ("{{char}}：你好，{{user}}。", "Ada：你好，Sam。"),
        ("{{roll:1}} {{roll:d1}} {{roll:D1}} {{roll:3d1+4}} {{roll 1}} {{roll::1}}", "1 1 1 7 1 1"),
        ("{{random:only}} {{pick: only }} {{random::only}}", "only only only"),
    ],
)
def test_a_macro_becomes_its_value(text: str, wanted: str) -> None:
    assert filled(text) == wanted
    assert all(known for _, known in macros_in(text))


@pytest.mark.parametrize(
    "text",
    [
        "{{weather}}", "{{char", "char}}", "{{}}", "{{ }}", "{{char:x}}", "{{roll:many}}",
        "{{roll:0}}", "{{roll:}}", "{{random:}}", "{{pick}}", "{{getvar::x}}", "{{char}", "<start>",
        "{{roll:9999d6}}", "{{charred}}",
    ],
)  # fmt: skip
def test_what_is_no_macro_of_ours_stays_as_it_stands(text: str) -> None:
    assert filled(text) == text
    assert not any(known for _, known in macros_in(text))


def test_original_stands_for_the_original_once() -> None:
    assert (
        filled("{{original}} And so on.{{original}}", original="Be kind.") == "Be kind. And so on."
    )
    assert filled("{{original}}Stay.") == "Stay."


def test_what_a_macro_becomes_is_not_read_again() -> None:
    made = expand("{{char}} {{user}}", char="{{user}}", user="{{char}}", seed=1)
    assert made == "{{user}} {{char}}"
    made = expand("{{random:{{user}}}}", char="Ada", user="a,b::c", seed=1)
    assert made == "a,b::c"


def test_items_are_parted_by_commas_or_by_double_colons() -> None:
    def seen(text: str) -> set[str]:
        return {filled(text, seed=seed) for seed in range(60)}

    assert seen("{{random:a, b ,c}}") == {"a", "b", "c"}
    assert seen(r"{{random:a\,b,c}}") == {"a,b", "c"}
    assert seen("{{random::a,b::c}}") == {"a,b", "c"}
    assert seen("{{random:{{char}},{{user}}}}") == {"Ada", "Sam"}


def test_a_die_shows_every_side_and_no_other() -> None:
    assert {filled("{{roll:6}}", seed=seed) for seed in range(200)} == set("123456")
    sums = {int(filled("{{roll:2d6-1}}", seed=seed)) for seed in range(400)}
    assert sums == set(range(1, 12))


def test_the_same_seed_says_the_same_and_each_place_is_its_own() -> None:
    text = "{{roll:1000000}} {{roll:1000000}}"
    assert filled(text, seed=7) == filled(text, seed=7)
    assert filled(text, seed=7) != filled(text, seed=8)
    assert len(set(filled(text, seed=7).split())) == 2
    assert filled(text, seed=7) != filled(text, seed="7")


def test_a_pick_is_stable_for_its_place_whatever_the_seed_of_the_turn() -> None:
    text = "{{pick:" + ",".join(map(str, range(100))) + "}}"
    assert len({filled(text, seed=seed) for seed in range(20)}) == 1
    plays = {expand(text, char="Ada", user="Sam", seed=1, pick_seed=play) for play in range(20)}
    assert len(plays) > 10


@given(st.text(alphabet="{}:<>,\\/ abcharuseprolndmik1", max_size=60))
def test_no_text_breaks_it_and_no_name_is_read_for_macros(text: str) -> None:
    made = expand(text, char="{{user}}", user="{{roll:2}}", seed=3)
    assert made == expand(text, char="{{user}}", user="{{roll:2}}", seed=3)
    list(macros_in(text))


def test_macros_nested_deeper_than_the_cap_are_text() -> None:
    deep = "{{reverse:" * 5000 + "x" + "}}" * 5000
    assert "{{reverse:" in filled(deep)
    assert filled("{{reverse:" * MAX_NESTED + "ab" + "}}" * MAX_NESTED) == "ab"
    list(macros_in(deep))


def test_every_macro_of_v3_is_known() -> None:
    listed = "char user random pick roll // hidden_key comment reverse"
    assert set(listed.split()) <= KNOWN


def test_so_many_macros_of_a_text_are_filled_in_and_the_others_stay() -> None:
    assert filled("{{char}}" * (MAX_FILLED + 2)) == "Ada" * MAX_FILLED + "{{char}}" * 2
    deep = "{{reverse:{{user}}}}"
    assert filled("{{// x}}" * (MAX_FILLED - 1) + deep) == "{{user}}"[::-1]
