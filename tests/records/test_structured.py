"""The one parser of structured replies: one JSON value that meets its schema, or a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.prompts.schemas import verdict_schema
from personae.records import ReplySchema
from personae.records.structured import MAX_REPLY_CHARS, MalformedReplyError, parse_structured

ANYTHING = ReplySchema(name="anything", body={})
VERDICT = ReplySchema(
    name="verdict",
    body={
        "type": "object",
        "properties": {
            "justification": {"type": "string"},
            "score": {"type": "integer", "minimum": 1, "maximum": 5},
        },
        "required": ["justification", "score"],
        "additionalProperties": False,
    },
)

text = st.text(max_size=30)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)


@given(json_values, st.booleans(), st.sampled_from([None, 0, 2]))
def test_any_json_value_comes_back_as_it_was_written(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse_structured(written, ANYTHING) == value


@given(
    json_values,
    st.sampled_from(["```", "```json", "```JSON", "```json \t"]),
    st.sampled_from(["\n```", "```", "\n  ```", "\r\n```\r\n"]),
    st.sampled_from(["", "\n", "  \n\n"]),
)
def test_one_code_fence_around_the_value_is_taken_off(
    value: Any, opening: str, closing: str, around: str
) -> None:
    fenced = f"{around}{opening}\n{json.dumps(value)}{closing}{around}"
    assert parse_structured(fenced, ANYTHING) == value


def test_backticks_inside_a_string_are_not_the_end_of_the_fence() -> None:
    reply = '```json\n{"justification": "wrote ```\\nx\\n``` itself", "score": 2}\n```'
    assert parse_structured(reply, VERDICT) == {
        "justification": "wrote ```\nx\n``` itself",
        "score": 2,
    }


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "   ",
        "```",
        "```json",
        "```json\n```",
        'Sure! Here it is: {"justification": "x", "score": 5}',
        '{"justification": "x", "score": 5} I hope this helps.',
        '{"justification": "x", "score": 5}\n{"justification": "x", "score": 5}',
        '{"justification": "x", "score": 5}{"justification": "y", "score": 1}',
        '```json\n{"justification": "x", "score": 5}\n``` done',
        'First:\n```json\n{"justification": "x", "score": 5}\n```',
        '```json\n{"justification": "x", "score": 5}',
        '{"justification": "x", "score": 5}\n```',
        '```python\n{"justification": "x", "score": 5}\n```',
        '```json {"justification": "x", "score": 5} ```',
        "{'justification': 'x', 'score': 5}",
        '{"justification": "x", "score": 5,}',
        '{"justification": "x", "score": 5',
        '{"justification": "line\nbreak", "score": 5}',
        '{"justification": "x", "score": 5} // comment',
        "score: 5",
        "5",
        '[{"justification": "x", "score": 5}]',
    ],
)
def test_anything_beside_one_whole_value_is_refused(reply: str) -> None:
    with pytest.raises(MalformedReplyError):
        parse_structured(reply, VERDICT)


@pytest.mark.parametrize(
    "score", ["0", "6", "-1", "10", "4.5", '"4"', "null", "true", "[4]", '{"n": 4}', "1e1"]
)
def test_a_score_outside_its_scale_is_refused_not_clamped(score: str) -> None:
    with pytest.raises(MalformedReplyError, match="score"):
        parse_structured(f'{{"justification": "x", "score": {score}}}', VERDICT)


@pytest.mark.parametrize("score", ["0", "6", "4.5", '"4"', "null"])
def test_the_shipped_verdict_schema_refuses_the_same_scores(score: str) -> None:
    with pytest.raises(MalformedReplyError, match="score"):
        parse_structured(f'{{"justification": "x", "score": {score}}}', verdict_schema())


@pytest.mark.parametrize(
    "reply",
    [
        '{"justification": "x", "score": 1, "score": 5}',
        '{"justification": "x", "score": 5, "score": 5}',
        '{"score": 1, "justification": "x", "sc\\u006fre": 5}',
    ],
)
def test_a_key_that_stands_twice_is_refused(reply: str) -> None:
    with pytest.raises(MalformedReplyError, match="twice"):
        parse_structured(reply, VERDICT)


def test_twin_keys_deep_inside_are_refused_too() -> None:
    with pytest.raises(MalformedReplyError, match="twice"):
        parse_structured('{"a": [{"b": {"c": 1, "c": 1}}]}', ANYTHING)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_json_does_not_call_a_number_is_refused(number: str) -> None:
    with pytest.raises(MalformedReplyError, match="not a number in JSON"):
        parse_structured(f'{{"x": {number}}}', ANYTHING)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5000])
def test_a_number_that_python_cannot_hold_is_refused_with_a_reason(number: str) -> None:
    with pytest.raises(MalformedReplyError, match="too large"):
        parse_structured(f'{{"x": [{number}]}}', ANYTHING)


@pytest.mark.parametrize("place", ['["{}"]', '{{"{}": 1}}'])
def test_half_of_a_surrogate_pair_is_refused(place: str) -> None:
    with pytest.raises(MalformedReplyError, match="surrogate"):
        parse_structured(place.format("\\ud83d"), ANYTHING)


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert parse_structured('["\\ud83c\\udfad"]', ANYTHING) == ["🎭"]


@pytest.mark.parametrize("reply", ["[" * 90_000, "[" * 90_000 + "]" * 90_000, '{"a":' * 30_000])
def test_deep_nesting_is_refused_and_does_not_end_the_process(reply: str) -> None:
    with pytest.raises(MalformedReplyError):
        parse_structured(reply, ANYTHING)


@pytest.mark.parametrize("filler", [" ", "\t", "\n", "`", "``` ", "```\n"])
def test_a_fence_and_a_flood_are_refused_without_a_search_through_them(filler: str) -> None:
    # A regular expression with two repeats took minutes over this; it would hang the suite.
    flood = filler * ((MAX_REPLY_CHARS - 10) // len(filler))
    with pytest.raises(MalformedReplyError):
        parse_structured(f"```\n{flood}x", ANYTHING)


def test_a_reply_over_the_cap_is_refused_unread() -> None:
    assert parse_structured(f'"{"x" * (MAX_REPLY_CHARS - 2)}"', ANYTHING)
    with pytest.raises(MalformedReplyError, match="longer than"):
        parse_structured(f'"{"x" * (MAX_REPLY_CHARS - 1)}"', ANYTHING)


def test_the_reason_names_the_place_and_is_fit_for_a_repair() -> None:
    with pytest.raises(MalformedReplyError, match=r"^score: 9 is greater than the maximum of 5$"):
        parse_structured('{"justification": "x", "score": 9}', VERDICT)
    with pytest.raises(MalformedReplyError, match='"score" is a required property'):
        parse_structured('{"justification": "x"}', VERDICT)


def test_the_reason_stays_short_whatever_the_reply_holds() -> None:
    with pytest.raises(MalformedReplyError) as caught:
        parse_structured(json.dumps({"justification": 1, "score": "y" * 50_000}), VERDICT)
    assert len(str(caught.value)) < 400


@given(st.text(max_size=200))
def test_no_text_whatever_raises_anything_but_a_malformed_reply(reply: str) -> None:
    try:
        value = parse_structured(reply, VERDICT)
    except MalformedReplyError:
        return
    assert set(value) == {"justification", "score"}
    assert value["score"] in (1, 2, 3, 4, 5)
