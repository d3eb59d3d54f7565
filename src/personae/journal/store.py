"""The journal: one SQLite file per run that keeps every call and its reply.

Integer row ids with a binary unique key (a text primary key without row ids wrote ten times the
bytes), and group commits by one writer thread: `put` resolves once the row is committed, so nothing
is ever built on a reply that a kill could take away. A commit follows the one before by at least
`COMMIT_GAP` seconds under load and comes at once when the journal is idle. Several processes may
write to one journal: whoever commits a key first wins; the others are handed the winner's reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from personae.errors import JournalError
from personae.records import Call, Failure, Message, Reply
from personae.records.call import messages_json

APPLICATION_ID = 0x5045_5253  # "PERS"
VERSION = 1
COMMIT_GAP = 0.02
_LOCK_SECONDS = 0.005  # between two looks at a lock
BUSY_SECONDS = 30
SMALL = 1500

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    role TEXT NOT NULL,
    model TEXT NOT NULL,
    failed TEXT,               -- the cause, NULL when answered
    call BLOB NOT NULL,        -- JSON without the messages
    messages BLOB NOT NULL,    -- JSON, all three deflated from SMALL bytes on
    reply BLOB NOT NULL,       -- JSON
    exchanges INTEGER NOT NULL,
    unmetered INTEGER NOT NULL,  -- replies whose usage the endpoint did not report
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    seconds REAL NOT NULL,
    at REAL NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS replies_key ON replies (key);
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY,
    started REAL NOT NULL,
    seen REAL NOT NULL,
    command TEXT NOT NULL,
    made INTEGER NOT NULL DEFAULT 0,
    reused INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    retries TEXT NOT NULL DEFAULT '{}'
);
"""

_PUT = """
INSERT INTO replies (key, role, model, failed, call, messages, reply, exchanges, unmetered,
                     tokens_in, tokens_out, cached, reasoning, seconds, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    failed = excluded.failed, call = excluded.call, reply = excluded.reply,
    exchanges = exchanges + excluded.exchanges, unmetered = unmetered + excluded.unmetered,
    tokens_in = tokens_in + excluded.tokens_in, tokens_out = tokens_out + excluded.tokens_out,
    cached = cached + excluded.cached, reasoning = reasoning + excluded.reasoning,
    seconds = seconds + excluded.seconds, at = excluded.at
WHERE failed IS NOT NULL
"""

_ADD = """
UPDATE replies SET exchanges = exchanges + ?, unmetered = unmetered + ?, tokens_in = tokens_in + ?,
    tokens_out = tokens_out + ?, cached = cached + ?, reasoning = reasoning + ?,
    seconds = seconds + ?
WHERE key = ?
"""


@dataclass
class Counters:
    """What one process did with a journal; `retries` counts failed attempts by cause."""

    made: int = 0
    reused: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.retries: dict[str, int] = {}


@dataclass(frozen=True)
class UsageLine:
    """What one role spent with one model; tokens are those that the endpoint reported."""

    role: str
    model: str
    calls: int
    failed: int
    unmetered: int
    tokens_in: int
    tokens_out: int
    cached: int
    reasoning: int
    seconds: float


@dataclass(frozen=True)
class FailureLine:
    """How often one role's calls to one model failed for one cause."""

    role: str
    model: str
    cause: str
    count: int


def _pack(text: bytes) -> bytes:
    """JSON, deflated if that pays: setting up zlib takes longer than writing a kilobyte."""
    return text if len(text) < SMALL else zlib.compress(text, 1)


def _unpack(blob: bytes) -> Any:
    # JSON begins with a brace or a bracket, a zlib stream never does.
    return json.loads(blob if blob[:1] in (b"{", b"[") else zlib.decompress(blob))


@lru_cache(maxsize=256)
def _pack_messages(messages: tuple[Message, ...]) -> bytes:
    """The prompt, deflated once for a whole panel of judges."""
    return _pack(messages_json(messages))


def _reply(blob: bytes) -> Reply:
    # Not model_validate_json: it refuses escaped halves of surrogate pairs.
    return Reply.model_validate(_unpack(blob))


@dataclass
class _Put:
    key: bytes
    call: Call
    reply: Reply
    done: asyncio.Future[Reply]


@dataclass
class _Fail:
    keys: tuple[bytes, ...]
    failure: Failure
    done: asyncio.Future[Reply | None]


