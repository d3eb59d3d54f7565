"""Scores of given text: the wire, and the search for the message inside the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import BadRequestError, ServerError, UnsupportedError
from personae.models.answers import message_start
from personae.records import Call, Message, Sampling
from tests.models.conftest import Connect
from tests.models.stub import (
    Answer,
    PromptScorer,
    StubEndpoint,
    completion,
    fragments,
    pieces,
    rejection,
    words,
)


def score(text: str, **sampling: Any) -> Call:
    return Call(
        role="judge",
        model="m",
        kind="score",
        messages=(
            Message(role="system", content="You are Geralt."),
            Message(role="user", content="Who are you?"),
            Message(role="assistant", content=text),
        ),
        sampling=Sampling(**sampling),
    )


@pytest.mark.parametrize("ids", [True, False])
async def test_exactly_the_tokens_of_the_last_message_are_scored(
    endpoint: StubEndpoint, connect: Connect, ids: bool
) -> None:
    endpoint.ask(PromptScorer(words, ids=ids))
    backend = connect()
    assert backend.capabilities.score
    reply = await backend.complete(score("Geralt of Rivia."))
    assert reply.logprobs is not None
    assert [t.token for t in reply.logprobs] == ["Geralt", " of", " Rivia."]
    # <|system|> You are Geralt. <|end|> <|user|> Who are you? <|end|> <|assistant|> ...: place 11.
    assert [t.logprob for t in reply.logprobs] == [-1.1, -1.2, -1.3]
    assert reply.logprobs[0].top == ()
    assert reply.usage.tokens_in == 7


async def test_alternatives_come_when_they_are_asked_for(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.ask(PromptScorer(words))
    reply = await connect().complete(score("Geralt", logprobs=1))
    assert endpoint.last["prompt_logprobs"] == 1
    assert reply.logprobs is not None
    assert reply.logprobs[0].top == (("likely", -0.01),)


async def test_what_a_template_puts_before_the_message_is_not_scored(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.ask(PromptScorer(pieces, before_answer="<think>\n\n</think>\n\n"))
    reply = await connect().complete(score("\nHm. Yes. "))
    assert reply.logprobs is not None
    assert "".join(t.token for t in reply.logprobs) == "\nHm. Yes. "


@pytest.mark.parametrize("style", ["vllm", "replacement"])
@pytest.mark.parametrize("text", ["我是杰洛特", "杰", "😀我", "a杰😀杰b", "杰😀"])
async def test_characters_split_over_tokens_are_scored_whole(
    endpoint: StubEndpoint, connect: Connect, style: str, text: str
) -> None:
    def tokenize(t: str) -> list[str]:
        return [half for char in t for half in ([char, char] if char in "杰😀" else [char])]

    def decoded(tokens: list[str]) -> list[str]:
        shown: list[str] = []
        skip = False
        for token in tokens:
            if skip:
                skip = False
            elif token in ("杰", "😀"):
                shown += fragments(token, "杰😀", style=style)
                skip = True
            else:
                shown.append(token)
        return shown

    endpoint.ask(PromptScorer(tokenize, decoded=decoded))
    reply = await connect().complete(score(text))
    assert reply.logprobs is not None
    assert len(reply.logprobs) == len(tokenize(text))


async def test_a_template_that_changes_the_message_is_unsupported_not_guessed(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.ask(PromptScorer(lambda t: pieces(t.upper())))
    with pytest.raises(UnsupportedError, match="template"):
        await connect().complete(score("Geralt"))


async def test_an_endpoint_without_prompt_logprobs_is_unsupported_and_not_asked_again(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    backend = connect()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="embedded model"):
            await backend.complete(score("Geralt"))
    assert len(endpoint.requests) == 1
    assert not backend.capabilities.score


async def test_an_endpoint_that_rejects_the_question_is_unsupported(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(rejection("Unrecognized request argument supplied: add_generation_prompt"))
    backend = connect()
    with pytest.raises(UnsupportedError):
        await backend.complete(score("Geralt"))
    assert not backend.capabilities.score


async def test_one_message_that_a_template_cannot_leave_open_condemns_no_other(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(
        rejection("continue_final_message is set but the final message does not appear in the chat")
    )
    backend = connect()
    with pytest.raises(BadRequestError):
        await backend.complete(score("Geralt"))
    assert backend.capabilities.score


async def test_a_provider_known_not_to_score_is_not_asked(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "gsk-not-a-key")
    backend = connect("groq/llama")
    assert backend.capabilities.score is False
    with pytest.raises(UnsupportedError, match="embedded model"):
        await backend.complete(score("Hi"))


async def test_a_token_that_the_model_rules_out_is_a_failure_not_a_number(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    answer = completion("x").body
    own = {"logprob": -9999.0, "rank": 2, "decoded_token": "Hi"}
    endpoint.play(Answer(answer | {"prompt_logprobs": [None, {"5": own}]}))
    reply = await connect().complete(score("Hi"))
    assert reply.failure is not None
    assert reply.failure.cause == "zero_probability"


async def test_an_empty_message_has_nothing_to_score(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.ask(PromptScorer(words))
    reply = await connect().complete(score(""))
    assert reply.failure is not None
    assert reply.failure.cause == "empty"


async def test_malformed_prompt_logprobs_are_a_server_error(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(Answer(completion("x").body | {"prompt_logprobs": [None, {"5": {"x": 1}}]}))
    with pytest.raises(ServerError):
        await connect().complete(score("Hi"))


# --- message_start --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "content", "start"),
    [
        ([None, "<a>", "Hi", "!"], "Hi!", 2),
        ([None, "<a>", "\n\n", "Hi", "!"], "Hi!", 3),
        ([None, "<a>", "\n", "Hi"], "\nHi", 2),
        ([None, "<a>", " Hi"], "Hi", 2),  # SentencePiece's blank
        ([None, "<a>", "Hi"], " Hi  ", 2),  # trimmed by the template
        ([None, "Hi"], "Hi", 1),
        (["Hi"], "Hi", 0),
        ([None, "<a>", "Hi", "!", "<|end|>"], "Hi!", None),
        ([None, "<a>", "XHi"], "Hi", None),
        ([None, "<a>", "Ho"], "Hi", None),
        ([None], "Hi", None),
        ([], "Hi", None),
        ([""], "Hi", None),
        (["", "Hi"], "XHi", None),
        ([None, "<a>", "", "杰", "x"], "杰x", 2),
        ([None, "<a>", "\ufffd", "\ufffd", "\ufffd", "x"], "杰x", 2),
        ([None, "<a>", "a", "\ufffd", "\ufffd"], "a杰", 2),
        ([None, "<a>", "我", "\ufffd", "\ufffd"], "我杰", 2),
        ([None, "<a>", "\ufffd", "\ufffd"], "a", None),
    ],
)
def test_the_start_of_the_message_is_found_by_matching_it_from_its_end(
    tokens: list[str | None], content: str, start: int | None
) -> None:
    assert message_start(tokens, content) == start


@given(
    st.lists(
        st.text(min_size=1, max_size=4).filter(lambda t: "\ufffd" not in t), min_size=1
    ).filter(lambda parts: bool("".join(parts).strip()))
)
def test_any_cut_of_any_message_is_found_after_a_template(parts: list[str]) -> None:
    tokens = [None, "<|assistant|>", *parts]
    assert message_start(tokens, "".join(parts)) == 2


def test_a_long_message_of_fragments_is_matched_in_reasonable_time() -> None:
    tokens: list[str | None] = [None, "<a>", *["\ufffd"] * 3000]
    assert message_start(tokens, "杰" * 1000) == 2
