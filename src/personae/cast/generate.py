"""`CastGenerator`: many dialogues in one batch, every token under its own character's weights.

One thread owns the model. Rows join and leave between two steps (continuous batching, Yu et al.
2022, Orca, section 3.2); a step is one forward pass for all of them, in which each row, and in
`speaker` mode each token, has its own weights over the blocks (`StackedLoRA.speaking`).

Keys and values outlive their reply: a token's are decided by the tokens up to it and by the weights
each of them had, so whatever a new prompt shares with a kept one, token and weights, is not
computed again. In `full` mode a dialogue so keeps one cache for each character who spoke in it; in
`speaker` mode one for all of them, since what is said does not depend on who will answer.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from personae.cast.caching import Batch, Kept, Layers, Tokens, Voice, layers_of, new_cache
from personae.cast.drawing import Text, draw, told
from personae.cast.stacked import Mix, StackedLoRA
from personae.errors import ContextLengthError, ServerError, UsageError
from personae.records import TokenLogprob

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.store import Cast

MAX_TOKENS = 512
TEMPERATURE, TOP_P = 0.7, 0.95
ROWS = 16
# Tokens of one forward pass, padding counted: a CPU is busy with a few hundred, and those who speak
# wait meanwhile.
_PREFILL_TOKENS, _PREFILL_TOKENS_CPU = 4096, 512
_PAD_AT_MOST = 1.25  # tokens of a prefilled batch over tokens that are none of padding
_REUSE_FROM = 16  # tokens; a shorter prefix is cheaper to compute in a batch than to copy
_KV_BYTES = 1 << 30
_KEPT_BYTES = 256 << 20
_SCORED_AT_ONCE = 128
_CONTEXT = 4096

T = TypeVar("T")
Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Prompt:
    """Tokens, and whose they are.

    Attributes:
        ids: up to where the reply begins.
        speakers: of each token the character under whose blocks it is computed; None: the base.
    """

    ids: tuple[int, ...]
    speakers: tuple[str | None, ...]

    def __post_init__(self) -> None:
        if not self.ids or len(self.ids) != len(self.speakers):
            raise UsageError("a prompt needs tokens, each with its speaker")


@dataclass(frozen=True)
class Wanted:
    """One reply to be generated.

    Attributes:
        character: who speaks; None: the base alone.
        temperature: 0 takes the likeliest token.
        seed: of the draws; the same prompt, sampling and seed give the same reply whoever shares
            the batch, as far as sums in another order leave the logits the same.
        stop: the reply ends before the first of these strings.
        logprobs: how many alternatives to each token; 0: no log-probabilities.
    """

    prompt: Prompt
    character: str | None
    max_tokens: int = MAX_TOKENS
    temperature: float = TEMPERATURE
    top_p: float = TOP_P
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int = 0


@dataclass(frozen=True)
class Generated:
    """A finished reply.

    Attributes:
        ids: the sampled tokens without the one that ended the turn.
        finish: `stop`: the turn's end or a stop string; `length`: max_tokens or a full context.
        tokens_in: of the prompt.
        cached: of those, not computed again.
        tokens_out: sampled, the turn's end included.
    """

    text: str
    ids: tuple[int, ...]
    finish: Finish
    tokens_in: int
    cached: int
    tokens_out: int
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass
class Counts:
    """What a generator has done so far.

    Attributes:
        passes: forward passes.
        read: tokens of prompts that were computed; `cached`: that were not.
        drawn: tokens of replies, ends of turns included.
        finished, failed, cancelled: replies.
    """

    passes: int = 0
    read: int = 0
    cached: int = 0
    drawn: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0


class Speech:
    """A reply under way: iterate over its pieces of text, await `done()` for all of it.

    Leaving the iteration or the context, and cancelling who awaits, cancels the reply: its row
    leaves the batch before the next step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.future: Future[Generated] = Future()
        self._loop = loop
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self.future.add_done_callback(lambda _f: self._put(None))

    def _put(self, piece: str | None) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    async def __aiter__(self) -> AsyncIterator[str]:
        """Pieces of text as they come; none splits a character.

        Raises:
            ServerError: the model failed.
        """
        try:
            while (piece := await self._pieces.get()) is not None:
                yield piece
            if not self.future.cancelled():
                self.future.result()
        finally:
            self.cancel()

    async def __aenter__(self) -> Self:
        """The reply itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Cancel what is still to come."""
        self.cancel()

    async def done(self) -> Generated:
        """The finished reply.

        Raises:
            ServerError: the model failed.
            asyncio.CancelledError: it was cancelled.
        """
        return await asyncio.wrap_future(self.future)

    def cancel(self) -> None:
        """Nobody waits for it any more; does nothing once it is done."""
        self.future.cancel()


