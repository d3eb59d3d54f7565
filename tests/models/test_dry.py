"""A dry run's placeholders meet every schema that a pipeline asks for."""

import asyncio

import pytest

from personae.models import DryBackend
from personae.prompts import schemas
from personae.records import Backend, Call, Message
from personae.records.structured import parse_structured

SCHEMAS = [
    schemas.verdict_schema(),
    schemas.environments_schema(["a", "b", "c"], 2),
    schemas.questions_schema(3, ["a", "b"]),
    schemas.exemplars_schema(),
    schemas.personas_schema(4),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=[s.name for s in SCHEMAS])
async def test_a_placeholder_meets_its_schema(schema):
    call = Call(
        role="x", model="m", messages=(Message(role="user", content="?"),), reply_schema=schema
    )
    reply = await DryBackend().complete(call)
    assert reply.text is not None
    parse_structured(reply.text, schema)


def test_it_is_a_backend():
    assert isinstance(DryBackend(), Backend)


async def test_others_are_heard_between_two_replies() -> None:
    backend = DryBackend()
    heard: list[str] = []
    call = Call(role="judge", model="m", messages=(Message(role="user", content="x"),))
    asyncio.get_running_loop().call_soon(heard.append, "Ctrl-C")
    await backend.complete(call)
    assert heard == ["Ctrl-C"]
