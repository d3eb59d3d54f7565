"""What a request may say, what it may not, and what is passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.records import Secret
from personae.serve.api_errors import ApiError
from personae.serve.engine import ChatMessage
from personae.serve.requests import (
    _NEUTRAL,
    MAX_KNOWING,
    MAX_MESSAGES,
    ChatAsked,
    _Body,
    read_chat,
)

HELLO = {"role": "user", "content": "hello"}
CROWD = [str(n) for n in range(MAX_KNOWING + 1)]


def read(**changed: Any) -> ChatAsked:
    body = {"model": "Ada", "messages": [HELLO], **changed}
    return read_chat(json.dumps(body).encode(), max_tokens=100, default_tokens=50)


def refused(raw: bytes | None = None, **changed: Any) -> dict[str, Any]:
    """The error that a request is answered by; all of them are 400."""
    if raw is None:
        raw = json.dumps({"model": "Ada", "messages": [HELLO], **changed}).encode()
    with pytest.raises(ApiError) as caught:
        read_chat(raw, max_tokens=100, default_tokens=50)
    assert caught.value.status == 400
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error


def test_a_plain_request_leaves_the_choice_to_the_engine() -> None:
    asked = read()
    wanted = asked.wanted
    assert (asked.stream, asked.usage) == (False, False)
    assert wanted.model == "Ada"
    assert wanted.messages == (ChatMessage("user", "hello"),)
    assert wanted.secrets == ()
    assert (wanted.temperature, wanted.top_p, wanted.seed, wanted.logprobs) == (None,) * 4
    assert wanted.stop == ()


def test_what_is_asked_for_arrives() -> None:
    asked = read(
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=11,
        stop="END",
        logprobs=True,
        top_logprobs=3,
    )
    wanted = asked.wanted
    assert (asked.stream, asked.usage) == (True, True)
    assert (wanted.max_tokens, wanted.temperature, wanted.top_p) == (7, 0, 0.5)
    assert (wanted.seed, wanted.stop, wanted.logprobs) == (11, ("END",), 3)


def test_the_developer_is_the_system_and_parts_of_text_are_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    asked = read(
        messages=[{"role": "developer", "content": "be Ada"}, {"role": "user", "content": parts}]
    )
    assert asked.wanted.messages == (
        ChatMessage("system", "be Ada"),
        ChatMessage("user", "one\ntwo"),
    )


def test_whoever_speaks_also_perceives_it() -> None:
    asked = read(
        messages=[
            {**HELLO, "name": "Wu Song", "perceived_by": ["Ada"]},
            {**HELLO, "name": "Wu Song"},
            {**HELLO, "perceived_by": []},
        ]
    )
    told = [(m.name, m.perceived_by) for m in asked.wanted.messages]
    assert told == [
        ("Wu Song", frozenset({"Ada", "Wu Song"})),
        ("Wu Song", None),
        (None, frozenset()),
    ]


def test_secrets_of_the_chat_arrive_with_those_who_know_them() -> None:
    asked = read(personae={"secrets": [{"fact": "The wine is drugged.", "known_by": ["Ada"]}]})
    assert asked.wanted.secrets == (Secret(fact="The wine is drugged.", known_by=("Ada",)),)


@pytest.mark.parametrize(
    ("given", "taken"),
    [({}, 50), ({"max_tokens": 3}, 3), ({"max_completion_tokens": 100}, 100),
     ({"max_tokens": 4, "max_completion_tokens": 4}, 4), ({"max_tokens": None}, 50)],
)  # fmt: skip
def test_every_answer_has_a_limit_of_tokens(given: dict[str, Any], taken: int) -> None:
    assert read(**given).wanted.max_tokens == taken


@pytest.mark.parametrize(("stop", "taken"), [
    (None, ()), ("", ()), ([], ()), ("a", ("a",)), (["a", "b", "c", "d"], ("a", "b", "c", "d")),
])  # fmt: skip
def test_stops_are_one_text_or_up_to_four(stop: Any, taken: tuple[str, ...]) -> None:
    assert read(stop=stop).wanted.stop == taken


def test_a_seed_of_minus_one_is_any() -> None:
    assert read(seed=-1).wanted.seed is None


@pytest.mark.parametrize("logprobs", [(None, None), (False, None), (True, 0)])
def test_log_probabilities_come_only_where_they_are_asked_for(
    logprobs: tuple[bool | None, int | None],
) -> None:
    asked, taken = logprobs
    assert read(logprobs=asked).wanted.logprobs == taken


def test_what_asks_for_nothing_and_what_we_do_not_know_is_passed_over() -> None:
    asked = read(
        frequency_penalty=0, presence_penalty=0.0, repetition_penalty=1, logit_bias={}, top_k=-1,
        min_p=0, top_a=0, response_format={"type": "text"}, tools=[], tool_choice="auto", n=1,
        modalities=["text"], audio=None, user="u1", chat_completion_source="custom",
        include_reasoning=False, reasoning_effort="medium", store=False, metadata={"a": "b"},
        service_tier="auto", parallel_tool_calls=True, ignore_eos=False, min_tokens=0,
    )  # fmt: skip
    assert asked == read()


@pytest.mark.parametrize(
    ("name", "value"),
    [("frequency_penalty", 0.5), ("presence_penalty", -1), ("repetition_penalty", 1.1),
     ("logit_bias", {"50256": -100}), ("top_k", 40), ("min_p", 0.05), ("n", 2), ("n", True),
     ("best_of", 3), ("response_format", {"type": "json_object"}), ("top_k", False),
     ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("functions", [{}]),
     ("modalities", ["text", "audio"]), ("audio", {"voice": "x"}), ("guided_json", {}),
     ("grammar", "root ::= x"), ("ignore_eos", True), ("continue_final_message", True),
     ("json_schema", {}), ("web_search_options", {})],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert error["message"].startswith(f"{name} is not supported here")


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [HELLO] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [HELLO, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        ({"messages": [HELLO, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{**HELLO, "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{**HELLO, "name": " "}]}, "messages[0].name"),
        ({"messages": [{**HELLO, "name": "A\nB"}]}, "messages[0].name"),
        ({"messages": [{**HELLO, "name": "A\u2028B"}]}, "messages[0].name"),
        ({"messages": [{**HELLO, "name": "n" * 201}]}, "messages[0].name"),
        ({"messages": [{**HELLO, "perceived_by": "Ada"}]}, "messages[0].perceived_by"),
        ({"messages": [{**HELLO, "perceived_by": [1]}]}, "messages[0].perceived_by[0]"),
        ({"messages": [{**HELLO, "perceived_by": CROWD}]}, "messages[0].perceived_by"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_completion_tokens": 101}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"max_tokens": "12"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": 0.5}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": "s" * 513}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"personae": {"secret": []}}, "personae.secret"),
        ({"personae": {"secrets": [{"fact": "x", "known_by": [], "to": ["Ada"]}]}},
         "personae.secrets[0].to"),
        ({"personae": {"secrets": [{"fact": "x"}]}}, "personae.secrets[0].known_by"),
        ({"personae": {"secrets": [{"fact": "x", "known_by": CROWD}]}},
         "personae.secrets[0].known_by"),
        ({"personae": {"secrets": [{"fact": " ", "known_by": []}]}}, "personae.secrets[0].fact"),
        ({"personae": {"secrets": [{"fact": "x", "known_by": ["A\nB"]}]}},
         "personae.secrets[0].known_by[0]"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_its_place(changed: dict[str, Any], param: str) -> None:
    assert refused(**changed)["param"] == param


@pytest.mark.parametrize("name", ["percieved_by", "perceivedBy", "Perceived_By", "received_by"])
def test_who_misspells_who_perceived_a_message_does_not_tell_it_to_everybody(name: str) -> None:
    error = refused(messages=[HELLO, {**HELLO, name: ["Ada"]}])
    assert error["param"] == f"messages[1].{name}"
    assert "perceived_by" in error["message"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"text"', b"[" * 100_000, b'{"model": "\\ud800"}',
     b"{'model': 'x'}"],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    error = refused(raw)
    assert (error["param"], error["code"]) == (None, "invalid_json")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
def test_numbers_are_finite(number: bytes) -> None:
    raw = b'{"model": "Ada", "messages": [{"role": "user", "content": "x"}], "top_p": %s}' % number
    assert refused(raw)["param"] == "top_p"


def test_a_refusal_does_not_say_back_what_was_sent() -> None:
    error = refused(messages=[{"role": "a secret of the user", "content": "x"}])
    assert "secret" not in error["message"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from([*_Body.model_fields, *_NEUTRAL, "user"])


@given(st.dictionaries(FIELDS, ANYTHING, max_size=4), st.lists(ANYTHING, max_size=2))
def test_whatever_is_sent_is_understood_or_refused(
    changed: dict[str, Any], messages: list[Any]
) -> None:
    body = {"model": "Ada", "messages": [HELLO, *messages], **changed}
    refusal = None
    try:
        asked = read_chat(json.dumps(body).encode(), max_tokens=100, default_tokens=50)
        assert 1 <= (asked.wanted.max_tokens or 0) <= 100
    except ApiError as error:
        refusal = error
    assert refusal is None or (refusal.status == 400 and json.dumps(refusal.body))


@given(st.binary(max_size=200))
def test_whatever_bytes_are_sent_are_refused(raw: bytes) -> None:
    with pytest.raises(ApiError):
        read_chat(raw, max_tokens=100, default_tokens=50)
