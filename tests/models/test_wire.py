from __future__ import annotations

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from personae.errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    RateLimitError,
    RefusedConnectionError,
    ServerError,
    TimeoutExceededError,
    TransportError,
    UsageError,
)
from personae.models.providers import PROVIDERS, Address
from personae.models.wire import OpenAICompatible
from personae.records import Backend, Call, Message, ReplySchema, Sampling
from tests.models.conftest import Connect
from tests.models.stub import Answer, StubEndpoint, completion, rejection

VERDICT = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}


def call(
    text: str = "Who are you?",
    *,
    schema: dict[str, Any] | None = None,
    name: str = "verdict",
    **sampling: Any,
) -> Call:
    return Call(
        role="character",
        model="m",
        messages=(Message(role="system", content="Be brief."), Message(role="user", content=text)),
        sampling=Sampling(**sampling),
        reply_schema=None if schema is None else ReplySchema(name=name, body=schema),
    )


# --- the happy path -------------------------------------------------------------------------------


async def test_a_call_is_one_chat_completion_with_its_messages_and_sampling(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    reply = await connect().complete(
        call(
            "Wer bist du? 你是谁", temperature=0.0, top_p=0.9, max_tokens=50, seed=7, stop=("END",)
        )
    )
    assert endpoint.requests[0].path == "/v1/chat/completions"
    assert endpoint.last == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Wer bist du? 你是谁"},
        ],
        "temperature": 0.0,
        "top_p": 0.9,
        "max_tokens": 50,
        "seed": 7,
        "stop": ["END"],
    }
    assert reply.text == "Hello."
    assert (reply.finish, reply.served_model, reply.notes) == ("stop", "tiny-2026", ())
    assert reply.usage.tokens_in == 7
    assert reply.usage.tokens_out == 2
    assert reply.usage.cached is None
    assert reply.seconds is not None
    assert reply.seconds > 0


