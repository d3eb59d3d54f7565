"""The character server under load, on real weights (issue D5).

Eight characters over the embedded model (SmolLM2-135M in torch; random blocks of rank 8 on all
linear layers, one of each character beside a shared one, which costs what trained ones cost), asked
over HTTP by 1, 8 and 32 clients at once, one request each under way, the characters in turn. Behind
the same routes, the same uvicorn and the same clients stand

    ours            `personae serve`: all characters in one batch
    no characters   the same engine on the same base without blocks: what characters cost
    switching       the same characters as PEFT adapters (`personae cast export --to peft`),
                    `set_adapter` and `generate`, one request after the other
    http alone      as many pieces said by nobody at once: what HTTP itself costs

Each server is a process of its own; rounds are interleaved, so that a noisy minute meets them all.
No request repeats a prompt. Answers are greedy: in float32 ours and PEFT's are compared, text by
text. Time to the first token is from sending the request to the first piece of text; tokens per
second are those of a wave, from its first request to its last byte.

    python benchmarks/serve.py [--quick] [--rounds N] [--clients 1 8 32] [--record FILE]
    python benchmarks/serve.py --load 64 --seconds 60 --record FILE   # one load run, ours alone

`--record` keeps every reading with the machine and the versions, as JSON. Run it on a quiet machine:
where others compute too, the threads of one matrix product wait for each other, PEFT's many small
ones most of all (`--threads 1` then; the ratios of a crowded machine mean little).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp

OURS, PLAIN, SWITCHING, HTTP = "ours", "no characters", "switching", "http alone"
KINDS = (OURS, PLAIN, SWITCHING, HTTP)
NAMES = (
    "Sherlock Holmes", "Alice", "Ada Lovelace", "Wu Song", "Lin Chong", "Don Quixote",
    "Captain Nemo", "林黛玉",
)  # fmt: skip
RANK, ALPHA = 8, 16.0
WORDS = (  # noqa: SIM905  (readable so)
    "sea captain gold island storm sail night ship anchor rope wind harbour crew map lantern "
    "letter winter road stranger promise silver garden window river bridge clock key song smoke"
).split()
PROMPT_WORDS = 60


@dataclass(frozen=True)
class Reading:
    """One answer: seconds to its first piece and to its end, and its tokens.

    Attributes:
        error: why there is none; the rest is then None.
    """

    kind: str
    clients: int
    wave: int
    character: str
    first: float | None
    seconds: float | None
    tokens: int | None
    prompt: int | None
    text: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Wave:
    """All clients of one level at once; `seconds` from the first request to the last byte."""

    kind: str
    clients: int
    seconds: float
    readings: tuple[Reading, ...]

    @property
    def rate(self) -> float:
        """Tokens of answers per second."""
        return sum(r.tokens or 0 for r in self.readings) / self.seconds


# The cast ---------------------------------------------------------------------------------------


def write_characters(folder: Path) -> Any:
    """Eight characters over `local`, each through the shared block and one of its own."""
    import numpy as np

    from personae.cast.base import base_ref, local_directory, read_config
    from personae.cast.store import write_cast
    from personae.records.cast import Block, CastCharacter

    config = read_config(local_directory("local"))
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = width // config["num_attention_heads"]
    keys = head * config["num_key_value_heads"]
    sizes = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (width, keys),
        "self_attn.v_proj": (width, keys), "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (width, inner), "mlp.up_proj": (width, inner),
        "mlp.down_proj": (inner, width),
    }  # fmt: skip
    draw = np.random.default_rng(0)
    slots = 1 + len(NAMES)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (wide, high) in sizes.items():
            name = f"model.layers.{layer}.{module}"
            a = draw.normal(0, wide**-0.5, (slots, RANK, wide))
            b = draw.normal(0, 0.05, (slots, high, RANK))  # enough that each says something else
            tensors[f"A.{name}"], tensors[f"B.{name}"] = a.astype("f4"), b.astype("f4")
    return write_cast(
        folder,
        base=base_ref("local"),
        rank=RANK,
        alpha=ALPHA,
        blocks=[Block(name=name) for name in ("shared", *NAMES)],
        characters=[CastCharacter(name=n, weights={"shared": 1.0, n: 1.0}) for n in NAMES],
        tensors=tensors,
    )


# Who speaks (in the server's process) -------------------------------------------------------------


async def engine_of(kind: str, cast: Path, adapters: Path) -> Any:
    if kind == OURS:
        from personae.serve.cast_engine import CastEngine

        return await CastEngine.open(cast)
    return {PLAIN: Plain, SWITCHING: Switching, HTTP: Nobody}[kind](cast, adapters)


class Rival:
    """What the rivals share of an `Engine` (`personae.serve.engine`)."""

    def __init__(self, cast: Path, adapters: Path) -> None:
        from personae.cast.store import read_cast

        self.cast = read_cast(cast)
        self.adapters = adapters

    def characters(self) -> list[Any]:
        from personae.serve.engine import ServedCharacter

        return [ServedCharacter(name, {}) for name in NAMES]

    def messages(self, wanted: Any) -> tuple[Any, ...]:
        from personae.cast.dialogue import with_system
        from personae.records import Message

        told = [Message(role=m.role, content=m.content) for m in wanted.messages]
        return with_system(self.cast, wanted.model, told)

    async def refresh(self) -> tuple[str, ...]:
        return ()

    def busy(self) -> int:
        return 0

    async def healthy(self) -> None:
        return None

    async def close(self) -> None:
        return None


class Plain(Rival):
    """The product's generator over a base from which the blocks were taken away."""

    def __init__(self, cast: Path, adapters: Path) -> None:
        from personae.cast.generate import CastGenerator
        from personae.cast.layout import layout_of

        super().__init__(cast, adapters)
        self.generator = CastGenerator.of(self.cast)
        self.generator.stack.detach()
        self.layout = layout_of(self.generator.base.tokenizer)

    async def speak(self, wanted: Any) -> Any:
        from personae.cast.dialogue import chat_prompt
        from personae.cast.generate import Wanted

        prompt = chat_prompt(self.layout, "full", self.messages(wanted), None)
        asked = Wanted(prompt, None, max_tokens=wanted.max_tokens, temperature=wanted.temperature)
        return Said(wanted.model, self._pieces(asked))

    async def _pieces(self, asked: Any) -> AsyncIterator[Any]:
        async with self.generator.stream(asked) as speech:
            async for piece in speech:
                yield piece
            found = await speech.done()
        yield _finished(found.text, found.finish, found.tokens_in, found.tokens_out)

    async def close(self) -> None:
        await asyncio.to_thread(self.generator.close)


