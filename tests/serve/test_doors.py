"""Who may come in, and what the log keeps of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.applications import Starlette

from personae.models.keys import Key
from personae.serve.app import create_app
from personae.serve.limits import Closing
from tests.serve.scripted import ScriptedEngine, ask, chat, settings

SECRET = "a-long-and-random-token"


def guarded(closing: Closing | None = None) -> Starlette:
    made = settings(host="0.0.0.0", token=Key(SECRET, "T"))
    return create_app(ScriptedEngine(), made, closing)


def open_here() -> Starlette:
    return create_app(ScriptedEngine(), settings())


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_token_lets_in(scheme: str) -> None:
    told = await ask(guarded(), headers={"Authorization": f"{scheme} {SECRET}"})
    assert told.status == 200


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("Bearer wrong", "invalid_api_key"),
        (f"Bearer {SECRET}x", "invalid_api_key"),
        (f"Bearer {SECRET[:-1]}", "invalid_api_key"),
        ("Bearer ", "invalid_api_key"),
        ("Bearer", "invalid_api_key"),
        (f"Basic {SECRET}", "invalid_api_key"),
        (SECRET, "invalid_api_key"),
        ("Bearer \xff\xfe", "invalid_api_key"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/characters"),
     ("GET", "/metrics"), ("GET", "/nowhere")],
)  # fmt: skip
async def test_nothing_else_lets_in_anywhere(
    header: str | None, code: str, method: str, path: str
) -> None:
    engine = ScriptedEngine()
    app = create_app(engine, settings(host="0.0.0.0", token=Key(SECRET, "T")))
    headers = {} if header is None else {"Authorization": header}
    told = await ask(app, method, path, chat("hello"), headers=headers)
    assert (told.status, told.error["code"]) == (401, code)
    assert told.headers["www-authenticate"] == "Bearer"
    assert SECRET not in told.body.decode()
    assert not engine.heard


async def test_the_health_needs_no_token_and_tells_nothing_more() -> None:
    told = await ask(guarded(), path="/health")
    assert (told.status, told.json) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8484", "localhost", "LOCALHOST:1", "[::1]:8484", "127.1.2.3"]
)
async def test_without_a_token_the_server_answers_by_the_names_of_this_machine(host: str) -> None:
    assert (await ask(open_here(), headers={"host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8484", "127.0.0.1.evil.example", "", "[::1", "localhost@evil"],
)
async def test_and_by_no_other_name_that_leads_to_it(host: str) -> None:
    told = await ask(open_here(), headers={"host": host})
    assert (told.status, told.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "x"]
)
async def test_a_page_of_another_site_cannot_use_a_server_without_a_token(origin: str) -> None:
    engine = ScriptedEngine()
    told = await ask(
        create_app(engine, settings()), "POST", "/v1/chat/completions", chat("x"),
        headers={"Origin": origin},
    )  # fmt: skip
    assert (told.status, told.error["code"]) == (403, "origin_not_allowed")
    assert not engine.heard


async def test_no_page_is_allowed_to_read_an_answer() -> None:
    told = await ask(open_here(), headers={"Origin": "http://localhost:3000"})
    assert told.status == 200
    assert not [name for name in told.headers if name.startswith("access-control")]
    preflight = await ask(open_here(), "OPTIONS", headers={"Origin": "http://localhost:3000"})
    assert preflight.status == 405


async def test_with_a_token_the_name_does_not_matter() -> None:
    headers = {"Authorization": f"Bearer {SECRET}", "host": "chat.example"}
    assert (await ask(guarded(), headers=headers)).status == 200


@pytest.mark.parametrize(
    ("host", "query"), [("x/health?", b""), ("x/health#", b""), ("", b""), ("localhost", b"\xff")]
)
async def test_what_is_let_in_is_judged_by_the_path_that_is_routed_alone(
    host: str, query: bytes
) -> None:
    app = guarded()

    async def asking(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "query_string": query}, receive, send)

    told = await ask(asking, headers={"host": host})
    assert (told.status, told.error["code"]) == (401, "missing_api_key")
    assert (await ask(asking, path="/nowhere", headers={"host": host})).status == 401
    assert (await ask(asking, path="/health", headers={"host": host})).status == 200


async def test_a_closing_server_says_so_to_all_who_may_know_it() -> None:
    closing = Closing()
    app = guarded(closing)
    closing.begin()
    told = await ask(app, headers={"Authorization": f"Bearer {SECRET}"})
    assert (told.status, told.error["code"]) == (503, "shutting_down")
    assert (await ask(app)).status == 401
    health = await ask(app, path="/health")
    assert (health.status, health.json) == (503, {"status": "shutting_down"})


async def test_the_log_has_no_token_no_query_no_text_and_no_second_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="personae.serve")
    app = guarded()
    headers = {"Authorization": f"Bearer {SECRET}"}
    await ask(app, "POST", "/v1/chat/completions", chat("my diary [fail:server]"), headers=headers)
    await ask(app, "GET", "/v1/models/a\nb\x1b[31m", headers=headers)
    await ask(app, "GET", "/" + "x" * 5000, headers={"Authorization": "Bearer other-secret"})
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("POST /v1/chat/completions 503 ") for line in lines)
    for line in lines:
        assert "diary" not in line
        assert SECRET not in line
        assert "other-secret" not in line
        assert line.isprintable()
        assert len(line) < 400