def _foreign_commits(db: sqlite3.Connection) -> int:
    """A number that changes with every commit of another connection."""
    (version,) = db.execute("PRAGMA data_version").fetchone()
    return int(version)


def _blobs(job: _Put) -> tuple[bytes, bytes, bytes]:
    call = _pack(job.call.to_json(exclude={"messages"}).encode())
    return call, _pack_messages(job.call.messages), _pack(job.reply.to_json().encode())


class Journal:
    """One run's journal.

    Args:
        path: the SQLite file; its folder must exist.
        read_only: for reports and replays; never writes.
        command: what this process runs, kept with its counters.

    Raises:
        JournalError: the file cannot be opened, is locked, full, or is not a journal.
    """

    def __init__(self, path: Path, *, read_only: bool = False, command: str = "") -> None:
        self.path = path
        self.counters = Counters()
        self._read_only = read_only
        self._queue: queue.SimpleQueue[_Put | _Fail | None] = queue.SimpleQueue()
        self._broken: JournalError | None = None
        self._thread: threading.Thread | None = None
        self._session: int | None = None
        # The keys put here, as long as the file holds no other rows: looking them up there would
        # cost each new call more than its hash does.
        self._mine: set[bytes] | None = None
        if read_only and not path.is_file():
            raise JournalError(f"{path}: there is no journal here")
        try:
            self._db = self._open()
            self._check_or_create()
            if not read_only:
                now = time.time()
                row = self._db.execute(
                    "INSERT INTO sessions (started, seen, command) VALUES (?, ?, ?)",
                    (now, now, command),
                )
                self._session = row.lastrowid
                self._db.commit()
                self._mine = set() if len(self) == 0 else None
        except sqlite3.Error as error:
            raise self._explain(error) from None

    def _open(self) -> sqlite3.Connection:
        if self._read_only:
            uri = f"{self.path.resolve().as_uri()}?mode=ro"
            db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
            try:
                db.execute("SELECT 1 FROM sqlite_master").fetchone()
            except sqlite3.OperationalError:
                # A journal in a folder that cannot be written: no shared-memory file can be made.
                db.close()
                db = sqlite3.connect(f"{uri}&immutable=1", uri=True, check_same_thread=False)
            return db
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, check_same_thread=False)

    def _check_or_create(self) -> None:
        # All at one moment: another process may be making the journal meanwhile.
        self._db.execute("BEGIN")
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (app,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        self._db.rollback()
        if app != APPLICATION_ID and (app or tables or self._read_only):
            raise JournalError(
                f"{self.path}: this SQLite file is not a Personae journal; "
                "move it away or choose another --out"
            )
        if version > VERSION:
            raise JournalError(
                f"{self.path}: written by a newer Personae (journal version {version}, "
                f"this one reads up to {VERSION}); upgrade to read it"
            )
        if self._read_only:
            return
        self._write_ahead()
        self._db.execute("PRAGMA synchronous = NORMAL")
        if app != APPLICATION_ID:
            # Two processes may arrive here together: the second finds everything in place.
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                if statement.strip():
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._db.commit()

    def _write_ahead(self) -> None:
        """Switch to write-ahead logging; of this lock SQLite does not wait by itself."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_SECONDS)
            else:
                return

    def _explain(self, error: sqlite3.Error) -> JournalError:
        name = getattr(error, "sqlite_errorname", "") or ""
        text = str(error)
        if "FULL" in name or "full" in text or "IOERR" in name:
            mend = "the disk is full or failing; free some space and run `personae resume`"
        elif "BUSY" in name or "LOCKED" in name or "locked" in text:
            mend = "another program holds it; end that program and run `personae resume`"
        elif "NOTADB" in name:
            mend = "this file is not a journal; move it away or choose another --out"
        elif "CORRUPT" in name:
            mend = "the file is damaged; restore a copy, or start again with another --out"
        elif "READONLY" in name or "CANTOPEN" in name:
            mend = "it cannot be opened for writing; check the folder and its permissions"
        else:
            mend = "nothing already committed is lost"
        return JournalError(f"{self.path}: {text}: {mend}")

    # Reading ---------------------------------------------------------------------------------

    def get(self, key: bytes) -> Reply | None:
        """The reply of a call, answered or failed, or None if it was never asked.

        What another process has committed to a journal that was empty at opening is seen from this
        one's next commit on; until then `put` hands over the reply that was there first.
        """
        if self._mine is not None and key not in self._mine:
            return None
        try:
            row = self._db.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._explain(error) from None
        return None if row is None else _reply(row[0])

    def __len__(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM replies").fetchone()
        return int(count)

    def items(self, *, role: str | None = None) -> Iterator[tuple[Call, Reply]]:
        """All calls with their replies, in the order in which they were first committed."""
        where, values = ("WHERE role = ?", (role,)) if role is not None else ("", ())
        query = f"SELECT call, messages, reply FROM replies {where} ORDER BY id"  # noqa: S608
        rows = self._db.execute(query, values)
        for call, messages, reply in rows:
            content = {**_unpack(call), "messages": _unpack(messages)}
            yield Call.model_validate(content), _reply(reply)

    def usage(self) -> list[UsageLine]:
        """What was spent, by role and model."""
        return [
            UsageLine(*row)
            for row in self._db.execute(
                "SELECT role, model, count(*), count(failed), sum(unmetered), sum(tokens_in), "
                "sum(tokens_out), sum(cached), sum(reasoning), sum(seconds) "
                "FROM replies GROUP BY role, model ORDER BY role, model"
            )
        ]

    def failures(self) -> list[FailureLine]:
        """Which calls stand without an answer, by role, model and cause."""
        return [
            FailureLine(*row)
            for row in self._db.execute(
                "SELECT role, model, failed, count(*) FROM replies WHERE failed IS NOT NULL "
                "GROUP BY role, model, failed ORDER BY role, model, failed"
            )
        ]

    def totals(self) -> Counters:
        """What all processes did with this journal."""
        total = Counters()
        for made, reused, failed, retries in self._db.execute(
            "SELECT made, reused, failed, retries FROM sessions"
        ):
            total.made += made
            total.reused += reused
            total.failed += failed
            for cause, count in json.loads(retries).items():
                total.retries[cause] = total.retries.get(cause, 0) + count
        return total

    def seconds(self) -> float:
        """Wall time in which some process worked on this run (overlaps counted once each)."""
        (value,) = self._db.execute("SELECT sum(seen - started) FROM sessions").fetchone()
        return float(value or 0.0)

    # Writing ---------------------------------------------------------------------------------

    async def put(self, key: bytes, call: Call, reply: Reply) -> Reply:
        """Keep a reply; returns once it is committed, with the reply that the journal holds.

        Raises:
            JournalError: the file cannot be written; nothing committed before is lost.
        """
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._mine is not None:
            self._mine.add(key)
        self._submit(_Put(key, call, reply, done))
        return await done

    async def mark_failed(self, keys: tuple[bytes, ...], failure: Failure) -> None:
        """Turn kept replies into recorded failures (their text stays as evidence)."""
        done: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._submit(_Fail(keys, failure, done))
        await done

    def _submit(self, job: _Put | _Fail) -> None:
        if self._broken is not None:
            raise self._broken
        if self._read_only:
            raise JournalError(f"{self.path}: opened for reading only")
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
            self._thread.start()
        self._queue.put(job)

    def _write(self) -> None:
        db: sqlite3.Connection | None = None
        last = 0.0
        closing = False
        version = 0
        while not closing:
            batch = [self._queue.get()]
            wait = last + COMMIT_GAP - time.monotonic()
            if wait > 0 and batch[0] is not None:
                time.sleep(wait)
            while not self._queue.empty():
                batch.append(self._queue.get())
            closing = batch[-1] is None
            jobs = [job for job in batch if job is not None]
            results: list[Reply | BaseException | None]
            try:
                if db is None:
                    db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
                    db.execute("PRAGMA synchronous = NORMAL")
                    version = _foreign_commits(db)
                    if db.execute("SELECT 1 FROM replies LIMIT 1").fetchone():
                        self._mine = None  # another process has written since this one opened
                results = self._commit(db, jobs)
                if self._mine is not None and _foreign_commits(db) != version:
                    self._mine = None
            except Exception as error:  # noqa: BLE001  (whatever it is, the waiting callers must hear of it)
                wrapped = (
                    self._explain(error)
                    if isinstance(error, sqlite3.Error)
                    else JournalError(f"{self.path}: {error!r}")
                )
                self._broken = wrapped
                results = [wrapped] * len(jobs)
                if db is not None and db.in_transaction:
                    db.execute("ROLLBACK")
            last = time.monotonic()
            if jobs:
                jobs[0].done.get_loop().call_soon_threadsafe(_resolve, jobs, results)
        if db is not None:
            db.close()

    def _commit(
        self, db: sqlite3.Connection, jobs: list[_Put | _Fail]
    ) -> list[Reply | BaseException | None]:
        now = time.time()
        packed = [_blobs(job) if isinstance(job, _Put) else None for job in jobs]
        results: list[Reply | BaseException | None] = []
        db.execute("BEGIN IMMEDIATE")
        for job, blobs in zip(jobs, packed, strict=True):
            if isinstance(job, _Put):
                assert blobs is not None
                results.append(self._put_row(db, job, blobs, now))
            else:
                for key in job.keys:
                    row = db.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
                    reply = _reply(row[0]).model_copy(update={"failure": job.failure})
                    db.execute(
                        "UPDATE replies SET failed = ?, reply = ? WHERE key = ?",
                        (job.failure.cause, _pack(reply.to_json().encode()), key),
                    )
                results.append(None)
        self._save_counters(db, now)
        db.execute("COMMIT")
        return results

    def _put_row(
        self, db: sqlite3.Connection, job: _Put, blobs: tuple[bytes, bytes, bytes], now: float
    ) -> Reply:
        usage, failure = job.reply.usage, job.reply.failure
        # Where nothing came back there is no usage to report, as for an attempt that was retried.
        came = failure is None or job.reply.seconds is not None
        spent = (
            1, int(came and usage.tokens_in is None and usage.tokens_out is None),
            usage.tokens_in or 0, usage.tokens_out or 0, usage.cached or 0, usage.reasoning or 0,
            job.reply.seconds or 0.0,
        )  # fmt: skip
        cause = None if failure is None else failure.cause
        changed = db.execute(
            _PUT, (job.key, job.call.role, job.call.model, cause, *blobs, *spent, now)
        ).rowcount
        if changed:
            return job.reply
        # Another process answered the same call first: its reply is the one that others built on.
        # Ours was paid for all the same.
        db.execute(_ADD, (*spent, job.key))
        (blob,) = db.execute("SELECT reply FROM replies WHERE key = ?", (job.key,)).fetchone()
        return _reply(blob)

    def _save_counters(self, db: sqlite3.Connection, now: float) -> None:
        c = self.counters
        db.execute(
            "UPDATE sessions SET seen = ?, made = ?, reused = ?, failed = ?, retries = ? "
            "WHERE id = ?",
            (now, c.made, c.reused, c.failed, json.dumps(c.retries), self._session),
        )

    def close(self) -> None:
        """Commit what is waiting and close; safe to call twice."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        try:
            if not self._read_only and self._session is not None and self._broken is None:
                self._save_counters(self._db, time.time())
                self._db.commit()
                self._tidy()
            self._session = None
            self._db.close()
        except sqlite3.ProgrammingError:
            return  # closed before
        except sqlite3.Error as error:
            raise self._explain(error) from None

    def _tidy(self) -> None:
        """Leave one file behind, readable where nothing can be written; not while others work."""
        try:
            self._db.execute("PRAGMA busy_timeout = 0")
            self._db.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError:
            return  # another process has the journal open: it will tidy up

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resolve(jobs: list[_Put | _Fail], results: list[Reply | BaseException | None]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.done.done():
            continue
        if isinstance(result, BaseException):
            job.done.set_exception(result)
        else:
            job.done.set_result(result)  # type: ignore[arg-type]  # a _Put's result is its Reply


def copy_journal(source: Path, target: Path, keep: Callable[[Call], bool]) -> None:
    """Begin a journal with some of another's calls; sessions and what they counted stay there.

    The copy is SQLite's own, so that it is whole while others write to the source, and it appears
    at once or not at all.

    Raises:
        JournalError: the source is no journal, or the copy cannot be written.
    """
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    with Journal(source, read_only=True) as journal:
        copy_database(source, part)
        dropped = [(call.key(),) for call, _reply_of_it in journal.items() if not keep(call)]
    try:
        with contextlib.closing(sqlite3.connect(part)) as db:
            db.executemany("DELETE FROM replies WHERE key = ?", dropped)
            db.execute("DELETE FROM sessions")
            db.commit()
            db.execute("VACUUM")
        part.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise JournalError(f"{target}: the copy of {source} failed: {error}") from None


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite file by its own backup, which a file copy beside a living WAL is not.

    Raises:
        JournalError: it cannot be read or written.
    """
    try:
        with (
            contextlib.closing(
                sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)
            ) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise JournalError(f"{target}: the copy of {source} failed: {error}") from None
