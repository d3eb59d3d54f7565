"""The routes, called as a server calls them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from personae.records import Secret
from personae.serve.app import create_app
from personae.serve.engine import ChatMessage
from personae.serve.limits import Closing
from tests.serve.scripted import NAMES, ScriptedEngine, Told, ask, chat, settings

PATH = "/v1/chat/completions"


class Here:
    """An app over a scripted engine."""

    def __init__(self, **changed: Any) -> None:
        self.engine = ScriptedEngine()
        self.closing = Closing()
        self.app = create_app(self.engine, settings(**changed), self.closing)

    async def get(self, path: str) -> Told:
        return await ask(self.app, "GET", path)

    async def post(self, body: Any, path: str = PATH, **more: Any) -> Told:
        return await ask(self.app, "POST", path, body, **more)

    async def count(self, name: str, **labels: str) -> float | None:
        page = (await self.get("/metrics")).body.decode()
        return next(
            (s.value for f in text_string_to_metric_families(page) for s in f.samples
             if s.name == name and s.labels == labels),
            None,
        )  # fmt: skip

    async def idle(self) -> None:
        """Nothing is under way, for the engine, for the server or in the loop."""
        assert self.engine.busy() == 0
        assert await self.count("personae_answers_under_way") == 0
        assert await self.count("personae_answers_waiting") == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def until(true: Any) -> None:
    """Let others run until something is so; the test's own time limit ends what never is."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0)


def scope_of() -> dict[str, Any]:
    return {
        "type": "http", "method": "POST", "path": PATH, "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "asgi": {"version": "3.0"},
    }  # fmt: skip


# Models ----------------------------------------------------------------------------------------


async def test_every_character_is_a_model_and_auto_is_one_too() -> None:
    told = await Here().get("/v1/models")
    assert told.json["object"] == "list"
    assert [m["id"] for m in told.json["data"]] == [*NAMES, "auto"]
    assert told.json["data"][0]["personae"] == {"aliases": ["The Countess"]}


@pytest.mark.parametrize("name", [*NAMES, "auto"])
async def test_one_model_can_be_asked_for(name: str) -> None:
    told = await Here().get(f"/v1/models/{name}")
    assert (told.status, told.json["id"]) == (200, name)


@pytest.mark.parametrize("name", ["", "Nemo", "a/b", "..", "Ada Byron/x"])
async def test_a_model_that_is_not_there_is_not_found(name: str) -> None:
    told = await Here().get(f"/v1/models/{name}")
    assert (told.status, told.error["code"], told.error["param"]) == (
        404, "model_not_found", "model",
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["ada byron", "ADA BYRON", "the countess", "Ada_Byron", "ａｄａ　ｂｙｒｏｎ"]
)
async def test_case_does_not_count_and_an_alias_will_do(name: str) -> None:
    here = Here()
    assert (await here.get(f"/v1/models/{name}")).json["id"] == "Ada Byron"
    assert (await here.post(chat("hello", name))).json["model"] == "Ada Byron"


async def test_a_name_that_two_have_is_nobodys() -> None:
    here = Here()
    here.engine.names = ["Wu Song", "wu song"]
    await here.post({}, "/v1/characters")
    assert (await here.post(chat("hello", "WU SONG"))).status == 404
    assert (await here.post(chat("hello", "wu song"))).json["model"] == "wu song"


async def test_a_character_that_the_cast_has_gained_can_be_asked_after_a_refresh() -> None:
    here = Here()
    here.engine.newcomers = ["Lin Chong"]
    assert (await here.post(chat("hello", "Lin Chong"))).status == 404
    told = await here.post({}, "/v1/characters")
    assert (told.status, told.json["added"]) == (200, ["Lin Chong"])
    assert told.json["characters"] == [*NAMES, "Lin Chong"]
    assert (await here.post(chat("hello", "Lin Chong"))).json["model"] == "Lin Chong"
    assert (await here.post({}, "/v1/characters")).json["added"] == []