class Switching(Rival):
    """transformers and PEFT, as their documentation shows: one request at a time."""

    def __init__(self, cast: Path, adapters: Path) -> None:
        from peft import PeftModel

        from personae.cast.base import base_of, load_base

        super().__init__(cast, adapters)
        base = load_base(base_of(self.cast))
        self.tokenizer = base.tokenizer
        folders = json.loads((adapters / "folders.json").read_text("utf-8"))
        first, *others = NAMES
        self.model: Any = PeftModel.from_pretrained(
            base.model, folders[first], adapter_name=_slug(first)
        )
        for name in others:
            self.model.load_adapter(folders[name], adapter_name=_slug(name))
        self.model.eval()
        self.turn = asyncio.Lock()
        # One thread for all: torch starts its own helpers anew for each thread that calls it.
        self.worker = ThreadPoolExecutor(max_workers=1)

    async def speak(self, wanted: Any) -> Any:
        return Said(wanted.model, self._pieces(wanted, self.messages(wanted)))

    async def _pieces(self, wanted: Any, messages: Sequence[Any]) -> AsyncIterator[Any]:
        from transformers import TextStreamer

        chat = [{"role": m.role, "content": m.content} for m in messages]
        encoded = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()

        class Heard(TextStreamer):
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                loop.call_soon_threadsafe(pieces.put_nowait, text)

        def work() -> None:
            self.model.set_adapter(_slug(wanted.model))
            made = self.model.generate(
                **encoded,
                max_new_tokens=wanted.max_tokens,
                do_sample=False,
                streamer=Heard(self.tokenizer, skip_prompt=True, skip_special_tokens=True),
            )
            size = encoded["input_ids"].shape[1]
            told = _finished("", "stop", size, made.shape[1] - size)
            loop.call_soon_threadsafe(pieces.put_nowait, told)

        async with self.turn:
            done = loop.run_in_executor(self.worker, work)
            said = ""
            while isinstance(piece := await pieces.get(), str):
                said += piece
                yield piece
            await done
        yield _finished(said, piece.finish, piece.tokens_in, piece.tokens_out)


