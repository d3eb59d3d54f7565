"""Answers in OpenAI's words; the client's own types are the independent reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from personae.records import TokenLogprob
from personae.serve.engine import Finished, ServedCharacter
from personae.serve.replies import DONE, Wording, encode, event, model_entry

TOKENS = (
    TokenLogprob(token="Good", logprob=-0.25, top=(("Good", -0.25), ("Bad", -1.5))),
    TokenLogprob(token="\ufffd", logprob=-1.0),
)
COUNTED = Finished("Good 夜", "stop", tokens_in=5, tokens_out=2, cached=3, logprobs=TOKENS)


def documents(events: bytes) -> list[Any]:
    lines = events.removesuffix(DONE).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_a_whole_answer_is_what_the_client_reads() -> None:
    said = ChatCompletion.model_validate(Wording("Ada").whole(COUNTED), strict=True)
    assert said.model == "Ada"
    assert said.id.startswith("chatcmpl-")
    assert said.object == "chat.completion"
    [choice] = said.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", "Good 夜")
    usage = said.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 2, 7)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 3


def test_log_probabilities_have_their_alternatives_and_bytes_where_these_are_known() -> None:
    said = ChatCompletion.model_validate(Wording("Ada").whole(COUNTED), strict=True)
    assert said.choices[0].logprobs is not None
    first, second = said.choices[0].logprobs.content or []
    assert (first.token, first.logprob, first.bytes) == ("Good", -0.25, list(b"Good"))
    assert [(t.token, t.logprob) for t in first.top_logprobs] == [("Good", -0.25), ("Bad", -1.5)]
    assert second.bytes is None


def test_tokens_that_nobody_counted_are_not_zero() -> None:
    assert Wording("Ada").whole(Finished("x", "stop"))["usage"] is None
    assert Wording("Ada").whole(Finished("x", "stop", tokens_in=3))["usage"] is None
    counted = Wording("Ada").whole(Finished("x", "stop", tokens_in=3, tokens_out=0))["usage"]
    assert counted == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}


def test_a_stream_says_who_speaks_then_the_pieces_then_how_it_ended() -> None:
    wording = Wording("Ada")
    events = wording.first() + wording.piece("Good ") + wording.piece("夜") + wording.last(COUNTED)
    assert events.endswith(DONE)
    chunks = [ChatCompletionChunk.model_validate(d, strict=True) for d in documents(events)]
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1
    assert [c.choices[0].delta.role for c in chunks] == ["assistant", None, None, None]
    assert [c.choices[0].delta.content for c in chunks] == ["", "Good ", "夜", None]
    assert [c.choices[0].finish_reason for c in chunks] == [None, None, None, "stop"]
    assert chunks[-1].choices[0].logprobs is not None
    assert all("usage" not in d for d in documents(events))


def test_the_count_of_a_stream_has_a_chunk_of_its_own_without_a_choice() -> None:
    wording = Wording("Ada", usage=True)
    events = documents(wording.first() + wording.piece("x") + wording.last(COUNTED))
    assert [e["usage"] is None for e in events] == [True, True, True, False]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == 7


@pytest.mark.parametrize("text", ["夜", "a\nb\r\n\u2028", 'data: "x"\n\n', "\ud83d", ""])
def test_a_text_can_neither_break_an_event_nor_the_encoding(text: str) -> None:
    raw = event({"text": text})
    assert raw.startswith(b"data: ")
    assert raw.endswith(b"\n\n")
    assert b"\n" not in raw[:-2]
    assert b"\r" not in raw
    assert json.loads(raw.removeprefix(b"data: ")) == {"text": text}


def test_text_is_sent_as_utf8_and_not_escaped() -> None:
    assert encode({"a": "夜"}) == '{"a":"夜"}'.encode()


def test_two_answers_have_two_ids() -> None:
    assert Wording("Ada").id != Wording("Ada").id


def test_a_character_is_a_model_that_says_more_of_itself() -> None:
    entry = model_entry(ServedCharacter("Ada Byron", {"how": "block"}), 1_700_000_000)
    model = Model.model_validate(entry, strict=True)
    assert (model.id, model.created, model.owned_by) == ("Ada Byron", 1_700_000_000, "personae")
    assert entry["personae"] == {"how": "block"}