async def test_a_damaged_cast_is_not_taken_in_and_its_path_is_not_told() -> None:
    here = Here()
    here.engine.damaged = True
    told = await here.post({"path": "/etc"}, "/v1/characters")
    assert (told.status, told.error["code"]) == (409, "cast_unreadable")
    assert "is not a manifest" in told.error["message"]
    assert "/srv" not in told.body.decode()
    assert (await here.post(chat("still here"))).status == 200


async def test_who_came_in_beside_somebody_who_could_not_can_be_asked() -> None:
    here = Here()
    here.engine.newcomers, here.engine.damaged = ["Lin Chong"], True
    assert (await here.post({}, "/v1/characters")).status == 409
    assert (await here.post(chat("hello", "Lin Chong"))).status == 200


async def test_who_refreshes_all_the_time_is_turned_away() -> None:
    class Slow(ScriptedEngine):
        async def refresh(self) -> tuple[str, ...]:
            await self.released.wait()
            return await super().refresh()

    engine = Slow()
    app = create_app(engine, settings())
    asking = [asyncio.ensure_future(ask(app, "POST", "/v1/characters", {})) for _ in range(30)]
    await until(lambda: any(one.done() for one in asking))
    engine.released.set()
    told = [(await one).status for one in asking]
    assert (told.count(200), told.count(429)) == (9, 21)


# Answers ---------------------------------------------------------------------------------------


async def test_an_answer_names_who_gave_it_also_where_nobody_was_named() -> None:
    told = await Here().post(chat("good evening", "auto"))
    assert (told.status, told.headers["content-type"]) == (200, "application/json")
    assert told.json["model"] == NAMES[0]
    assert told.json["choices"][0]["message"]["content"] == "good evening "
    assert told.json["usage"]["total_tokens"] == 4


async def test_the_engine_is_asked_what_the_client_asked() -> None:
    here = Here(max_tokens=90, usual_tokens=40)
    await here.post(
        {
            "model": "武松",
            "messages": [
                {"role": "user", "content": "psst", "name": "Ada Byron", "perceived_by": ["武松"]},
                {"role": "user", "content": "well?"},
            ],
            "personae": {"secrets": [{"fact": "The wine is drugged.", "known_by": ["武松"]}]},
            "stop": ["\n"],
            "temperature": 0.5,
        }
    )
    [heard] = here.engine.heard
    assert heard.model == "武松"
    assert heard.messages == (
        ChatMessage("user", "psst", "Ada Byron", frozenset({"Ada Byron", "武松"})),
        ChatMessage("user", "well?"),
    )
    assert heard.secrets == (Secret(fact="The wine is drugged.", known_by=("武松",)),)
    assert (heard.max_tokens, heard.stop, heard.temperature) == (40, ("\n",), 0.5)


async def test_a_stream_begins_with_the_role_and_ends_with_done() -> None:
    told = await Here().post(chat("one two [length]", stream=True))
    assert told.headers["content-type"].startswith("text/event-stream")
    assert told.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert told.text == "one two "
    assert [e["choices"][0]["finish_reason"] for e in told.events[:-1]] == [None] * 3 + ["length"]
    assert told.events[-1] == "[DONE]"


async def test_a_stream_of_nothing_still_says_who_and_how() -> None:
    told = await Here().post(chat("[length]", stream=True))
    assert told.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert told.events[1]["choices"][0]["finish_reason"] == "length"
    assert told.events[2:] == ["[DONE]"]


async def test_the_count_comes_last_where_it_is_asked_for_and_is_null_where_nobody_counts() -> None:
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    told = await Here().post(chat("one", **more))
    assert told.events[-2]["usage"]["completion_tokens"] == 1
    told = await Here().post(chat("one [uncounted]", **more))
    assert (told.events[-2]["choices"], told.events[-2]["usage"]) == ([], None)


@pytest.mark.parametrize(("there", "told"), [(0, 0), (15, 0), (16, 16), (40, 32)])
async def test_what_was_cached_is_told_in_steps_so_that_nobody_guesses_a_chat_token_by_token(
    there: int, told: int
) -> None:
    here = Here()
    whole = await here.post(chat(f"one [cached:{there}]"))
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await here.post(chat(f"one [cached:{there}]", **more))
    for usage in (whole.json["usage"], stream.events[-2]["usage"]):
        assert usage["prompt_tokens_details"] == {"cached_tokens": told}
    counted = {"character": NAMES[0], "kind": "cached"}
    assert await here.count("personae_tokens_total", **counted) == 2 * told


