from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from personae.errors import TransportError
from personae.models.keys import Key
from personae.models.providers import backend_for_endpoint
from personae.records import Call, Message
from tests.models.stub import Answer, Request, StubEndpoint, completion, rejection

SECRET = "sk-live-0123456789abcdef/+="


def call() -> Call:
    return Call(role="judge", model="m", messages=(Message(role="user", content="x"),))


async def ask(endpoint: StubEndpoint, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PERSONAE_API_KEY", SECRET)
    backend = backend_for_endpoint(endpoint.model_id)
    try:
        return await backend.complete(call())
    finally:
        await backend.close()


async def test_the_key_travels_in_the_authorization_header_alone(
    endpoint: StubEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(endpoint, monkeypatch)
    request = endpoint.requests[0]
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert [k for k, v in request.headers.items() if SECRET in v] == ["authorization"]
    assert SECRET not in request.path + str(request.body)


async def test_without_a_key_there_is_no_authorization_header(endpoint: StubEndpoint) -> None:
    backend = backend_for_endpoint(endpoint.model_id)
    await backend.complete(call())
    await backend.close()
    assert "authorization" not in endpoint.requests[0].headers


@pytest.mark.parametrize(
    "answer",
    [
        rejection(f"Incorrect API key provided: {SECRET}", status=401),
        rejection(f"seed: your headers were Bearer {SECRET}"),
        Answer(f"<html>{SECRET}</html>".encode(), status=500),
        Answer({"error": SECRET}, status=503),
        Answer(b"", status=302, headers={"Location": f"http://x/?key={SECRET}"}),
        Answer({"error": {"message": "x" * 395 + SECRET}}, status=500),
        Answer({"choices": [{"message": {"content": ""}, "error": {"message": SECRET}}]}),
    ],
)
async def test_a_key_that_an_error_echoes_is_taken_out(
    endpoint: StubEndpoint, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    endpoint.play(answer)
    with pytest.raises(TransportError) as caught:
        await ask(endpoint, monkeypatch)
    shown: BaseException | None = caught.value
    while shown is not None:
        assert SECRET[:12] not in str(shown) + repr(shown)
        assert shown.__suppress_context__ or shown.__context__ is None
        shown = shown.__cause__


async def test_a_key_half_masked_by_the_provider_is_taken_out_too(
    endpoint: StubEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.play(rejection("Incorrect API key provided: sk-live-***cdef.", status=401))
    with pytest.raises(TransportError) as caught:
        await ask(endpoint, monkeypatch)
    assert "cdef" not in str(caught.value)


async def test_a_key_that_an_answer_mirrors_never_reaches_the_reply(
    endpoint: StubEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mirror(request: Request) -> Answer:
        return completion(f"You said {request.headers['authorization']}", reasoning=SECRET)

    endpoint.ask(mirror)
    reply = await ask(endpoint, monkeypatch)
    assert reply.text == "You said Bearer [key]"
    assert SECRET not in reply.to_json()


async def test_a_mirrored_key_is_found_behind_escaped_slashes(
    endpoint: StubEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(completion(f"You said {SECRET}").body).replace("/", "\\/")
    endpoint.play(Answer(body.encode()))
    reply = await ask(endpoint, monkeypatch)
    assert reply.text == "You said [key]"


def test_a_key_shows_its_name_and_nothing_else() -> None:
    key = Key(SECRET, "OPENAI_API_KEY")
    assert repr(key) == str(key) == f"{key}" == "<key from OPENAI_API_KEY>"
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_a_placeholder_is_no_secret() -> None:
    assert Key("EMPTY", "VLLM_API_KEY").scrub("EMPTY response") == "EMPTY response"


async def test_a_backend_shows_no_key(
    endpoint: StubEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSONAE_API_KEY", SECRET)
    backend = backend_for_endpoint(endpoint.model_id)
    assert SECRET not in repr(backend) + repr(vars(backend)) + backend.endpoint
    assert repr(backend) == f"OpenAICompatible('{endpoint.model_id}')"