async def test_what_the_caller_leaves_open_is_not_sent(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    await connect().complete(call())
    assert set(endpoint.last) == {"model", "messages"}


async def test_the_wire_is_a_backend(connect: Connect, endpoint: StubEndpoint) -> None:
    backend = connect()
    assert isinstance(backend, Backend)
    assert backend.endpoint == f"{endpoint.root}/v1"


async def test_calls_share_connections(endpoint: StubEndpoint, connect: Connect) -> None:
    backend = connect()
    for _ in range(5):
        await backend.complete(call())
    assert endpoint.connections == 1
    await asyncio.gather(*(backend.complete(call()) for _ in range(20)))
    assert len(endpoint.requests) == 25


async def test_a_prompt_of_megabytes_travels_whole(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    text = "long story " * 150_000
    await connect().complete(call(text))
    assert endpoint.last["messages"][1]["content"] == text


async def test_half_a_surrogate_pair_in_a_prompt_is_no_crash(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    await connect().complete(call("broken \ud83d emoji"))
    assert endpoint.last["messages"][1]["content"] == "broken \ud83d emoji"


async def test_a_backend_closes_and_opens_again(endpoint: StubEndpoint, connect: Connect) -> None:
    backend = connect()
    await backend.complete(call())
    await backend.close()
    await backend.close()
    assert (await backend.complete(call())).ok


def test_a_backend_open_in_another_loop_says_so(unused_port: int) -> None:
    from personae.models.providers import backend_for_endpoint

    async def serve_and_ask(backend: OpenAICompatible | None) -> OpenAICompatible:
        stub = StubEndpoint()
        await stub.start()
        backend = backend or backend_for_endpoint(stub.model_id)
        try:
            await backend.complete(call())
        finally:
            await stub.stop()
        return backend

    async def both() -> None:
        backend = await serve_and_ask(None)
        with pytest.raises(UsageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, serve_and_ask(backend))
        await backend.close()

    asyncio.run(both())


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_a_reasoning_field_is_kept_apart(
    endpoint: StubEndpoint, connect: Connect, field: str
) -> None:
    thinking: dict[str, Any] = {field: "Who am I?"}
    endpoint.play(completion("Geralt.", **thinking))
    reply = await connect().complete(call())
    assert (reply.text, reply.reasoning) == ("Geralt.", "Who am I?")


@pytest.mark.parametrize(
    "content",
    ["<think>\nWho am I?\n</think>\n\nGeralt.", "\n<think>Who am I?</think>Geralt.",
     "Who am I?\n</think>\n\nGeralt."],
)  # fmt: skip
async def test_a_leading_think_block_is_kept_apart(
    endpoint: StubEndpoint, connect: Connect, content: str
) -> None:
    endpoint.play(completion(content))
    reply = await connect().complete(call())
    assert (reply.text, reply.reasoning) == ("Geralt.", "Who am I?")


async def test_a_think_tag_inside_the_answer_belongs_to_the_answer(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(completion("I <think> so."))
    reply = await connect().complete(call())
    assert (reply.text, reply.reasoning) == ("I <think> so.", None)


async def test_content_in_parts_is_joined_and_its_thinking_kept_apart(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Ger"},
        {"type": "text", "text": "alt."},
    ]
    endpoint.play(completion(parts))
    reply = await connect().complete(call())
    assert (reply.text, reply.reasoning) == ("Geralt.", "Hm.")


@pytest.mark.parametrize(
    ("content", "finish", "cause"),
    [
        ("<think>Let me see", "length", "truncated"),
        ("", "length", "truncated"),
        (None, "stop", "empty"),
        ("  \n", "stop", "empty"),
        ("<think>All thought.</think>", "stop", "empty"),
        ("<think>never closed", "stop", "empty"),
    ],
)
async def test_no_answer_is_a_failure_with_its_cause(
    endpoint: StubEndpoint, connect: Connect, content: str | None, finish: str, cause: str
) -> None:
    endpoint.play(completion(content, finish=finish))
    reply = await connect().complete(call())
    assert reply.text is None
    assert reply.failure is not None
    assert reply.failure.cause == cause
    assert reply.usage.tokens_out == 2  # it was paid for


async def test_an_answer_cut_short_is_an_answer_that_says_so(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(completion("Once upon a", finish="length"))
    reply = await connect().complete(call())
    assert (reply.text, reply.finish) == ("Once upon a", "length")


async def test_a_refusal_is_an_answer_to_be_judged(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(completion(None, refusal="I can't help with that."))
    reply = await connect().complete(call())
    assert reply.text == "I can't help with that."
    assert reply.notes == ("refusal field",)


async def test_a_withheld_answer_is_an_error_of_its_own(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(completion("", finish="content_filter"))
    with pytest.raises(ContentFilterError):
        await connect().complete(call())


async def test_half_a_surrogate_pair_in_an_answer_is_replaced_and_noted(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(completion("good \ud83d, \ud83d\ude00"))
    reply = await connect().complete(call())
    assert reply.text == "good \ufffd, \U0001f600"
    assert reply.notes == ("broken characters replaced",)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens": 10, "completion_tokens": 5,
             "prompt_tokens_details": {"cached_tokens": 8},
             "completion_tokens_details": {"reasoning_tokens": 3}},
            (10, 5, 8, 3),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 0},
         (10, 5, 0, None)),
        ({"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 4},
         (10, 5, 4, None)),
        ({"prompt_tokens": "10", "completion_tokens": -1, "prompt_tokens_details": None},
         (None, None, None, None)),
        ({"prompt_tokens": True}, (None, None, None, None)),
    ],
)  # fmt: skip
async def test_usage_is_read_under_every_provider_s_names(
    endpoint: StubEndpoint,
    connect: Connect,
    usage: dict[str, Any],
    expected: tuple[int | None, ...],
) -> None:
    endpoint.play(completion("Hi.", usage=usage))
    u = (await connect().complete(call())).usage
    assert (u.tokens_in, u.tokens_out, u.cached, u.reasoning) == expected


async def test_missing_usage_is_unknown_not_zero(endpoint: StubEndpoint, connect: Connect) -> None:
    answer = completion("Hi.").body
    del answer["usage"]
    endpoint.play(Answer(answer))
    u = (await connect().complete(call())).usage
    assert (u.tokens_in, u.tokens_out) == (None, None)


async def test_gemini_s_thinking_is_counted_into_the_tokens_out(
    endpoint: StubEndpoint,
) -> None:
    endpoint.play(
        completion("3", usage={"prompt_tokens": 20, "completion_tokens": 151, "total_tokens": 553})
    )
    dialect = PROVIDERS["gemini"].dialect
    backend = OpenAICompatible(Address("x", "x", f"{endpoint.root}/v1", None, dialect))
    u = (await backend.complete(call())).usage
    await backend.close()
    assert (u.tokens_in, u.tokens_out, u.reasoning) == (20, 533, 382)


async def test_logprobs_come_with_their_alternatives(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    answer = completion("4").body
    tops = [{"token": "4", "logprob": -0.1}, {"token": "5", "logprob": -2.5}]
    answer["choices"][0]["logprobs"] = {
        "content": [{"token": "4", "logprob": -0.1, "bytes": [52], "top_logprobs": tops}]
    }
    endpoint.play(Answer(answer))
    reply = await connect().complete(call(logprobs=2))
    assert (endpoint.last["logprobs"], endpoint.last["top_logprobs"]) == (True, 2)
    assert reply.logprobs is not None
    assert reply.logprobs[0].token == "4"
    assert reply.logprobs[0].top == (("4", -0.1), ("5", -2.5))


async def test_the_older_shape_of_logprobs_is_read_too(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    answer = completion("4.").body
    answer["choices"][0]["logprobs"] = {
        "tokens": ["4", "."], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{"4": -0.1}, None],
    }  # fmt: skip
    endpoint.play(Answer(answer))
    reply = await connect().complete(call(logprobs=1))
    assert reply.logprobs is not None
    assert [(t.token, t.logprob, t.top) for t in reply.logprobs] == [
        ("4", -0.1, (("4", -0.1),)),
        (".", -0.2, ()),
    ]


async def test_logprobs_that_do_not_come_are_noted(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    reply = await connect().complete(call(logprobs=2))
    assert (reply.logprobs, reply.notes) == (None, ("logprobs not returned",))


# --- what an endpoint does not take ---------------------------------------------------------------


def refuses(*parameters: str) -> Any:
    """An endpoint that rejects these parameters, one at a time, as OpenAI words it."""

    def script(request: Any) -> Answer:
        for name in parameters:
            if name in request.body:
                return rejection(f"Unsupported parameter: '{name}'", param=name)
        return completion("Hello.")

    return script


async def test_a_refused_parameter_is_dropped_noted_and_remembered(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.ask(refuses("seed", "temperature"))
    backend = connect()
    reply = await backend.complete(call(temperature=0.5, seed=3, top_p=0.9))
    assert reply.text == "Hello."
    assert reply.notes == ("temperature dropped", "seed dropped")
    assert endpoint.last["top_p"] == 0.9
    sent = len(endpoint.requests)
    assert sent == 3
    again = await backend.complete(call(temperature=0.5, seed=3))
    assert len(endpoint.requests) == sent + 1
    assert again.notes == reply.notes


async def test_concurrent_calls_learn_both_of_two_lessons(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.ask(refuses("seed", "temperature"))
    backend = connect()
    await asyncio.gather(
        *(backend.complete(call(seed=1)) for _ in range(4)),
        *(backend.complete(call(temperature=0.1)) for _ in range(4)),
    )
    before = len(endpoint.requests)
    await backend.complete(call(seed=1, temperature=0.1))
    assert len(endpoint.requests) == before + 1


@pytest.mark.parametrize(
    ("message", "dropped"),
    [
        ('Invalid JSON payload received. Unknown name "seed": Cannot find field.', "seed"),
        ("`temperature` and `top_p` cannot both be specified for this model.", "top_p"),
        ("This model does not support logprobs", "logprobs"),
    ],
)
async def test_a_parameter_named_in_the_text_alone_is_dropped(
    endpoint: StubEndpoint, connect: Connect, message: str, dropped: str
) -> None:
    endpoint.ask(lambda r: rejection(message) if dropped in r.body else completion("Hello."))
    reply = await connect().complete(call(temperature=0.5, top_p=0.5, seed=3, logprobs=1))
    assert f"{dropped} dropped" in reply.notes
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "detail",
    [
        [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}],
    ],
)
@pytest.mark.parametrize("mistral", [False, True])
async def test_a_422_of_fastapi_names_its_parameter(
    endpoint: StubEndpoint, connect: Connect, detail: Any, mistral: bool
) -> None:
    body: dict[str, Any] = {"detail": detail}
    if mistral:  # JSON inside JSON, mistralai/platform-docs-public#7
        body = {"object": "error", "message": json.dumps(body), "param": None, "code": "1000"}
    endpoint.ask(lambda r: Answer(body, status=422) if "seed" in r.body else completion("Hello."))
    reply = await connect().complete(call(seed=3))
    assert reply.notes == ("seed dropped",)


async def test_max_tokens_goes_by_its_newer_name_where_the_endpoint_asks_for_it(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.ask(
        lambda r: (
            rejection(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                param="max_tokens",
            )
            if "max_tokens" in r.body
            else completion("Hello.")
        )
    )
    reply = await connect().complete(call(max_tokens=40))
    assert endpoint.last["max_completion_tokens"] == 40
    assert reply.notes == ()


async def test_too_many_max_tokens_are_the_caller_s_to_mend(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(
        rejection(
            "max_tokens is too large: 99999. This model supports at most 16384 completion tokens",
            param="max_tokens",
        )
    )
    with pytest.raises(BadRequestError, match="99999"):
        await connect().complete(call(max_tokens=99999))
    assert len(endpoint.requests) == 1


async def test_a_prompt_that_mentions_a_parameter_loses_none_for_it(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(
        rejection("Invalid content: 'what temperature has the seed?'", param="messages[1].content")
    )
    backend = connect()
    with pytest.raises(BadRequestError):
        await backend.complete(call(temperature=0.5, seed=3))
    assert len(endpoint.requests) == 1


async def test_what_did_not_help_is_not_remembered(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(
        rejection("The seed of this prompt is evil."), rejection("Evil."), completion(".")
    )
    backend = connect()
    with pytest.raises(BadRequestError):
        await backend.complete(call(seed=3))
    assert (await backend.complete(call(seed=3))).notes == ()
    assert endpoint.last["seed"] == 3


async def test_an_endpoint_that_refuses_everything_is_not_asked_for_ever(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(rejection("temperature top_p seed stop logprobs max_tokens response_format"))
    with pytest.raises(BadRequestError):
        await connect().complete(
            call(temperature=1, top_p=1, seed=1, stop=("x",), logprobs=1, max_tokens=1,
                 schema=VERDICT)
        )  # fmt: skip
    assert len(endpoint.requests) <= 10


# --- structured replies ---------------------------------------------------------------------------


async def test_a_schema_is_asked_for(endpoint: StubEndpoint, connect: Connect) -> None:
    backend = connect()
    await backend.complete(call(schema=VERDICT))
    assert endpoint.last["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "verdict", "schema": VERDICT, "strict": True},
    }
    assert backend.capabilities.structured == "schema"


async def test_a_schema_outside_the_strict_subset_is_not_called_strict(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    loose = {"type": "object", "properties": {"score": {"type": "integer"}}}
    await connect().complete(call(schema={"type": "array", "items": loose}))
    assert endpoint.last["response_format"]["json_schema"]["strict"] is False


async def test_a_refused_schema_weakens_to_json_then_to_nothing(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    def script(request: Any) -> Answer:
        kind = request.body.get("response_format", {}).get("type")
        if kind == "json_schema":
            return rejection("This response_format type is unavailable now")
        if kind == "json_object":
            return rejection("response_format json_object: unsupported", param="response_format")
        return completion("{}")

    endpoint.ask(script)
    backend = connect()
    reply = await backend.complete(call(schema=VERDICT))
    assert reply.notes == ("schema dropped",)
    assert backend.capabilities.structured == "none"
    await backend.complete(call(schema=VERDICT, name="other"))
    assert len(endpoint.requests) == 4


async def test_limits_that_a_strict_mode_refuses_are_left_out_of_the_schema(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    limited = {
        "type": "object",
        "properties": {
            "minLength": {"type": "string", "minLength": 1, "maxLength": 9},
            "tags": {"type": "array", "items": {"type": "integer", "maximum": 5}, "maxItems": 3},
        },
        "required": ["minLength", "tags"],
        "additionalProperties": False,
    }

    def script(request: Any) -> Answer:
        spec = request.body["response_format"]["json_schema"]
        if "maxLength" in json.dumps(spec["schema"]):
            return rejection(
                "Invalid schema for response_format 'verdict': In context=('properties', "
                "'minLength'), 'minLength' is not permitted.",
                param="response_format",
            )
        return completion("{}")

    endpoint.ask(script)
    backend = connect()
    reply = await backend.complete(call(schema=limited))
    assert reply.notes == ("schema limits dropped",)
    sent = endpoint.last["response_format"]["json_schema"]
    assert sent["strict"] is True
    assert sent["schema"] == {
        "type": "object",
        "properties": {
            "minLength": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["minLength", "tags"],
        "additionalProperties": False,
    }
    assert backend.capabilities.structured == "schema"
    await backend.complete(call(schema=limited))
    assert len(endpoint.requests) == 3
    assert (await backend.complete(call(schema=VERDICT))).notes == ()


async def test_one_invalid_schema_does_not_weaken_the_others(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    def script(request: Any) -> Answer:
        spec = request.body["response_format"]
        if spec["type"] == "json_schema" and spec["json_schema"]["name"] == "odd":
            return rejection("Invalid schema for response_format 'odd'", param="response_format")
        return completion("{}")

    endpoint.ask(script)
    backend = connect()
    odd = await backend.complete(call(schema=VERDICT, name="odd"))
    assert odd.notes == ("schema weakened to json",)
    good = await backend.complete(call(schema=VERDICT, name="verdict"))
    assert good.notes == ()
    assert backend.capabilities.structured == "schema"


# --- errors ---------------------------------------------------------------------------------------


async def fails(backend: OpenAICompatible, **kwargs: Any) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await backend.complete(call(**kwargs))
    return caught.value


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (rejection("slow down", status=429), RateLimitError),
        (rejection("boom", status=500), ServerError),
        (rejection("overloaded", status=529), ServerError),
        (Answer(b"<html>502</html>", status=502), ServerError),
        (rejection("bad key", status=401), AuthenticationError),
        (rejection("forbidden", status=403), AuthenticationError),
        (rejection("Insufficient Balance", status=402), AuthenticationError),
        (rejection("wrong", status=400), BadRequestError),
        (rejection("no such model", status=404), BadRequestError),
        (rejection("wrong", status=422), BadRequestError),
        (rejection("x", code="context_length_exceeded"), ContextLengthError),
        (rejection("This model's maximum context length is 4096 tokens."), ContextLengthError),
        (rejection("'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's "
                   "maximum context length is 4096 tokens"), ContextLengthError),
        (rejection("prompt is too long: 210000 tokens > 200000 maximum"), ContextLengthError),
        (Answer(b"", status=413), ContextLengthError),
        (rejection("Limit 6000 tokens per minute", status=413), RateLimitError),
        (rejection("x", code="content_filter"), ContentFilterError),
        (rejection("Content Exists Risk"), ContentFilterError),
        (rejection("flagged", status=403, metadata={"reasons": ["violence"]}), ContentFilterError),
        (rejection("timed out", status=408), TimeoutExceededError),
    ],
)  # fmt: skip
async def test_an_unhappy_status_is_the_error_it_means(
    endpoint: StubEndpoint, connect: Connect, answer: Answer, kind: type[TransportError]
) -> None:
    endpoint.play(answer)
    error = await fails(connect())
    assert isinstance(error, kind)
    assert len(endpoint.requests) == 1
    assert endpoint.root in str(error)


async def test_where_something_is_not_found_the_model_s_name_is_called_in_question(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(rejection("Not Found", status=404))
    assert "is the model 'tiny' known there?" in str(await fails(connect()))


@pytest.mark.parametrize(
    ("answer", "retryable", "fatal"),
    [
        (rejection("slow down", status=429), True, False),
        (rejection("You exceeded your current quota", status=429, code="insufficient_quota"),
         False, True),
        (rejection("boom", status=500), True, False),
        (rejection("bad key", status=401), False, True),
        (rejection("no such model", status=404), False, True),
        (rejection("wrong", status=400), False, False),
    ],
)  # fmt: skip
async def test_the_error_says_whether_to_try_again(
    endpoint: StubEndpoint, connect: Connect, answer: Answer, retryable: bool, fatal: bool
) -> None:
    endpoint.play(answer)
    error = await fails(connect())
    assert (error.retryable, error.fatal) == (retryable, fatal)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "2.5"}, 2.5),
        ({"Retry-After": "20", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "1e300"}, 86400.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
async def test_retry_after_is_read_in_seconds(
    endpoint: StubEndpoint, connect: Connect, headers: dict[str, str], expected: float | None
) -> None:
    endpoint.play(Answer({"error": "slow"}, status=429, headers=headers))
    error = await fails(connect())
    assert isinstance(error, RateLimitError)
    assert error.retry_after == expected


async def test_retry_after_may_be_a_date(endpoint: StubEndpoint, connect: Connect) -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    endpoint.play(Answer({}, status=429, headers={"Retry-After": when}))
    error = await fails(connect())
    assert isinstance(error, RateLimitError)
    assert error.retry_after == pytest.approx(100, abs=5)


async def test_google_writes_its_retry_delay_into_the_body(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    error_body = {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota, please check your plan.",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}],
    }
    endpoint.play(Answer([{"error": error_body}], status=429))
    error = await fails(connect())
    assert isinstance(error, RateLimitError)
    assert error.retry_after == 34


async def test_a_503_that_names_a_time_is_a_rate_limit(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(Answer({}, status=503, headers={"Retry-After": "3"}))
    assert isinstance(await fails(connect()), RateLimitError)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(completion("Hello.").body, cut=40),
        Answer(completion("Hello.").body, cut=0),
        Answer(json.dumps(completion("Hello.").body).encode()[:60]),
        Answer(b""),
        Answer(b"<html><body>Bad gateway</body></html>", headers={"Content-Type": "text/html"}),
        Answer(b"[1, 2]"),
        Answer(b"\xff\xfe{}"),
        Answer(b"[" * 100_000),
        Answer({"choices": []}),
        Answer({"choices": [{"message": None}]}),
        Answer({"choices": [17]}),
        Answer({"error": {"message": "upstream failed", "code": 502}}),
        Answer({"choices": [{"message": {"content": ""}, "error": {"message": "x"}}]}),
        Answer({"error": "odd"}),
    ],
)
async def test_a_broken_answer_is_a_server_error_worth_another_try(
    endpoint: StubEndpoint, connect: Connect, answer: Answer
) -> None:
    endpoint.play(answer)
    error = await fails(connect())
    assert type(error) is ServerError
    assert error.retryable


async def test_an_error_inside_a_200_keeps_its_own_class(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(Answer({"error": {"message": "slow down", "code": 429}}))
    assert isinstance(await fails(connect()), RateLimitError)


async def test_malformed_logprobs_are_a_server_error(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    answer = completion("4").body
    answer["choices"][0]["logprobs"] = {"content": [{"token": "4", "logprob": float("-inf")}]}
    endpoint.play(Answer(answer))
    assert isinstance(await fails(connect(), logprobs=1), ServerError)


async def test_a_reply_beyond_the_size_cap_is_refused(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(completion("x" * 3_000_000))
    backend = connect()
    backend._max_body = 1_000_000
    assert isinstance(await fails(backend), ServerError)


async def test_nobody_listening_is_a_refused_connection(connect: Connect, unused_port: int) -> None:
    for host in ("127.0.0.1", "localhost"):
        error = await fails(connect(f"http://{host}:{unused_port}/v1#m"))
        assert isinstance(error, RefusedConnectionError)
        assert error.fatal


async def test_an_unknown_host_is_a_refused_connection(connect: Connect) -> None:
    assert isinstance(await fails(connect("http://no.such.invalid/v1#m")), RefusedConnectionError)


async def test_an_answer_that_does_not_come_is_a_timeout(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(Answer(hang=True))
    error = await fails(connect(timeout=0.1))
    assert isinstance(error, TimeoutExceededError)
    assert "0.1 s" in str(error)


async def test_a_redirect_is_not_followed(endpoint: StubEndpoint, connect: Connect) -> None:
    endpoint.play(Answer(b"", status=307, headers={"Location": "http://elsewhere.invalid/v1"}))
    error = await fails(connect())
    assert isinstance(error, BadRequestError)
    assert "http://elsewhere.invalid/v1" in str(error)


async def test_https_spoken_to_an_http_server_is_a_clear_error(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    error = await fails(connect(endpoint.model_id.replace("http:", "https:")))
    assert isinstance(error, (ServerError, RefusedConnectionError))
