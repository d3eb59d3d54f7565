"""Many units at once, in order, without losing what is under way."""

import asyncio
import gc
import sys

import pytest

from personae.errors import StoppedEarlyError
from personae.journal.flow import STARTED_AT_ONCE, each, rarer_collections, run_sync


async def test_results_come_in_the_order_of_the_items_and_the_window_holds():
    now = most = 0

    async def work(n):
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(5 - n % 5):
            await asyncio.sleep(0)
        now -= 1
        return n * n

    assert await each(range(20), work, window=4) == [n * n for n in range(20)]
    assert most == 4


async def test_after_an_error_nothing_new_starts_and_what_runs_comes_to_its_end():
    ended = []

    async def work(n):
        await asyncio.sleep(0)
        if n == 1:
            raise StoppedEarlyError("cap")
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append(n)

    with pytest.raises(StoppedEarlyError):
        await each(range(10), work, window=3)
    assert ended == [0, 2]


async def test_a_real_error_is_raised_before_a_stop():
    async def work(n):
        await asyncio.sleep(0)
        if n == 0:
            raise StoppedEarlyError("cap")
        raise ValueError("real")

    with pytest.raises(ValueError, match="real"):
        await each(range(2), work, window=2)


async def test_the_sync_door_works_inside_a_running_loop():
    async def work():
        await asyncio.sleep(0)
        return 7

    assert run_sync(work()) == 7


def test_the_sync_door_works_outside_a_loop_and_carries_errors():
    async def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_sync(fails())


async def test_the_first_units_are_under_way_before_the_last_are_started():
    started = []
    before_it_went_on = []

    async def work(n):
        started.append(n)
        await asyncio.sleep(0)
        before_it_went_on.append(len(started))

    await each(range(4 * STARTED_AT_ONCE), work, window=4 * STARTED_AT_ONCE)
    assert before_it_went_on[0] <= 2 * STARTED_AT_ONCE


def test_the_collector_runs_as_before_when_a_run_is_over():
    before = gc.get_threshold()
    with rarer_collections():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_overlapping_runs_leave_the_collector_as_the_first_one_found_it():
    before = gc.get_threshold()
    first, second = rarer_collections(), rarer_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_collector_that_was_switched_off_stays_off():
    before = gc.get_threshold()
    try:
        gc.set_threshold(0)
        with rarer_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop for Windows")
def test_the_sync_door_opens_on_uvloop():
    async def loop():
        return type(asyncio.get_running_loop()).__module__

    assert run_sync(loop()).partition(".")[0] == "uvloop"
