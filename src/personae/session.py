"""A run under way: its directory, its journal, and the client that pipelines ask."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import json
import math
import platform
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae import __version__
from personae.errors import (
    InputError,
    OutputError,
    ReplayMissError,
    StoppedEarlyError,
    UsageError,
)
from personae.journal.client import (
    DEFAULT_CONCURRENCY,
    FIRST_DELAY,
    Caps,
    Client,
    Event,
    Plan,
    need_price,
)
from personae.journal.flow import WINDOW_FACTOR, NoWatcher, Watcher, rarer_collections
from personae.journal.store import Journal
from personae.judging.lift import model_behind
from personae.models.dry import DryBackend
from personae.models.prices import load_prices
from personae.models.providers import URL_KEY, leads_key_away
from personae.models.registry import Registry, model_scheme, script_path
from personae.prompts import names, prompt_hash, render
from personae.records import Call, Language, Manifest, Message, Prices
from personae.records.files import read_json, write_atomically

if TYPE_CHECKING:
    from personae.cast.backend import Casts

CAST = "cast"
"""The scheme of `personae.cast.backend`."""
MANIFEST = "manifest.json"
JOURNAL = "journal.sqlite"
RESULTS = "results.jsonl"
REPORT = "report.html"
BENCHMARK = "benchmark.jsonl"


@dataclass
class Options:
    """How a run is carried out; none of it changes what is asked.

    Attributes:
        max_cost: US dollars over the life of the run.
        max_calls: requests sent in this process.
        dry_run: count calls and estimate tokens; nothing is sent or written.
        replay: answer from the journal alone.
        concurrency: the ceiling of calls in flight at one endpoint.
        timeout: seconds for one attempt at one exchange.
        retry_delay: seconds before the first retry, doubled with each.
        trust_scripts: whether scripts that a manifest names may be run, and addresses that it
            names be given `PERSONAE_API_KEY`.

    Raises:
        UsageError: a number that means nothing, or options that exclude each other.
    """

    max_cost: float | None = None
    max_calls: int | None = None
    dry_run: bool = False
    replay: bool = False
    concurrency: int = DEFAULT_CONCURRENCY
    timeout: float = 120.0
    retry_delay: float = FIRST_DELAY
    trust_scripts: bool = True
    prices: Prices = field(default_factory=load_prices)
    watcher: Watcher = field(default_factory=NoWatcher)
    observe: Callable[[Event], None] | None = None

    def __post_init__(self) -> None:
        """NaN is above no cap, so it would lift the cap in silence."""
        if self.max_calls is not None and self.max_calls < 0:
            raise UsageError("--max-calls counts from 0")
        if self.max_cost is not None and not 0 <= self.max_cost < math.inf:
            raise UsageError("--max-cost is a sum of US dollars from 0")
        if not 0 < self.timeout < math.inf:
            raise UsageError("--timeout is a number of seconds above 0")
        if self.concurrency < 1:
            raise UsageError(f"--concurrency is {self.concurrency}, it must be at least 1")
        if self.dry_run and self.replay:
            raise UsageError("--dry-run and --replay exclude each other")

    @property
    def live(self) -> bool:
        """Whether calls may be sent and the run directory written."""
        return not (self.dry_run or self.replay)

    @property
    def window(self) -> int:
        """How many units a stage works on at once."""
        return WINDOW_FACTOR * self.concurrency


@dataclass
class Run:
    """An open run: pipelines ask `client`; stages write into `path`."""

    path: Path
    manifest: Manifest
    client: Client
    options: Options
    plan: Plan | None = None

    @property
    def dry(self) -> bool:
        """Whether nothing may be written."""
        return self.plan is not None


def all_schemes(registry: Registry) -> Registry:
    """The registry, with the schemes that rooms above the models bring."""
    if not registry.knows(CAST):

        @cache
        def casts() -> Casts:  # one for all ids: those of one directory share an engine
            from personae.cast.backend import Casts

            return Casts()

        registry.register(
            CAST,
            lambda model_id: casts().backend(model_id),
            lambda model_id: casts().check(model_id),
        )
    return registry


def read_manifest(run: Path) -> Manifest:
    """The manifest of a run directory.

    Raises:
        InputError: there is none, or it is not one.
    """
    path = run / MANIFEST
    if not run.is_dir():
        raise InputError("there is no such run directory", path=run, mend="Check the path")
    if not path.is_file():
        raise InputError(
            "not a run directory (it has no manifest.json)", path=run, mend="Check the path"
        )
    return Manifest.from_dict(read_json(path), path=path)


def _same_run(old: Manifest, new: Manifest) -> list[str]:
    """What differs between the run in the directory and the one that wants to go on in it."""
    pairs = {
        "the command": (old.kind, new.kind),
        "the models": (old.models, new.models),
        "what it is made from": (old.made_from, new.made_from),
        "the rubrics": (old.rubric_hash, new.rubric_hash),
        "the protocol": (old.protocol, new.protocol),
        "the language": (old.language, new.language),
        "the seed": (old.seed, new.seed),
        "the sampling": (old.sampling, new.sampling),
        "the prompts": (old.prompts, new.prompts),
    }
    different = [what for what, (a, b) in pairs.items() if a != b]
    different += [
        f"the {'cast' if model_scheme(model_behind(model_id)) == CAST else 'script'} {model_id}"
        for model_id, digest in new.versions.items()
        if ":" in model_id and old.versions.get(model_id, digest) != digest
    ]
    different += [
        f"--{name.replace('_', '-')}"
        for name, value in new.arguments.items()
        if name != "cwd" and old.arguments.get(name, value) != value
    ]
    return different


def fingerprints(models: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """SHA-256 of every script and cast that the models name: changed, it is another model.

    Raises:
        UsageError: an id names no cast.
        InputError: a script or a cast is absent.
    """
    found: dict[str, str] = {}
    for model_id in {m for ids in models.values() for m in ids}:
        base = model_behind(model_id)
        if model_scheme(base) == CAST:
            from personae.cast.backend import fingerprint

            found[model_id] = fingerprint(base)
        elif model_scheme(base) == "scripted":
            path = script_path(base)
            if not path.is_file():
                raise InputError("there is no such script", path=path, mend="Give scripted:FILE.py")
            found[model_id] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def new_manifest(
    kind: str,
    models: Mapping[str, Sequence[str]],
    language: Language = "en",
    *,
    room: str | Sequence[str] = "interview",
    **fields: Any,
) -> Manifest:
    """A manifest with the time, the versions and the hashes of prompts and scripts filled in.

    Args:
        room: whose prompts the run uses (`personae.prompts.names`), or several rooms.
    """
    rooms = (room,) if isinstance(room, str) else room
    return Manifest(
        kind=kind,
        models={role: tuple(ids) for role, ids in models.items()},
        language=language,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        versions={
            "personae": __version__,
            "python": platform.python_version(),
            **fingerprints(models),
        },
        prompts={k: v for one in rooms for k, v in prompt_hashes(language, one).items()},
        **fields,
    )


def prompt_hashes(language: Language, room: str) -> dict[str, str]:
    """The hash of every prompt of a room, by `language/name`."""
    return {f"{language}/{name}": prompt_hash(name, language) for name in names(language, room)}


def repair_messages(language: Language) -> Callable[[Call, str, str], tuple[Message, ...]]:
    """Builds the one repair exchange after a reply that does not meet its schema."""

    def build(call: Call, text: str, problem: str) -> tuple[Message, ...]:
        bad = Message(role="assistant", content=text[:20_000])
        return (*call.messages, bad, *render("repair", language, problem=problem))

    return build


@contextlib.asynccontextmanager
async def open_run(
    path: Path,
    manifest: Manifest,
    options: Options,
    *,
    registry: Registry | None = None,
    begin: Callable[[Path], None] | None = None,
) -> AsyncIterator[Run]:
    """Open or continue the run in a directory.

    Args:
        begin: makes the journal of a new run at that path, where it does not begin empty.

    Leaving it normally marks the run done; a stop marks it stopped (resumable), an error failed.

    Raises:
        UsageError: the directory holds a different run.
        JournalError: the journal cannot be used.
        StoppedEarlyError: raised by the body, passed on with the way to resume.
        BadRequestError: the body has ended, but not one call of some model was accepted.
    """
    if not options.trust_scripts and not options.replay:
        _refuse_what_it_was_not_told(manifest)
    registry = all_schemes(registry or Registry(timeout=options.timeout))
    if (path / MANIFEST).is_file():
        old = read_manifest(path)
        different = _same_run(old, manifest)
        if different:
            raise UsageError(
                f"{path} holds another run; {', '.join(different)} would differ. "
                "Choose another --out (answered calls are only reused within a run)"
            )
        manifest = old.model_copy(update={"status": "running"})
    elif options.replay:
        raise ReplayMissError(f"{path}: there is no run to replay")
    elif path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        raise UsageError(f"{path} exists and is not a run directory; choose another --out")
    plan = Plan() if options.dry_run else None
    if options.live:
        _check_models(manifest, options, registry)
    journal = _open_journal(path, manifest, options, begin)
    dry = DryBackend()
    client = Client(
        journal,
        (lambda _id: dry) if plan is not None else registry,
        repair=repair_messages(manifest.language),
        prices=options.prices,
        caps=Caps(options.max_calls, options.max_cost) if plan is None else None,
        concurrency=options.concurrency,
        replay=options.replay,
        observe=options.observe,
        plan=plan,
        first_delay=options.retry_delay,
    )
    run = Run(path, manifest, client, options, plan)
    status = "failed"
    try:
        if options.live:
            _save(run, "running")
        with _stop_on_signal(client), rarer_collections():
            yield run
        if options.live:
            client.check_heard()
        status = "done"
    except (StoppedEarlyError, asyncio.CancelledError):
        status = "stopped"
        raise
    finally:
        await client.close()
        if journal is not None:
            journal.close()
        if options.live:
            with contextlib.suppress(OutputError):  # a full disk: the journal's error says it
                _save(run, status)


def _refuse_what_it_was_not_told(manifest: Manifest) -> None:
    """Resuming runs and asks what a manifest names, and a manifest may come from a stranger."""
    named = [model_behind(m) for ids in manifest.models.values() for m in ids]
    if isinstance(embedder := manifest.arguments.get("embedder"), str):
        named.append(embedder)
    for model_id in named:
        if model_scheme(model_id) == "scripted":
            raise UsageError(
                f"this run uses {model_id}: resuming it executes that file; "
                "look at it, then add --trust-scripts"
            )
        if leads_key_away(model_id):
            raise UsageError(
                f"this run asks {model_id}, and {URL_KEY} would be sent there: if you trust that "
                f"address add --trust-scripts, else unset {URL_KEY}"
            )


def _check_models(manifest: Manifest, options: Options, registry: Registry) -> None:
    """A judge without a key is better noticed before the answers are paid for."""
    for role, ids in manifest.models.items():
        # Only a judge may be `lift:MODEL`.
        for model_id in map(model_behind, ids) if role == "judge" else ids:
            registry.check(model_id)
            if options.max_cost is not None:
                need_price(model_id, options.prices)


def _save(run: Run, status: str) -> None:
    run.manifest = run.manifest.model_copy(update={"status": status})
    text = json.dumps(run.manifest.to_dict(), ensure_ascii=False, indent=2)
    write_atomically(run.path / MANIFEST, text + "\n")


def _open_journal(
    path: Path, manifest: Manifest, options: Options, begin: Callable[[Path], None] | None
) -> Journal | None:
    file = path / JOURNAL
    if not options.live:
        if file.is_file():
            return Journal(file, read_only=True)
        if options.replay:
            raise ReplayMissError(f"{file}: there is no journal to replay")
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made ({error.strerror})", path=path) from None
    if begin is not None and not file.is_file():
        begin(file)
    return Journal(file, command=manifest.kind)


@contextlib.contextmanager
def _stop_on_signal(client: Client) -> Any:
    """First Ctrl-C: nothing new is sent, what is under way is kept. Second: at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    pressed = 0

    def stop() -> None:
        nonlocal pressed
        pressed += 1
        client.stop("interrupted")
        if pressed > 1 and task is not None:
            task.cancel()

    installed: list[signal.Signals] = []
    for which in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(which, stop)
        except (NotImplementedError, RuntimeError, ValueError):
            continue  # not the main thread (a notebook), or a system without signals
        installed.append(which)
    try:
        yield
    finally:
        for which in installed:
            loop.remove_signal_handler(which)