class CastGenerator:
    """Generates for the characters of a cast, each under its own weights, in one batch.

    Safe to use from several threads and event loops. `close` it.

    Args:
        base: the model; the stack stands in it already.
        rows: how many replies are generated at once.
        kv_bytes: of the keys and values of the replies under way; further ones wait, and a prompt
            that alone needs more is refused. None: 1 GiB, on CUDA at least a third of the memory
            that is free.
        kept_bytes: of those kept from finished replies.
        prefill_tokens: of prompts that are read between two steps of those who speak; None: 4096,
            on a CPU 512. A longer prompt is read in parts.

    Raises:
        UsageError: a character speaks through a block that the stack has not, or the model keeps a
            recurrent state.
    """

    def __init__(
        self,
        base: LoadedBase,
        stack: StackedLoRA,
        cast: Cast,
        *,
        rows: int = ROWS,
        kv_bytes: int | None = None,
        kept_bytes: int = _KEPT_BYTES,
        prefill_tokens: int | None = None,
    ) -> None:
        self.base, self.stack, self.cast = base, stack, cast
        self._voices: dict[str | None, Voice] = {None: ()}
        for character in cast.manifest.characters:
            self.learn(character.name, character.weights)
        self._model: Any = base.model
        if getattr(self._model, "_is_stateful", False):
            raise UsageError(
                f"{type(self._model).__name__} keeps a state for the whole text instead of keys "
                "and values of each token, so replies cannot share a batch or be gone on with; "
                "take a transformer as the base"
            )
        self._model.eval()
        self._tokenizer: Any = base.tokenizer
        self._rows = rows
        self._kv_bytes = _room_for_keys(self._model.device) if kv_bytes is None else kv_bytes
        self._kept = Kept(kept_bytes)
        on_cpu = self._model.device.type == "cpu"
        self._prefill_tokens = prefill_tokens or (
            _PREFILL_TOKENS_CPU if on_cpu else _PREFILL_TOKENS
        )
        self._ends = _end_tokens(self._model, self._tokenizer)
        config = self._model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self._token_bytes = (
            2 * config.num_hidden_layers * heads * width * self._model.dtype.itemsize
        )
        # What writes none (ALiBi) has no end of its own. A reply that is alone waits for nobody's
        # room, so the bytes bound its length.
        self.context: int = min(
            getattr(config, "max_position_embeddings", None) or _CONTEXT,
            max(1, self._kv_bytes // self._token_bytes),
        )
        accepted = inspect.signature(self._model.forward).parameters
        self._last_only = "logits_to_keep" in accepted
        self._positions = "position_ids" in accepted
        self._wake = threading.Condition()
        self._waiting: deque[_Row] = deque()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._batch: Batch[_Row] = Batch()
        self._joining: list[_Row] = []
        self._begun: _Begun | None = None
        self.counts = Counts()
        self._mix: Mix | None = None
        self._spoken: object = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @classmethod
    def of(
        cls,
        cast: Cast,
        *,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> CastGenerator:
        """Load a cast's base and its blocks; takes its time.

        Args:
            dtype, device: see `load_base`.
            options: `rows`, `kv_bytes`, `kept_bytes`, `prefill_tokens`.

        Raises:
            InputError: the base is gone, or is not the one that the cast was trained on.
            UsageError, WeightsError: see `load_base`.
        """
        from personae.cast.base import base_of, load_base
        from personae.cast.store import attach

        base = load_base(base_of(cast), dtype=dtype, device=device)
        # Its blocks are in the stack then, and need no second place in memory.
        return cls(base, attach(base, cast), replace(cast, tensors={}), **options)

    # Asking ---------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    @property
    def characters(self) -> tuple[str, ...]:
        """Who can speak, in order."""
        # Copied at once: the model's thread may be learning of one more.
        return tuple(name for name in tuple(self._voices) if name is not None)

    @property
    def busy(self) -> int:
        """Replies under way or waiting."""
        return len(self._waiting) + len(self._joining) + len(self._batch.rows)

    def learn(self, name: str, weights: Mapping[str, float]) -> None:
        """One more character that speaks through blocks of the stack (fused, expanded, profile).

        Raises:
            UsageError: the name is taken, or there is no such block.
        """
        if name in self._voices:
            raise UsageError(f"the cast has {name!r} already")
        for block in weights:
            self.stack.index(block)
        self._voices[name] = _voice(weights)

    def check(self, wanted: Wanted) -> None:
        """Refuse what `submit` would refuse. Raises what that raises."""
        if not (wanted.max_tokens >= 1 and wanted.temperature >= 0 and 0 < wanted.top_p <= 1):
            raise UsageError("max_tokens from 1, temperature from 0, top_p above 0 up to 1")
        if len(wanted.prompt.ids) >= self.context:
            raise ContextLengthError(
                f"the prompt has {len(wanted.prompt.ids)} tokens, the model reads {self.context}"
            )
        for one in {wanted.character, *wanted.prompt.speakers}:
            self._voice_of(one)
        self._require_open()

    def submit(self, wanted: Wanted, loop: asyncio.AbstractEventLoop | None = None) -> Speech:
        """Have a reply generated; returns at once.

        Args:
            loop: where its pieces are awaited; None: nobody wants them.

        Raises:
            UsageError: no such character, or sampling that means nothing.
            ContextLengthError: the prompt leaves no room for a reply.
            ServerError: the generator is closed.
        """
        self.check(wanted)
        speech = Speech(loop)
        tokens = Tokens(
            np.asarray(wanted.prompt.ids, dtype=np.int64),
            [self._voice_of(one) for one in wanted.prompt.speakers],
        )
        row = _Row(
            wanted=wanted,
            voice=self._voice_of(wanted.character),
            tokens=tokens,
            most=min(wanted.max_tokens, self.context - len(wanted.prompt.ids)),
            text=Text(self._tokenizer, wanted.stop),
            speech=speech,
            draw=random.Random(wanted.seed),  # noqa: S311  (draws, not secrets)
        )
        with self._wake:
            self._require_open()
            self._waiting.append(row)
            self._start()
        return speech

    def stream(self, wanted: Wanted) -> Speech:
        """The same inside an event loop: iterate over the pieces. Raises what `submit` raises."""
        return self.submit(wanted, asyncio.get_running_loop())

    async def generate(self, wanted: Wanted) -> Generated:
        """One whole reply; cancelling it leaves no work behind. Raises what `submit` raises."""
        return await self.submit(wanted).done()

    def run(self, wanted: Iterable[Wanted]) -> list[Generated]:
        """Whole replies, for callers without an event loop. Raises what `submit` raises."""
        return [speech.future.result() for speech in [self.submit(one) for one in wanted]]

    def score(self, prompt: Prompt, ids: Sequence[int], character: str | None) -> Future[Any]:
        """Log-probabilities in nats of the tokens of a given reply, `list[float]`.

        Raises:
            UsageError: no such character, or no token to score.
            ContextLengthError: it does not fit.
        """
        if not ids:
            raise UsageError("there is no token to score")
        if len(prompt.ids) + len(ids) > self.context:
            raise ContextLengthError(
                f"prompt and reply have {len(prompt.ids) + len(ids)} tokens, "
                f"the model reads {self.context}"
            )
        tokens = Tokens(
            np.asarray([*prompt.ids, *ids], dtype=np.int64),
            [self._voice_of(one) for one in (*prompt.speakers, *[character] * len(ids))],
        )
        return self.between_steps(lambda: self._score(tokens, len(prompt.ids)))

    def add(self, cast: Cast, name: str) -> Future[tuple[str, ...]]:
        """Take in a character that was added to the cast since it was loaded; nobody waits for it.

        Args:
            cast: as it was read after the addition.

        Returns:
            the blocks that the stack lacked and has now.

        Raises:
            UsageError: (from the future) the cast has no such character, or it is here already.
        """
        from personae.cast.expand import join

        def work() -> tuple[str, ...]:
            weights = cast.character(name).weights
            if name in self._voices:
                raise UsageError(f"the cast has {name!r} already")
            blocks = join(self.stack, cast, name)
            self.learn(name, weights)
            self.cast = replace(cast, tensors={})
            return blocks

        return self.between_steps(work)

    def between_steps(self, work: Callable[[], T]) -> Future[T]:
        """Run something on the model's own thread while no forward pass is under way.

        For whatever changes the stack: a new slot, other values in a block (then `forget` too).
        """
        done: Future[T] = Future()
        with self._wake:
            self._require_open()
            self._jobs.append((work, done))
            self._start()
        return done

    def forget(self) -> None:
        """Drop the kept keys and values: the blocks that made them have changed."""
        self._kept.clear()

    def close(self) -> None:
        """End the thread; replies under way fail."""
        with self._wake:
            self._closed = True
            thread, self._thread = self._thread, None
            self._wake.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._kept.clear()

    def _require_open(self) -> None:
        if self._closed:
            raise ServerError("this generator is closed")

    def _voice_of(self, character: str | None) -> Voice:
        voice = self._voices.get(character)
        if voice is None:
            raise UsageError(f"the cast has no {character!r}: {', '.join(self.characters)}")
        return voice

    # The thread -----------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._loop, name="personae-cast-generator", daemon=True
            )
            self._thread.start()
        self._wake.notify_all()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._jobs or self.busy or self._closed):
                    self._wake.wait()
                if self._closed:
                    break
                job = self._jobs.popleft() if self._jobs else None
            if job is not None:
                _carry_out(*job)
                continue
            try:
                with torch.inference_mode():
                    self._let_go()
                    self._admit()
                    if self._batch.rows:
                        self._step()
            except Exception as error:  # noqa: BLE001  whatever it is, those who wait must hear it
                for row in self._all_out():
                    self.counts.failed += 1
                    row.fail(f"the model failed: {type(error).__name__}: {error}")
        for row in (*self._all_out(), *self._waiting):
            row.fail("this generator was closed")
        self._waiting.clear()
        for _, done in self._jobs:
            done.cancel()
        self._jobs.clear()

    def _let_go(self) -> None:
        """Rows that nobody waits for any more leave, also those that only wait."""
        stay = [n for n, row in enumerate(self._batch.rows) if row.wanted_on]
        self.counts.cancelled += len(self._batch.rows) - len(stay)
        self._batch.keep(stay)
        with self._wake:
            waiting = deque(row for row in self._waiting if row.wanted_on)
            self.counts.cancelled += len(self._waiting) - len(waiting)
            self._waiting = waiting

    def _all_out(self) -> list[_Row]:
        """Empty the batch; those who were in it or about to join."""
        rows = [*self._batch.rows, *self._joining]
        self._batch, self._joining, self._begun = Batch(), [], None
        return rows

    def _admit(self) -> None:
        """Let rows join, as many as there is room for, at most one pass's tokens of them."""
        if self._begun is not None:
            self._go_on(self._begun)
            return
        room: list[tuple[_Row, Layers | None, int]] = []
        padded = 0
        while self._waiting and len(self._batch.rows) + len(room) < self._rows:
            row = self._waiting[0]
            if row.wanted_on:
                rows = [*self._batch.rows, *(one for one, _, _ in room), row]
                longest = max(len(one.tokens) + one.most for one in rows)
                if len(rows) > 1 and len(rows) * longest * self._token_bytes > self._kv_bytes:
                    break
                layers, common = self._kept.longest(row.tokens, len(row.tokens) - 1)
                padded += len(row.tokens) - common
                if room and padded > self._prefill_tokens:
                    break
                room.append((row, layers, common))
                self._joining.append(row)
            else:
                self.counts.cancelled += 1
            with self._wake:
                self._waiting.popleft()
        if room and padded > self._prefill_tokens and len(room) == 1:
            ((row, layers, common),) = room
            row.cached = common
            self._begun = _Begun(row, new_cache(layers, common), common)
            self._go_on(self._begun)
            return
        together = []
        for row, layers, common in room:
            if common >= _REUSE_FROM:
                self._join([row], *self._prefill_after(row, layers, common))
            else:
                together.append(row)
        together.sort(key=lambda row: len(row.tokens))
        for group in _of_like_length(together, self._prefill_tokens):
            self._join(group, *self._prefill(group))

    def _go_on(self, begun: _Begun) -> None:
        """Read one part more of a long prompt."""
        row = begun.row
        if not row.wanted_on:
            self._begun, self._joining = None, []
            self.counts.cancelled += 1
            return
        end = min(begun.at + self._prefill_tokens, len(row.tokens))
        logits = self._extend(begun.cache, row.tokens, begun.at, end)
        begun.at = end
        if end == len(row.tokens):
            self._begun = None
            self._join([row], layers_of(begun.cache), [0], logits[:, -1])

    def _join(self, rows: list[_Row], layers: Layers, pads: list[int], logits: Tensor) -> None:
        self._batch.join(rows, layers, pads)
        self._joining = [row for row in self._joining if row not in rows]
        for row in rows:
            self.counts.read += len(row.tokens) - row.cached
            self.counts.cached += row.cached
        self._take(rows, logits)

    def _prefill(self, rows: list[_Row]) -> tuple[Layers, list[int], Tensor]:
        """The prompts of rows of like length in one pass, padded on the left."""
        longest = max(len(row.tokens) for row in rows)
        pads = [longest - len(row.tokens) for row in rows]
        if len(rows) == 1:
            return self._prefill_after(rows[0], None, 0)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for n, (row, pad) in enumerate(zip(rows, pads, strict=True)):
            ids[n, pad:] = torch.from_numpy(row.tokens.ids)
            mask[n, pad:] = 1
        cache = new_cache(None, 0)
        weights = self._weights([row.tokens for row in rows], pads)
        logits = self._forward(ids, mask, cache, weights)[:, -1]
        return layers_of(cache), pads, logits

    def _prefill_after(
        self, row: _Row, kept: Layers | None, common: int
    ) -> tuple[Layers, list[int], Tensor]:
        """What of one prompt comes after the part that is kept."""
        row.cached = common
        cache = new_cache(kept, common)
        logits = self._extend(cache, row.tokens, common, len(row.tokens))
        return layers_of(cache), [0], logits[:, -1]

    def _extend(self, cache: DynamicCache, tokens: Tokens, start: int, end: int) -> Tensor:
        """Read the tokens from one place to another; logits of the last."""
        part = tokens.part(start, end)
        mask = torch.ones(1, end, dtype=torch.long)
        mix = self._weights([part], [0])
        return self._forward(torch.from_numpy(part.ids)[None], mask, cache, mix)

    def _step(self) -> None:
        """One more token of every row."""
        batch = self._batch
        ids = torch.tensor([[row.next] for row in batch.rows])
        mask = batch.grow()
        voices = tuple(row.voice for row in batch.rows)
        weights = self._one_each(voices)
        logits = self._forward(ids, mask, batch.cache, weights)[:, -1]
        for row in batch.rows:
            row.tokens.append(row.next, row.voice)
        self._take(batch.rows, logits)

    def _forward(
        self, ids: Tensor, mask: Tensor, cache: DynamicCache, mix: Mix | None, last: int = 1
    ) -> Tensor:
        """Logits `[rows, last, vocabulary]` of the last tokens; the cache grows by the ids."""
        device = self._model.device
        more: dict[str, Any] = {"logits_to_keep": last} if self._last_only else {}
        if self._positions:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            more["position_ids"] = positions.to(device)
        self.counts.passes += 1
        with self.stack.speaking(mix):
            found = self._model(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                past_key_values=cache,
                use_cache=True,
                **more,
            )
        logits: Tensor = found.logits[:, -last:].float()
        return logits

    def _one_each(self, voices: tuple[Voice, ...]) -> Mix | None:
        """The mix of a step; made anew only when rows have joined or left."""
        if not any(voices):
            return None
        spoken = (voices, self.stack.slots)
        if self._spoken != spoken:
            weights = self.stack.weights([dict(voice) for voice in voices], device="cpu")
            self._mix, self._spoken = self.stack.mix(weights), spoken
        return self._mix

    def _weights(self, rows: Sequence[Tokens], pads: Sequence[int]) -> Mix | None:
        """The mix of a prefilled batch, padded on the left; pads have no block."""
        if {voice for row in rows for voice in row.kinds} == {()}:
            return None
        if all(len(row.kinds) == 1 for row in rows):
            voices = [dict(row.kinds[0]) for row in rows]
            return self.stack.mix(self.stack.weights(voices, device="cpu"))
        made = []
        for row, pad in zip(rows, pads, strict=True):
            table = self.stack.weights([{}, *map(dict, row.kinds)], device="cpu")
            made.append(table[np.concatenate([np.zeros(pad, np.int64), row.numbers + 1])])
        return self.stack.mix(torch.stack(made))

    def _take(self, rows: list[_Row], logits: Tensor) -> None:
        """Draw each row's next token; those that have come to their end leave."""
        drawn = draw(
            logits,
            [row.wanted.temperature for row in rows],
            [row.wanted.top_p for row in rows],
            [row.draw for row in rows],
        )
        self.counts.drawn += len(drawn)
        for n, (row, token) in enumerate(zip(rows, drawn, strict=True)):
            if count := row.wanted.logprobs:
                row.told.append(told(logits[n], token, count, self._tokenizer))
            row.take(token, ended=token in self._ends)
        over = [n for n, row in enumerate(self._batch.rows) if row.finish is not None]
        if over:
            for n in over:
                row = self._batch.rows[n]
                self._kept.keep(row.tokens, self._batch.of(n))
            gone = [self._batch.rows[n] for n in over]
            self._batch.keep([n for n in range(len(self._batch.rows)) if n not in set(over)])
            for row in gone:
                self.counts.finished += row.wanted_on
                row.end()

    def _score(self, tokens: Tokens, start: int) -> list[float]:
        found: list[float] = []
        with torch.inference_mode():
            layers, common = self._kept.longest(tokens, start - 1)
            cache = new_cache(layers, common)
            for at in range(common, start - 1, self._prefill_tokens):
                self._extend(cache, tokens, at, min(at + self._prefill_tokens, start - 1))
            for at in range(start - 1, len(tokens) - 1, _SCORED_AT_ONCE):
                part = tokens.part(at, min(at + _SCORED_AT_ONCE, len(tokens) - 1))
                mask = torch.ones(1, at + len(part), dtype=torch.long)
                ids = torch.from_numpy(part.ids)[None]
                weights = self._weights([part], [0])
                logits = self._forward(ids, mask, cache, weights, last=len(part))[0]
                given = torch.from_numpy(tokens.ids[at + 1 : at + 1 + len(part)])
                chosen = logits.log_softmax(-1).gather(-1, given.to(logits.device)[:, None])
                found += chosen[:, 0].tolist()
        return found