class Nobody(Rival):
    """Says as many pieces as it may, at once."""

    async def speak(self, wanted: Any) -> Any:
        return Said(wanted.model, self._pieces(wanted.max_tokens))

    async def _pieces(self, count: int) -> AsyncIterator[Any]:
        for _ in range(count):
            await asyncio.sleep(0)
            yield " word"
        yield _finished(" word" * count, "stop", 1, count)


class Said:
    """A `Speech` over pieces, the last of which says how it ended."""

    def __init__(self, character: str, pieces: AsyncIterator[Any]) -> None:
        self.character, self._pieces, self._finished = character, self._until(pieces), None

    async def _until(self, pieces: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for piece in pieces:
            if not isinstance(piece, str):
                self._finished = piece
            elif piece:
                yield piece

    async def __aenter__(self) -> Said:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._pieces.aclose()  # type: ignore[attr-defined]

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def done(self) -> Any:
        async for _ in self._pieces:
            pass
        return self._finished


def _finished(text: str, finish: str, tokens_in: int, tokens_out: int) -> Any:
    from personae.serve.engine import Finished

    return Finished(text, finish, tokens_in=tokens_in, tokens_out=tokens_out)


def _slug(name: str) -> str:
    return f"role{NAMES.index(name)}"  # torch's module names hold no dots and blanks


async def serve(kind: str, cast: Path, adapters: Path) -> None:
    """Serve until told to stop; say on stdout where."""
    from personae.serve.run import bind, serve_engine
    from personae.serve.settings import ServeSettings

    settings = ServeSettings(cast=cast, port=0, timeout=900.0, max_concurrency=512, max_queue=512)
    with contextlib.closing(bind(settings.host, settings.port)) as listener:
        engine = await engine_of(kind, cast, adapters)
        try:
            await serve_engine(engine, settings, listener, lambda url: print(url, flush=True))
        finally:
            await engine.close()


@contextlib.contextmanager
def servers(
    kinds: Sequence[str], cast: Path, adapters: Path, threads: int
) -> Iterator[dict[str, str]]:
    """Where each kind answers; their processes end with the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        urls = {}
        for kind in kinds:  # one after the other: loading is not measured, and takes memory
            command = [sys.executable, __file__, "--serve", kind, str(cast), str(adapters)]
            running[kind] = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=environment
            )
            line = running[kind].stdout.readline().strip()  # type: ignore[union-attr]
            if not line:
                raise SystemExit(f"the server of {kind!r} did not start")
            urls[kind] = line
        yield urls
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            process.wait()


# Clients ------------------------------------------------------------------------------------------


def prompt_of(seed: object) -> str:
    """A question that nobody asked before."""
    words = random.Random(str(seed)).choices(WORDS, k=PROMPT_WORDS)
    return f"Tell me of this: {' '.join(words)}."


async def ask(
    client: aiohttp.ClientSession,
    url: str,
    reading: Mapping[str, Any],
    *,
    seed: object,
    tokens: int,
) -> Reading:
    """One streamed answer."""
    body = {
        "model": reading["character"],
        "messages": [{"role": "user", "content": prompt_of(seed)}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first, text, usage, ended = None, "", {}, False
    nothing = {"first": None, "seconds": None, "tokens": None, "prompt": None}
    try:
        async with client.post(f"{url}/chat/completions", json=body) as response:
            if response.status != 200:
                told = (await response.text())[:200]
                return Reading(**reading, **nothing, error=f"{response.status}: {told}")
            async for line in response.content:
                data = line.removeprefix(b"data: ").strip()
                if not line.startswith(b"data: "):
                    continue
                if data == b"[DONE]":
                    ended = True
                    continue
                piece = json.loads(data)
                if piece.get("error"):
                    return Reading(**reading, **nothing, error=str(piece["error"])[:200])
                usage = piece.get("usage") or usage
                for choice in piece["choices"]:
                    if said := choice["delta"].get("content"):
                        first = first or time.perf_counter() - began
                        text += said
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Reading(**reading, **nothing, error=f"{type(error).__name__}: {error}"[:200])
    if not ended or first is None:
        return Reading(**reading, **nothing, error="the stream had no end, or no text")
    return Reading(
        **reading,
        first=first,
        seconds=time.perf_counter() - began,
        tokens=usage.get("completion_tokens"),
        prompt=usage.get("prompt_tokens"),
        text=text,
    )


async def wave(
    kind: str, url: str, clients: int, requests: int, *, number: int, tokens: int
) -> Wave:
    """Clients that each ask so many questions, one after the other."""

    async def one(client: aiohttp.ClientSession, who: int) -> list[Reading]:
        found = []
        for turn in range(requests):
            reading = {
                "kind": kind, "clients": clients, "wave": number,
                "character": NAMES[(who + turn) % len(NAMES)],
            }  # fmt: skip
            seed = (number, clients, who, turn)
            found.append(await ask(client, url, reading, seed=seed, tokens=tokens))
        return found

    timeout = aiohttp.ClientTimeout(total=900)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as client:
        began = time.perf_counter()
        found = await asyncio.gather(*[one(client, who) for who in range(clients)])
        seconds = time.perf_counter() - began
    return Wave(kind, clients, seconds, tuple(r for each in found for r in each))


async def load(url: str, clients: int, seconds: float, tokens: int) -> Wave:
    """As many streams at once as there are clients, for so long; each then ends its answer."""
    until = time.perf_counter() + seconds

    async def one(client: aiohttp.ClientSession, who: int) -> list[Reading]:
        found: list[Reading] = []
        while time.perf_counter() < until:
            turn = len(found)
            reading = {
                "kind": OURS, "clients": clients, "wave": 0,
                "character": NAMES[(who + turn) % len(NAMES)],
            }  # fmt: skip
            seed = ("load", who, turn)
            found.append(await ask(client, url, reading, seed=seed, tokens=tokens))
        return found

    timeout = aiohttp.ClientTimeout(total=900)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as client:
        began = time.perf_counter()
        found = await asyncio.gather(*[one(client, who) for who in range(clients)])
        spent = time.perf_counter() - began
    return Wave(OURS, clients, spent, tuple(r for each in found for r in each))


# What comes out -----------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies (the nearest one above)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(waves: Sequence[Wave]) -> None:
    """Medians by kind and number of clients, beside ours."""
    levels = sorted({w.clients for w in waves})
    print(
        "\n| clients | server | tokens/s | ours = 1 | first token, median | p95 | answers | errors |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for level in levels:
        rates = {
            kind: statistics.median(w.rate for w in waves if (w.kind, w.clients) == (kind, level))
            for kind in KINDS
            if any((w.kind, w.clients) == (kind, level) for w in waves)
        }
        for kind, rate in rates.items():
            readings = [
                r for w in waves if (w.kind, w.clients) == (kind, level) for r in w.readings
            ]
            firsts = [r.first for r in readings if r.first is not None]
            errors = sum(r.error is not None for r in readings)
            middle = f"{statistics.median(firsts):.3f} s" if firsts else "-"
            late = f"{percentile(firsts, 0.95):.3f} s" if firsts else "-"
            share = f"{rate / rates[OURS]:.2f}" if OURS in rates else "-"
            print(
                f"| {level} | {kind} | {rate:.1f} | {share} | {middle} | {late} | "
                f"{len(readings) - errors} | {errors} |"
            )
    print()
    for level in levels:
        for rival, word in ((SWITCHING, "times switching"), (PLAIN, "of the engine without")):
            pair = [
                statistics.median(w.rate for w in waves if (w.kind, w.clients) == (kind, level))
                for kind in (OURS, rival)
                if any((w.kind, w.clients) == (kind, level) for w in waves)
            ]
            if len(pair) == 2:
                print(f"  {level} clients: ours is {pair[0] / pair[1]:.2f} {word}")


def same_texts(waves: Sequence[Wave]) -> None:
    """Whether ours says what PEFT says; sums in another order may turn a near tie."""
    said: dict[tuple[Any, ...], dict[str, str]] = {}
    for w in waves:
        for number, r in enumerate(w.readings):
            if r.text is not None:
                key = (w.clients, r.wave, number, r.character)
                said.setdefault(key, {})[w.kind] = r.text
    both = [one for one in said.values() if OURS in one and SWITCHING in one]
    alike = sum(one[OURS].strip() == one[SWITCHING].strip() for one in both)
    other = sum(one[OURS].strip() != one.get(PLAIN, "").strip() for one in both)
    print(
        f"  ours and PEFT say the same in {alike} of {len(both)} answers; {other} differ from the "
        "base without characters"
    )


def record(path: Path, args: argparse.Namespace, waves: Sequence[Wave]) -> None:
    """Every reading, with what it was measured on."""
    from personae import __version__

    document = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(), "architecture": platform.machine(),
            "load": os.getloadavg(), "python": platform.python_version(),
        },
        "versions": {"personae": __version__, "torch": version("torch")},
        "arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "waves": [
            {**asdict(w), "tokens_per_second": w.rate, "readings": [_brief(r) for r in w.readings]}
            for w in waves
        ],
    }  # fmt: skip
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")
    print(f"  recorded: {path}")


def _brief(reading: Reading) -> dict[str, Any]:
    return {k: v for k, v in asdict(reading).items() if k not in ("text", "kind", "clients")}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--quick", action="store_true", help="one short round, to see it works")
    parser.add_argument("--load", type=int, metavar="CLIENTS", help="one load run, ours alone")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the load run")
    parser.add_argument("--record", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    if args.quick:
        args.clients, args.rounds, args.tokens = [1, 3], 1, 6
    if args.load:
        args.kinds = [OURS]
    print(f"{os.cpu_count()} cores, {args.threads} torch threads, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        cast, adapters = Path(folder, "cast"), Path(folder, "adapters")
        print("a cast of eight over the embedded model ...", flush=True)
        written = write_characters(cast)
        if SWITCHING in args.kinds:
            from personae.cast.export import export_peft

            done = export_peft(written, adapters)
            folders = {name: str(path) for name, path in done.paths.items()}
            (adapters / "folders.json").write_text(json.dumps(folders), "utf-8")
        del written
        waves: list[Wave] = []
        with servers(args.kinds, cast, adapters, args.threads) as urls:
            if args.load:
                print(f"{args.load} clients for {args.seconds:g} s ...", flush=True)
                waves.append(asyncio.run(load(urls[OURS], args.load, args.seconds, args.tokens)))
            else:
                for kind, url in urls.items():  # caches, first allocations
                    asyncio.run(wave(kind, url, 2, 1, number=-1, tokens=4))
                for number in range(args.rounds):
                    for clients in args.clients:
                        requests = 4 if clients == 1 and not args.quick else 1
                        for kind, url in urls.items():
                            found = asyncio.run(
                                wave(
                                    kind, url, clients, requests, number=number, tokens=args.tokens
                                )
                            )
                            waves.append(found)
                            print(
                                f"round {number + 1}, {clients} clients, {kind}: "
                                f"{found.rate:.1f} tokens/s in {found.seconds:.1f} s",
                                flush=True,
                            )
    table(waves)
    if {OURS, SWITCHING} <= set(args.kinds):
        same_texts(waves)
    if args.record:
        record(args.record, args, waves)
    if failed := [r.error for w in waves for r in w.readings if r.error is not None]:
        raise SystemExit(f"{len(failed)} requests failed, the first with {failed[0]}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
    else:
        main()