async def test_log_probabilities_come_with_the_answer_and_at_the_end_of_a_stream() -> None:
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    told = await Here().post(chat("one two", **more))
    found = told.json["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in found] == ["one ", "two "]
    assert [len(t["top_logprobs"]) for t in found] == [1, 1]
    told = await Here().post(chat("one two", stream=True, **more))
    assert told.events[-2]["choices"][0]["logprobs"]["content"] == found


async def test_a_stream_that_waits_sends_comments_meanwhile() -> None:
    here, told = Here(heartbeat=0.001), Told()
    asking = asyncio.ensure_future(here.post(chat("[slow] one [hold] two", stream=True), told=told))
    await until(lambda: len(told.parts) > 2)
    assert told.status == 200
    here.engine.released.set()
    await asking
    assert told.parts[0] == b": waiting\n\n"
    assert told.text == "one two "
    assert told.events[-1] == "[DONE]"


# Errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", ["[refuse:{}] x", "[fail:{}] x"])
@pytest.mark.parametrize(
    ("cause", "status", "code"),
    [("bad", 400, "bad_request"), ("context", 400, "context_length_exceeded"),
     ("server", 503, "engine_unavailable"), ("rate", 429, "rate_limit_exceeded"),
     ("timeout", 504, "timeout"), ("key", 503, "engine_unavailable")],
)  # fmt: skip
async def test_an_error_before_the_first_piece_has_its_status(
    stream: bool, script: str, cause: str, status: int, code: str
) -> None:
    here = Here()
    told = await here.post(chat(script.format(cause), stream=stream))
    assert (told.status, told.error["code"]) == (status, code)
    assert "10.0.0.7" not in told.body.decode()
    assert ("retry-after" in told.headers) == (status in (429, 503))
    await here.idle()


async def test_an_error_in_the_middle_of_a_stream_ends_it_without_a_false_end() -> None:
    here = Here()
    told = await here.post(chat("one two [fail:server] three", stream=True))
    assert told.status == 200
    assert told.text == "one two "
    assert [e.get("error", {}).get("code") for e in told.events[:-1]] == [None] * 3
    assert told.events[-1].keys() == {"error"}
    assert told.events[-1]["error"]["code"] == "engine_unavailable"
    assert all(e["choices"][0]["finish_reason"] is None for e in told.events[:-1])
    assert b"[DONE]" not in told.body
    assert await here.count("personae_answers_total", character=NAMES[0], outcome="failed") == 1
    await here.idle()


async def test_an_error_after_a_heartbeat_is_an_event_too() -> None:
    here, told = Here(heartbeat=0.001), Told()
    asking = asyncio.ensure_future(
        here.post(chat("[slow] [refuse:context]", stream=True), told=told)
    )
    await until(lambda: told.parts)
    here.engine.released.set()
    await asking
    assert told.status == 200
    assert [e["error"]["code"] for e in told.events] == ["context_length_exceeded"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_is_told_without_its_text(stream: bool) -> None:
    here = Here()
    told = await here.post(chat("[bug] x", stream=stream))
    assert (told.status, told.error["code"]) == (500, "internal_error")
    assert "a bug" not in told.body.decode()
    assert await here.count("personae_answers_total", character=NAMES[0], outcome="failed") == 1
    counted = {"method": "POST", "path": PATH}
    assert await here.count("personae_http_requests_total", **counted, status="500") == 1
    assert await here.count("personae_http_requests_total", **counted, status="499") is None
    await here.idle()


async def test_a_fault_of_ours_in_the_middle_of_a_stream_ends_it_as_an_event() -> None:
    here = Here()
    told = await here.post(chat("one [bug] two", stream=True), raises=True)
    assert told.events[-1]["error"]["code"] == "internal_error"
    assert b"a bug" not in told.body
    await here.idle()


@pytest.mark.parametrize("script", ["[slow] x", "[hold] x"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_takes_too_long_is_given_up(stream: bool, script: str) -> None:
    here = Here(timeout=0.02)
    told = await here.post(chat(script, stream=stream))
    assert (told.status, told.error["code"]) == (504, "timeout")
    assert await here.count("personae_answers_total", character=NAMES[0], outcome="timeout") == 1
    await here.idle()


async def test_a_stream_that_takes_too_long_ends_as_an_error() -> None:
    here = Here(timeout=1.0)
    told = await here.post(chat("one [hold] two", stream=True))
    assert told.text == "one "
    assert told.events[-1]["error"]["code"] == "timeout"
    await here.idle()


async def test_whoever_waits_too_long_for_a_place_is_told_in_time() -> None:
    here = Here(timeout=0.02, max_concurrency=1)
    first = asyncio.ensure_future(here.post(chat("[stay] [hold]")))
    await until(lambda: here.engine.heard)
    told = await here.post(chat("two"))
    assert (told.status, told.error["code"]) == (504, "timeout")
    assert len(here.engine.heard) == 1
    here.engine.released.set()
    assert (await first).status == 504
    await here.idle()


async def test_too_many_at_once_are_turned_away_and_the_others_are_answered() -> None:
    here = Here(max_concurrency=1, max_queue=1)
    first = asyncio.ensure_future(here.post(chat("[hold] one")))
    await until(lambda: here.engine.heard)
    second = asyncio.ensure_future(here.post(chat("two", stream=True)))
    for _ in range(50):
        await asyncio.sleep(0)
    assert await here.count("personae_answers_waiting") == 1
    third = await here.post(chat("three", stream=True))
    assert (third.status, third.error["code"]) == (429, "rate_limit_exceeded")
    assert third.headers["retry-after"] == "2"
    here.engine.released.set()
    assert (await first).json["choices"][0]["message"]["content"] == "one "
    assert (await second).text == "two "
    assert (
        await here.count("personae_answers_total", character=NAMES[0], outcome="turned_away") == 1
    )
    await here.idle()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/", 404, "unknown_url"), ("POST", "/v1/completions", 404, "unknown_url"),
     ("GET", PATH, 405, "method_not_allowed"), ("DELETE", "/v1/models", 405, "method_not_allowed"),
     ("GET", "/v1/characters", 405, "method_not_allowed")],
)  # fmt: skip
async def test_an_unknown_address_and_a_wrong_method_are_told_as_such(
    method: str, path: str, status: int, code: str
) -> None:
    told = await ask(Here().app, method, path, chat("x"))
    assert (told.status, told.error["code"]) == (status, code)
    assert ("allow" in told.headers) == (status == 405)


async def test_an_unknown_model_is_not_asked() -> None:
    here = Here()
    told = await here.post(chat("hello", "Nemo"))
    assert (told.status, told.error["code"]) == (404, "model_not_found")
    assert not here.engine.heard


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
async def test_a_malformed_body_is_told_as_such(body: bytes) -> None:
    told = await Here().post(body)
    assert (told.status, told.error["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", [PATH, "/v1/characters"])
async def test_a_body_that_is_too_large_is_not_held(path: str) -> None:
    here = Here(max_body=1024)
    told = await here.post([b" " * 600, b" " * 600, b"{}"], path)
    assert (told.status, told.error["code"]) == (413, "request_too_large")
    assert not here.engine.heard


# Clients that leave, and the end ---------------------------------------------------------------


@pytest.mark.parametrize("script", ["[slow] x", "[hold] x", "one [hold] x", "[endless]"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_worked_for_no_longer(stream: bool, script: str) -> None:
    here, gone = Here(), asyncio.Event()
    asking = asyncio.ensure_future(here.post(chat(script, stream=stream), gone=gone))
    await until(lambda: here.engine.busy() == 1)
    gone.set()
    told = await asking
    assert b"[DONE]" not in told.body
    assert (
        await here.count("personae_answers_total", character=NAMES[0], outcome="client_gone") == 1
    )
    await here.idle()


async def test_a_client_that_has_not_read_and_leaves_is_worked_for_no_longer() -> None:
    here, gone = Here(), asyncio.Event()
    queue = [{"type": "http.request", "body": json.dumps(chat("[endless]", stream=True)).encode()}]
    sent = 0

    async def receive() -> Any:
        if queue:
            return queue.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent > 5:
            await asyncio.Event().wait()  # its buffers are full

    asking = asyncio.ensure_future(here.app(scope_of(), receive, send))
    await until(lambda: sent > 5)
    assert here.engine.busy() == 1
    gone.set()
    await asking
    await here.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_the_queue_is_never_worked_for(stream: bool) -> None:
    here, gone = Here(max_concurrency=1), asyncio.Event()
    first = asyncio.ensure_future(here.post(chat("[hold] one")))
    await until(lambda: here.engine.heard)
    second = asyncio.ensure_future(here.post(chat("two", stream=stream), gone=gone))
    for _ in range(50):
        await asyncio.sleep(0)
    gone.set()
    await second
    assert await here.count("personae_answers_waiting") == 0
    here.engine.released.set()
    await first
    assert len(here.engine.heard) == 1
    await here.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_under_way_when_the_server_closes_is_finished(stream: bool) -> None:
    here = Here()
    asking = asyncio.ensure_future(here.post(chat("one [hold] two", stream=stream)))
    await until(lambda: here.engine.busy() == 1)
    here.closing.begin()
    assert (await here.post(chat("late"))).status == 503
    assert (await here.get("/health")).status == 503
    here.engine.released.set()
    assert await here.closing.wait(20)
    told = await asking
    assert (told.text if stream else told.json["choices"][0]["message"]["content"]) == "one two "


async def test_what_outlasts_the_grace_is_cut_and_says_so() -> None:
    here = Here()
    whole = asyncio.ensure_future(here.post(chat("one [hold] two")))
    stream = asyncio.ensure_future(here.post(chat("one [hold] two", stream=True)))
    await until(lambda: here.engine.busy() == 2)
    here.closing.begin()
    assert not await here.closing.wait(0.01)
    told = await whole
    assert (told.status, told.error["code"]) == (503, "shutting_down")
    told = await stream
    assert told.text == "one "
    assert told.events[-1]["error"]["code"] == "shutting_down"
    assert b"[DONE]" not in told.body
    assert here.engine.busy() == 0


async def test_what_fails_after_the_last_word_does_not_touch_the_answer() -> None:
    here = Here()
    told = await here.post(chat("one two [late]", stream=True))
    assert told.text == "one two "
    assert told.events[-1] == "[DONE]"
    assert told.parts[-1] == b""
    await here.idle()


async def test_a_client_that_does_not_read_is_given_up_in_time() -> None:
    here = Here(timeout=1.0)
    queue = [{"type": "http.request", "body": json.dumps(chat("one", stream=True)).encode()}]
    sent: list[str] = []

    async def receive() -> Any:
        return queue.pop() if queue else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # its buffers are full

    await here.app(scope_of(), receive, send)
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]
    assert await here.count("personae_answers_total", character=NAMES[0], outcome="timeout") == 1
    await here.idle()


# Health ----------------------------------------------------------------------------------------


async def test_the_health_is_the_engines_and_its_reason_is_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = Here(probe=0.0)
    assert (await here.get("/health")).status == 200
    here.engine.ill = "http://10.0.0.7 does not answer"
    for _ in range(3):
        told = await here.get("/health")
        assert (told.status, told.json) == (503, {"status": "engine_unavailable"})
    assert caplog.text.count("10.0.0.7 does not answer") == 1
    here.engine.ill = None
    assert (await here.get("/health")).status == 200


async def test_whoever_asks_for_the_health_all_the_time_does_not_make_the_engine_work() -> None:
    here = Here(probe=3600.0)
    told = await asyncio.gather(*(here.get("/health") for _ in range(100)))
    assert [t.status for t in told] == [200] * 100
    assert here.engine.probed == 1