# Tokens and rows ----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Row:
    """One reply under way."""

    wanted: Wanted
    voice: Voice
    tokens: Tokens  # whose keys and values are there, once it has joined
    most: int
    text: Text
    speech: Speech
    draw: random.Random
    cached: int = 0
    next: int = 0
    out: list[int] = field(default_factory=list)
    told: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    ended: bool = False

    @property
    def wanted_on(self) -> bool:
        return not self.speech.future.done()

    def take(self, token: int, *, ended: bool) -> None:
        self.next = token
        self.ended = ended
        if not ended:
            self.out.append(token)
            piece = self.text.push(token)
            if piece:
                self.speech._put(piece)
        if ended or self.text.stopped:
            self.finish = "stop"
        elif len(self.out) >= self.most:
            self.finish = "length"

    def end(self) -> None:
        assert self.finish is not None
        if piece := self.text.end():
            self.speech._put(piece)
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            self.speech.future.set_result(
                Generated(
                    text=self.text.whole,
                    ids=tuple(self.out),
                    finish="stop" if self.text.stopped else self.finish,
                    tokens_in=len(self.wanted.prompt.ids),
                    cached=self.cached,
                    tokens_out=len(self.out) + self.ended,
                    logprobs=tuple(self.told[: len(self.out)]) if self.wanted.logprobs else None,
                )
            )

    def fail(self, why: str) -> None:
        with contextlib.suppress(InvalidStateError):
            self.speech.future.set_exception(ServerError(why))


@dataclass
class _Begun:
    """A long prompt that is read part by part, and how far."""

    row: _Row
    cache: DynamicCache
    at: int


def _voice(weights: Mapping[str, float]) -> Voice:
    return tuple(sorted((block, float(w)) for block, w in weights.items() if w))


def _carry_out(work: Callable[[], Any], done: Future[Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001  it is the caller's, wherever he waits
        done.set_exception(error)


def _room_for_keys(device: torch.device) -> int:
    if device.type != "cuda":
        return _KV_BYTES
    free, _total = torch.cuda.mem_get_info(device)
    return max(_KV_BYTES, free // 3)


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn."""
    found: set[int] = set()
    for one in (
        tokenizer.eos_token_id,
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
    ):
        if one is not None:
            found.update([one] if isinstance(one, int) else one)
    return frozenset(found)


def _of_like_length(rows: list[_Row], most: int) -> Iterator[list[_Row]]:
    """Rows, sorted by length, in groups with little padding and not too many tokens."""
    group: list[_Row] = []
    for row in rows:
        longest, real = len(row.tokens), sum(len(one.tokens) for one in group) + len(row.tokens)
        padded = longest * (len(group) + 1)
        if group and (padded > most or padded > _PAD_AT_MOST * real):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
