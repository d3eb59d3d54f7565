"""The scripted model answers through the real interface."""

import math
from typing import Any

import pytest

from personae.errors import RateLimitError, ServerError, TransportError
from personae.models import ScriptedModel
from personae.prompts.schemas import verdict_schema
from personae.records import Backend, Call, Message, Sampling


def call(**more) -> Call:
    return Call(role="judge", model="m", messages=(Message(role="user", content="hi"),), **more)


def always(given: Any) -> ScriptedModel:
    return ScriptedModel(lambda _call: given)


def test_it_is_a_backend():
    assert isinstance(ScriptedModel(lambda _call: "x"), Backend)


async def test_the_script_sees_what_the_contract_says():
    seen = []

    def reply(given):
        seen.append(given)
        return "x"

    asked = call(
        reply_schema=verdict_schema(), sampling=Sampling(temperature=0), repeat=2, meta={"a": "b"}
    )
    await ScriptedModel(reply).complete(asked)
    (given,) = seen
    assert given["schema"] == verdict_schema().body
    assert given["messages"] == [{"role": "user", "content": "hi"}]
    assert (given["role"], given["model"], given["repeat"]) == ("judge", "m", 2)
    assert given["meta"] == {"a": "b"}
    assert given["sampling"]["temperature"] == 0
    assert given["kind"] == "generate"


async def test_a_dict_is_a_structured_reply_and_async_scripts_are_awaited():
    async def reply(_given):
        return {"justification": "x", "score": 3}

    found = await ScriptedModel(reply).complete(call())
    assert found.text == '{"justification": "x", "score": 3}'


@pytest.mark.parametrize("error", [OSError("cable"), SystemExit("cable")])
async def test_an_exception_is_a_transport_failure(error):
    def reply(_given):
        raise error

    with pytest.raises(ServerError, match=f"{type(error).__name__}: cable"):
        await ScriptedModel(reply).complete(call())


async def test_a_transport_error_is_taken_as_it_is():
    def reply(_given):
        raise RateLimitError("slow", retry_after=3)

    with pytest.raises(RateLimitError) as error:
        await ScriptedModel(reply).complete(call())
    assert error.value.retry_after == 3


@pytest.mark.parametrize("given", [None, 7, ["x"]])
async def test_what_is_not_a_reply_is_a_failure(given):
    with pytest.raises(TransportError, match="not str or dict"):
        await ScriptedModel(lambda _call: given).complete(call())


async def test_a_score_call_wants_logprobs():
    asked = Call(
        role="lift", model="m", kind="score", messages=(Message(role="assistant", content="a"),)
    )
    found = await ScriptedModel(lambda _call: {"logprobs": [-1, -2.5]}).complete(asked)
    assert found.logprobs is not None
    assert [t.logprob for t in found.logprobs] == [-1.0, -2.5]
    for given in ("text", {"logprobs": [math.nan]}, {"logprobs": [-math.inf]}):
        with pytest.raises(TransportError, match="logprobs"):
            await always(given).complete(asked)


async def test_a_dict_that_is_no_json_is_a_failure_and_no_traceback():
    with pytest.raises(TransportError, match="no JSON"):
        await ScriptedModel(lambda _call: {"a": {1}}).complete(call())


@pytest.mark.parametrize("given", ["", " \n"])
async def test_silence_is_no_answer_as_it_is_none_on_the_wire(given):
    found = await ScriptedModel(lambda _call: given).complete(call())
    assert found.text is None
    assert found.failure is not None
    assert found.failure.cause == "empty"


async def test_half_of_a_surrogate_pair_becomes_a_replacement_character():
    found = await ScriptedModel(lambda _call: "a\ud800b").complete(call())
    assert found.text == "a\ufffdb"
