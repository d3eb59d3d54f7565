"""Places, bodies, and the way out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from personae.serve.api_errors import ApiError
from personae.serve.limits import ClientGoneError, Closing, Places, read_body


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets")


async def settle() -> None:
    """Let all that can run now run."""
    for _ in range(20):
        await asyncio.sleep(0)


# Places ----------------------------------------------------------------------------------------


async def test_whoever_comes_beyond_the_queue_is_turned_away_and_the_others_go_in_in_order() -> (
    None
):
    places, release = Places(at_once=1, queue=2), asyncio.Event()
    order: list[int] = []

    async def guest(number: int) -> None:
        async with places.taken():
            order.append(number)
            await release.wait()

    guests = []
    for number in range(3):
        guests.append(asyncio.ensure_future(guest(number)))
        await settle()
    assert (places.under_way, places.waiting) == (1, 2)
    with pytest.raises(ApiError) as caught:
        await guest(3)
    assert caught.value.status == 429
    assert int(caught.value.headers["Retry-After"]) > 0
    release.set()
    await asyncio.gather(*guests)
    assert order == [0, 1, 2]
    assert (places.under_way, places.waiting) == (0, 0)


async def test_whoever_leaves_the_queue_leaves_no_trace() -> None:
    places, release = Places(at_once=1, queue=1), asyncio.Event()

    async def guest() -> None:
        async with places.taken():
            await release.wait()

    inside, waiting = asyncio.ensure_future(guest()), asyncio.ensure_future(guest())
    await settle()
    waiting.cancel()
    await settle()
    assert (places.under_way, places.waiting) == (1, 0)
    third = asyncio.ensure_future(guest())
    await settle()
    assert places.waiting == 1
    release.set()
    await asyncio.gather(inside, third)
    assert (places.under_way, places.waiting) == (0, 0)


async def test_without_a_queue_only_a_free_place_lets_one_in() -> None:
    places = Places(at_once=1, queue=0)
    async with places.taken():
        with pytest.raises(ApiError):
            await places.taken().__aenter__()
    async with places.taken():
        assert places.under_way == 1


# Closing ---------------------------------------------------------------------------------------


async def test_work_that_ends_is_handed_on_and_one_that_fails_raises() -> None:
    closing = Closing()

    async def work(fail: bool) -> int:
        await asyncio.sleep(0)
        if fail:
            raise ZeroDivisionError
        return 7

    assert await closing.while_wanted(never, work(fail=False)) == 7
    with pytest.raises(ZeroDivisionError):
        await closing.while_wanted(never, work(fail=True))


async def test_work_that_another_has_ended_is_the_engines_failure() -> None:
    under_it: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await under_it

    wanted = asyncio.ensure_future(Closing().while_wanted(never, work()))
    await settle()
    under_it.cancel()
    with pytest.raises(ApiError) as caught:
        await wanted
    assert (caught.value.status, caught.value.code) == (503, "engine_unavailable")


async def test_when_the_client_leaves_the_work_has_ended_before_anybody_hears_of_it() -> None:
    ended = False
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # cleaning up takes a while
            ended = True

    wanted = asyncio.ensure_future(Closing().while_wanted(receive, work()))
    await settle()
    gone.set()
    with pytest.raises(ClientGoneError):
        await wanted
    assert ended


async def test_those_inside_may_finish_and_nobody_comes_in_any_more() -> None:
    closing, release = Closing(), asyncio.Event()

    async def work() -> str:
        await release.wait()
        return "said"

    inside = asyncio.ensure_future(closing.while_wanted(never, work()))
    await settle()
    closing.begin()
    leaving = asyncio.ensure_future(closing.wait(60))
    with pytest.raises(ApiError) as caught:
        await closing.while_wanted(never, work())
    assert (caught.value.status, caught.value.code) == (503, "shutting_down")
    assert not leaving.done()
    release.set()
    assert await inside == "said"
    assert await leaving is True


async def test_after_the_grace_those_inside_are_cut() -> None:
    closing = Closing()
    inside = asyncio.ensure_future(closing.while_wanted(never, asyncio.Event().wait()))
    await settle()
    closing.begin()
    assert await closing.wait(0.01) is False
    with pytest.raises(ApiError) as caught:
        await inside
    assert caught.value.code == "shutting_down"


async def test_who_is_torn_away_while_the_work_is_ended_is_not_inside_any_more() -> None:
    closing, release = Closing(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()

    wanted = asyncio.ensure_future(closing.while_wanted(never, work()))
    await settle()
    for _ in range(2):
        wanted.cancel()
        await settle()
    assert wanted.cancelled()
    assert await closing.wait(0) is True
    release.set()
    await settle()


async def test_where_nobody_is_inside_nothing_is_waited_for() -> None:
    assert await Closing().wait(0) is True


# Bodies ----------------------------------------------------------------------------------------


def request(*parts: bytes, **headers: str) -> Request:
    queue = list(parts)

    async def receive() -> dict[str, Any]:
        if not queue:
            return {"type": "http.disconnect"}
        part = queue.pop(0)
        if part == b"wait":
            return await never()
        return {"type": "http.request", "body": part, "more_body": bool(queue)}

    heads = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": heads}, receive)


async def test_a_body_is_read_up_to_its_limit() -> None:
    assert await read_body(request(b"12345", b"67890"), most=10, seconds=9) == b"1234567890"


@pytest.mark.parametrize("length", [None, "3", "nonsense", "-5", "٣"])
async def test_a_body_is_counted_while_it_is_read_whatever_its_head_says(
    length: str | None,
) -> None:
    head = {} if length is None else {"content_length": length}
    with pytest.raises(ApiError) as caught:
        await read_body(request(b"12345", b"67890", b"1", **head), most=10, seconds=9)
    assert caught.value.status == 413


@pytest.mark.parametrize("length", ["11", "9" * 5000])
async def test_a_head_that_says_too_much_is_believed_before_anything_is_read(length: str) -> None:
    with pytest.raises(ApiError) as caught:
        await read_body(request(b"wait", content_length=length), most=10, seconds=9)
    assert caught.value.status == 413


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with pytest.raises(ApiError) as caught:
        await read_body(request(b"1", b"wait"), most=10, seconds=0.01)
    assert caught.value.status == 408


async def test_whoever_leaves_before_the_body_is_there_is_gone() -> None:
    incomplete = request(b"1", b"2")
    original = incomplete._receive

    async def cut_short() -> Any:
        message = await original()
        return {"type": "http.disconnect"} if message.get("body") == b"2" else message

    with pytest.raises(ClientGoneError):
        await read_body(Request(incomplete.scope, cut_short), most=10, seconds=9)
