"""One limit per endpoint: down at once when asked, up slowly, never below one."""

import asyncio

from personae.journal.limits import CUT, Limit


async def taken(limit: Limit, count: int) -> None:
    for _ in range(count):
        await limit.acquire()


async def test_slots_are_handed_on_in_order():
    limit = Limit(1)
    await limit.acquire()
    order = []

    async def wait(name):
        await limit.acquire()
        order.append(name)
        limit.release()

    tasks = [asyncio.create_task(wait(n)) for n in "abc"]
    await asyncio.sleep(0)
    limit.release()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


async def test_a_429_lowers_the_limit_once_for_a_burst():
    limit = Limit(10)
    await taken(limit, 10)
    for _ in range(5):
        limit.congested("rate_limit")
    assert limit.allowed == 10 * CUT["rate_limit"]


async def test_successes_raise_it_by_about_one_a_round_trip_up_to_the_ceiling():
    limit = Limit(10)
    await taken(limit, 10)
    limit.congested("rate_limit")  # to 7
    for _ in range(7):
        limit.succeeded()
    assert 7.9 < limit.allowed < 8.0
    for _ in range(1000):
        limit.succeeded()
    assert limit.allowed == 10


async def test_it_never_falls_below_one():
    limit = Limit(1)
    await limit.acquire()
    limit.congested("timeout")
    assert limit.allowed == 1
    limit.release()
    await asyncio.wait_for(limit.acquire(), 5)


async def test_a_cancelled_waiter_takes_no_slot():
    limit = Limit(1)
    await limit.acquire()
    waiter = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    limit.release()
    assert limit.in_flight == 0
    await asyncio.wait_for(limit.acquire(), 5)


async def test_retry_after_pauses_the_endpoint_and_then_lets_go():
    limit = Limit(2)
    await limit.acquire()
    limit.congested("rate_limit", retry_after=0.05)
    limit.release()
    waiter = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    assert not waiter.done()
    await asyncio.wait_for(waiter, 5)
