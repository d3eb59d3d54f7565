"""Calls and replies: the content key covers what decides the reply; a reply says something."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import InputError
from personae.records import Call, Failure, Message, Reply, ReplySchema, Sampling
from personae.records.call import prompt_text
from tests.records.strategies import call, text

CALL = Call(
    role="judge",
    model="scripted:judge",
    messages=(Message(role="system", content="S"), Message(role="assistant", content="A")),
    sampling=Sampling(temperature=0, max_tokens=5, stop=("x",)),
    reply_schema=ReplySchema(name="verdict", body={"type": "object"}),
)
VARIANTS: list[dict[str, Any]] = [
    {"role": "character"},
    {"model": "scripted:other"},
    {"messages": CALL.messages[::-1]},
    {"messages": CALL.messages[:1]},
    {"messages": (Message(role="user", content="S"), CALL.messages[1])},
    {"messages": (Message(role="system", content="s"), CALL.messages[1])},
    {"sampling": Sampling(temperature=0.1, max_tokens=5, stop=("x",))},
    {"sampling": Sampling(max_tokens=5, stop=("x",))},
    {"sampling": Sampling(temperature=0, max_tokens=5, stop=("x",), seed=0)},
    {"sampling": Sampling(temperature=0, max_tokens=5, stop=("x",), logprobs=1)},
    {"sampling": Sampling(temperature=0, max_tokens=5)},
    {"reply_schema": None},
    {"reply_schema": ReplySchema(name="other", body={"type": "object"})},
    {"reply_schema": ReplySchema(name="verdict", body={"type": "array"})},
    {"repeat": 1},
    {"kind": "score"},
]


def test_the_key_is_32_bytes_and_fixed_for_good() -> None:
    # Journals are found by it: if this changes, every run on every disk is asked again.
    assert len(CALL.key()) == 32
    assert CALL.key().hex() == "df33f844e0bf676ef5499652b5a8854ed9eb82759294d886902ca7c9e18b65f5"


def test_all_that_decides_the_reply_is_in_the_key() -> None:
    keys = [CALL.key(), *(CALL.model_copy(update=v).key() for v in VARIANTS)]
    for (i, a), (j, b) in itertools.combinations(enumerate(keys), 2):
        assert a != b, (i, j)


def test_every_field_of_a_call_is_in_the_key_or_is_meta() -> None:
    assert {name for v in VARIANTS for name in v} == set(Call.model_fields) - {"meta"}


@given(call, st.dictionaries(text, text | st.integers(), max_size=3))
def test_the_key_outlives_the_json_and_does_not_see_meta(made: Call, meta: dict[str, Any]) -> None:
    assert Call.model_validate_json(made.to_json()).key() == made.key()
    assert made.model_copy(update={"meta": meta}).key() == made.key()


def test_texts_cannot_be_moved_between_messages_under_one_key() -> None:
    def said(*contents: str) -> bytes:
        messages = tuple(Message(role="user", content=c) for c in contents)
        return Call(role="r", model="m", messages=messages).key()

    assert len({said("ab", "c"), said("a", "bc"), said("abc"), said("abc", ""), said('a","c')}) == 5


def test_the_schema_stands_in_json_under_its_short_name() -> None:
    assert CALL.to_dict()["schema"]["name"] == "verdict"
    assert Call.from_dict(CALL.to_dict()) == CALL


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"role": ""}, "role"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"repeat": -1}, "repeat"),
        ({"kind": "guess"}, "kind"),
        ({"kind": "score", "messages": [{"role": "user", "content": "x"}]}, "must be the assist"),
        ({"schema": {"name": "bad name", "body": {}}}, "schema.name"),
        ({"schema": {"name": "x" * 65, "body": {}}}, "schema.name"),
        ({"sampling": {"temperature": 2.1}}, "sampling.temperature"),
        ({"sampling": {"temperature": -0.1}}, "sampling.temperature"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p"),
        ({"sampling": {"top_p": 1.01}}, "sampling.top_p"),
        ({"sampling": {"max_tokens": 0}}, "sampling.max_tokens"),
        ({"sampling": {"logprobs": 21}}, "sampling.logprobs"),
        ({"sampling": {"temperature": float("nan")}}, "sampling.temperature"),
    ],
)
def test_a_call_that_cannot_be_asked_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        Call.from_dict({**CALL.to_dict(), **fields})


def test_a_reply_that_says_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="says nothing"):
        Reply.from_dict({})
    with pytest.raises(InputError, match="says nothing"):
        Reply.from_dict({"value": 5, "reasoning": "hm"})


@pytest.mark.parametrize("value", [{"text": ""}, {"text": "x"}, {"logprobs": []}])
def test_an_answer_is_ok_and_a_failure_is_not(value: dict[str, Any]) -> None:
    assert Reply.from_dict(value).ok
    failed = Reply.from_dict({**value, "failure": {"cause": "malformed"}})
    assert not failed.ok
    assert failed.failure == Failure(cause="malformed")


def test_unknown_usage_is_none_and_negative_usage_is_refused() -> None:
    assert Reply(text="x").usage.tokens_in is None
    with pytest.raises(InputError, match="tokens_out"):
        Reply.from_dict({"text": "x", "usage": {"tokens_out": -1}})


def test_that_a_reply_was_reused_is_not_stored() -> None:
    assert "reused" not in Reply(text="x", reused=True).to_dict()


def test_the_prompt_text_holds_every_message_in_order() -> None:
    assert prompt_text(CALL) == '["S","A"]'
