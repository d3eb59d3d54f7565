"""The journal keeps what it has acknowledged, and says clearly why it cannot."""

import asyncio
import multiprocessing
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from personae.errors import JournalError
from personae.journal.store import Journal
from personae.records import Call, Failure, Message, Reply, Usage


def call(text: str = "hello", **more) -> Call:
    return Call(role="judge", model="m", messages=(Message(role="user", content=text),), **more)


def answered(text: str = "yes") -> Reply:
    return Reply(text=text, usage=Usage(tokens_in=7, tokens_out=2, cached=3), seconds=0.5)


async def test_a_reply_is_on_disk_when_put_returns(tmp_path: Path):
    journal = Journal(tmp_path / "j.sqlite")
    asked = call()
    await journal.put(asked.key(), asked, answered())
    with sqlite3.connect(tmp_path / "j.sqlite") as other:
        assert other.execute("SELECT count(*) FROM replies").fetchone() == (1,)
    other.close()
    journal.close()


async def test_a_reply_comes_back_as_it_was_and_unknown_keys_are_none(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as journal:
        asked, reply = call("你好 \ud800"), answered("是 \U0001f600")
        await journal.put(asked.key(), asked, reply)
        assert journal.get(asked.key()) == reply
        assert journal.get(call("other").key()) is None
        assert list(journal.items()) == [(asked, reply)]


async def test_an_answered_call_is_never_overwritten_and_the_later_writer_gets_the_first_reply(
    tmp_path: Path,
):
    with Journal(tmp_path / "j.sqlite") as one, Journal(tmp_path / "j.sqlite") as two:
        asked = call()
        await one.put(asked.key(), asked, answered("first"))
        assert (await two.put(asked.key(), asked, answered("second"))).text == "first"
        assert one.get(asked.key()) == answered("first")
        (line,) = one.usage()
        assert (line.calls, line.tokens_in, line.tokens_out) == (1, 14, 4), "both were paid for"


async def test_a_failed_call_is_replaced_by_an_answer_and_its_tokens_still_count(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as journal:
        asked = call()
        failed = Reply(failure=Failure(cause="timeout"), usage=Usage(tokens_in=5, tokens_out=0))
        await journal.put(asked.key(), asked, failed)
        assert [(f.cause, f.count) for f in journal.failures()] == [("timeout", 1)]
        await journal.put(asked.key(), asked, answered())
        (line,) = journal.usage()
        assert (line.calls, line.failed, line.tokens_in, line.tokens_out) == (1, 0, 12, 2)
        assert journal.failures() == []


async def test_marking_failed_keeps_the_text_as_evidence(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as journal:
        asked = call()
        await journal.put(asked.key(), asked, answered("nonsense"))
        await journal.mark_failed((asked.key(),), Failure(cause="malformed"))
        kept = journal.get(asked.key())
        assert kept is not None
        assert (kept.text, kept.ok) == ("nonsense", False)


async def test_usage_that_an_endpoint_did_not_report_is_counted_as_unmetered(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as journal:
        for n in range(3):
            asked = call(str(n))
            await journal.put(asked.key(), asked, Reply(text="x") if n else answered())
        (line,) = journal.usage()
        assert (line.calls, line.unmetered, line.tokens_in) == (3, 2, 7)


async def test_a_call_to_which_nothing_came_back_leaves_the_usage_known(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as journal:
        replies = [
            answered(),
            Reply(failure=Failure(cause="server")),
            Reply(failure=Failure(cause="empty"), seconds=0.5),
        ]
        for n, reply in enumerate(replies):
            asked = call(str(n))
            await journal.put(asked.key(), asked, reply)
        (line,) = journal.usage()
        assert (line.calls, line.failed, line.tokens_in) == (3, 2, 7)
        assert line.unmetered == 1, "the empty reply did come, and did not say what it took"


def test_a_foreign_sqlite_file_is_refused_and_left_as_it_is(tmp_path: Path):
    path = tmp_path / "foreign.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="not a Personae journal"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    path = tmp_path / "noise.sqlite"
    path.write_bytes(os.urandom(4096))
    with pytest.raises(JournalError, match="not a journal"):
        Journal(path)


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path):
    path = tmp_path / "j.sqlite"
    Journal(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(JournalError, match="newer Personae"):
        Journal(path)


def test_reading_where_there_is_no_journal_says_so(tmp_path: Path):
    with pytest.raises(JournalError, match="no journal"):
        Journal(tmp_path / "absent.sqlite", read_only=True)
    assert not (tmp_path / "absent.sqlite").exists()


async def test_a_full_disk_is_said_in_words_and_loses_nothing_committed(tmp_path: Path):
    journal = Journal(tmp_path / "j.sqlite")
    first = call("first")
    await journal.put(first.key(), first, answered())
    # SQLite's own page limit makes the very error that a full disk makes (SQLITE_FULL).
    await _limit_pages(journal)

    async def fill() -> None:
        for _ in range(200):
            big = call(os.urandom(6000).hex())
            await journal.put(big.key(), big, answered(os.urandom(6000).hex()))

    with pytest.raises(JournalError, match=r"full.*personae resume"):
        await fill()
    journal.close()
    with Journal(tmp_path / "j.sqlite", read_only=True) as again:
        assert again.get(first.key()) == answered()


async def _limit_pages(journal: Journal) -> None:
    """Let the writer's connection grow the file by no more than a few pages."""
    original = journal._commit

    def commit(db, jobs):
        db.execute("PRAGMA max_page_count = 12")
        return original(db, jobs)

    journal._commit = commit  # type: ignore[method-assign]


def _write_many(path: Path, who: str, count: int, out) -> None:
    async def work() -> list[str]:
        with Journal(path) as journal:
            got = []
            for n in range(count):
                asked = call(str(n))
                reply = await journal.put(asked.key(), asked, answered(who))
                got.append(reply.text or "")
            return got

    out.put(asyncio.run(work()))


def test_two_processes_on_one_journal_lose_nothing_and_agree_on_every_reply(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [
        context.Process(target=_write_many, args=(tmp_path / "j.sqlite", who, 60, out))
        for who in ("a", "b")
    ]
    for worker in workers:
        worker.start()
    first, second = out.get(timeout=60), out.get(timeout=60)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert first == second, "both were told the same winner for every call"
    with Journal(tmp_path / "j.sqlite", read_only=True) as journal:
        assert len(journal) == 60


def test_a_new_journal_can_be_opened_by_several_at_the_same_moment(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def opened(number: int) -> int:
        together.wait(60)
        with Journal(tmp_path / f"{number}.sqlite") as journal:
            return len(journal)

    with ThreadPoolExecutor(4) as pool:
        for number in range(60):
            assert list(pool.map(opened, [number] * 4)) == [0] * 4


async def test_counters_of_all_sessions_are_summed(tmp_path: Path):
    for _ in range(2):
        with Journal(tmp_path / "j.sqlite") as journal:
            journal.counters.made = 3
            journal.counters.retries["timeout"] = 2
    with Journal(tmp_path / "j.sqlite", read_only=True) as journal:
        total = journal.totals()
    assert (total.made, total.retries) == (6, {"timeout": 4})


async def test_a_closed_journal_is_one_file_and_reading_it_leaves_no_other(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as journal:
        asked = call()
        await journal.put(asked.key(), asked, answered())
    with Journal(tmp_path / "j.sqlite", read_only=True) as journal:
        assert len(journal) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["j.sqlite"]


async def test_a_call_that_no_row_can_hold_is_not_looked_up_in_the_file(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as journal:
        queries: list[str] = []
        journal._db.set_trace_callback(queries.append)
        asked, other = call("asked"), call("other")
        await journal.put(asked.key(), asked, answered())
        assert journal.get(other.key()) is None
        assert queries == []
        assert journal.get(asked.key()) == answered()
        assert len(queries) == 1
    with Journal(tmp_path / "j.sqlite") as later:
        assert later.get(asked.key()) == answered(), "its rows are those of an earlier process"


async def test_what_another_process_writes_is_seen_from_the_next_commit_on(tmp_path: Path):
    with Journal(tmp_path / "j.sqlite") as one, Journal(tmp_path / "j.sqlite") as two:
        first, second, mine = call("first"), call("second"), call("mine")
        await one.put(first.key(), first, answered("one's"))
        assert (await two.put(first.key(), first, answered("two's"))).text == "one's"
        await one.put(second.key(), second, answered())
        await two.put(mine.key(), mine, answered())
        assert two.get(second.key()) == answered()
        assert two.get(first.key()) == answered("one's")
