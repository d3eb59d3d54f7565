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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from personae.cast.stacked import StackedLoRA
from personae.errors import ContextLengthError, ServerError, UsageError
from personae.records import TokenLogprob

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.store import Cast

MAX_TOKENS = 512
TEMPERATURE, TOP_P = 0.7, 0.95
ROWS = 16
_PREFILL_TOKENS = 2048  # of one forward pass, padding counted
_PAD_AT_MOST = 1.25  # tokens of a prefilled batch over tokens that are none of padding
_REUSE_FROM = 16  # tokens; a shorter prefix is cheaper to compute in a batch than to copy
_KV_BYTES = 1 << 30
_KEPT_BYTES = 256 << 20
_ROOM = 64  # tokens by which a cache grows
_LIKELY = 512  # tokens looked at before all are sorted
_SCORED_AT_ONCE = 128
_UNFINISHED = "\ufffd"

T = TypeVar("T")
Finish = Literal["stop", "length"]
Voice = tuple[tuple[str, float], ...]
"""What a token was computed under: blocks with their weights, in the order of their names."""


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
        kv_bytes: of the keys and values of the replies under way; further ones wait.
        kept_bytes: of those kept from finished replies.

    Raises:
        UsageError: a character speaks through a block that the stack has not.
    """

    def __init__(
        self,
        base: LoadedBase,
        stack: StackedLoRA,
        cast: Cast,
        *,
        rows: int = ROWS,
        kv_bytes: int = _KV_BYTES,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self.base, self.stack, self.cast = base, stack, cast
        self._voices: dict[str | None, Voice] = {None: ()}
        for character in cast.manifest.characters:
            self.learn(character.name, character.weights)
        self._model: Any = base.model
        self._model.eval()
        self._tokenizer: Any = base.tokenizer
        self._rows, self._kv_bytes = rows, kv_bytes
        self._kept = _Kept(kept_bytes)
        self._ends = _end_tokens(self._model, self._tokenizer)
        config = self._model.config.get_text_config()
        self.context: int = config.max_position_embeddings
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self._token_bytes = (
            2 * config.num_hidden_layers * heads * width * self._model.dtype.itemsize
        )
        accepted = inspect.signature(self._model.forward).parameters
        self._last_only = "logits_to_keep" in accepted
        self._positions = "position_ids" in accepted
        self._wake = threading.Condition()
        self._waiting: deque[_Row] = deque()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._batch = _Batch()
        self._joining: list[_Row] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    # Asking ---------------------------------------------------------------------------------------

    @property
    def characters(self) -> tuple[str, ...]:
        """Who can speak, in order."""
        return tuple(name for name in self._voices if name is not None)

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

    def submit(self, wanted: Wanted, loop: asyncio.AbstractEventLoop | None = None) -> Speech:
        """Have a reply generated; returns at once.

        Args:
            loop: where its pieces are awaited; None: nobody wants them.

        Raises:
            UsageError: no such character, or sampling that means nothing.
            ContextLengthError: the prompt leaves no room for a reply.
            ServerError: the generator is closed.
        """
        if not (wanted.max_tokens >= 1 and wanted.temperature >= 0 and 0 < wanted.top_p <= 1):
            raise UsageError("max_tokens from 1, temperature from 0, top_p above 0 up to 1")
        if len(wanted.prompt.ids) >= self.context:
            raise ContextLengthError(
                f"the prompt has {len(wanted.prompt.ids)} tokens, the model reads {self.context}"
            )
        speech = Speech(loop)
        tokens = _Tokens(
            np.asarray(wanted.prompt.ids, dtype=np.int64),
            [self._voice_of(one) for one in wanted.prompt.speakers],
        )
        row = _Row(
            wanted=wanted,
            voice=self._voice_of(wanted.character),
            tokens=tokens,
            most=min(wanted.max_tokens, self.context - len(wanted.prompt.ids)),
            text=_Text(self._tokenizer, wanted.stop),
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
        tokens = _Tokens(
            np.asarray([*prompt.ids, *ids], dtype=np.int64),
            [self._voice_of(one) for one in (*prompt.speakers, *[character] * len(ids))],
        )
        return self.between_steps(lambda: self._score(tokens, len(prompt.ids)))

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
                while not (self._jobs or self._waiting or self._batch.rows or self._closed):
                    self._wake.wait()
                if self._closed:
                    break
                job = self._jobs.popleft() if self._jobs else None
            if job is not None:
                _carry_out(*job)
                continue
            try:
                with torch.inference_mode():
                    self._batch.keep([n for n, row in enumerate(self._batch.rows) if row.wanted_on])
                    self._admit()
                    if self._batch.rows:
                        self._step()
            except Exception as error:  # noqa: BLE001  whatever it is, those who wait must hear it
                rows, self._batch = [*self._batch.rows, *self._joining], _Batch()
                self._joining = []
                for row in rows:
                    row.fail(f"the model failed: {type(error).__name__}: {error}")
        for row in (*self._batch.rows, *self._waiting):
            row.fail("this generator was closed")
        self._batch = _Batch()
        self._waiting.clear()
        for _, done in self._jobs:
            done.cancel()
        self._jobs.clear()

    def _admit(self) -> None:
        """Let rows join, as many as there is room for, at most one pass's tokens of them."""
        room: list[tuple[_Row, _Layers | None, int]] = []
        padded = 0
        while self._waiting and len(self._batch.rows) + len(room) < self._rows:
            row = self._waiting[0]
            if row.wanted_on:
                rows = [*self._batch.rows, *(one for one, _, _ in room), row]
                longest = max(len(one.tokens) + one.most for one in rows)
                if len(rows) > 1 and len(rows) * longest * self._token_bytes > self._kv_bytes:
                    break
                layers, common = self._kept.longest(row.tokens, len(row.tokens) - 1)
                fresh = len(row.tokens) - common
                if room and padded + fresh > _PREFILL_TOKENS:
                    break
                padded += fresh
                room.append((row, layers, common))
                self._joining.append(row)
            with self._wake:
                self._waiting.popleft()
        alone = [one for one in room if one[2] >= _REUSE_FROM]
        together = sorted(
            (row for row, _, n in room if n < _REUSE_FROM), key=lambda r: len(r.tokens)
        )
        for row, layers, common in alone:
            self._join([row], *self._prefill_after(row, layers, common))
        for group in _of_like_length(together):
            self._join(group, *self._prefill(group))

    def _join(self, rows: list[_Row], layers: _Layers, pads: list[int], logits: Tensor) -> None:
        self._batch.join(rows, layers, pads)
        self._joining = [row for row in self._joining if row not in rows]
        self._take(rows, logits)

    def _prefill(self, rows: list[_Row]) -> tuple[_Layers, list[int], Tensor]:
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
        cache = _cache(None, 0)
        weights = self._weights([((), pad) for pad in pads], [row.tokens for row in rows])
        logits = self._forward(ids, mask, cache, weights)[:, -1]
        return _layers(cache), pads, logits

    def _prefill_after(
        self, row: _Row, kept: _Layers | None, common: int
    ) -> tuple[_Layers, list[int], Tensor]:
        """What of one prompt comes after the part that is kept."""
        row.cached = common
        cache = _cache(kept, common)
        logits = self._extend(cache, row.tokens, common, len(row.tokens))
        return _layers(cache), [0], logits[:, -1]

    def _extend(self, cache: DynamicCache, tokens: _Tokens, start: int, end: int) -> Tensor:
        logits = None
        for at in range(start, end, _PREFILL_TOKENS):
            part = tokens.part(at, min(at + _PREFILL_TOKENS, end))
            ids = torch.from_numpy(part.ids)[None]
            mask = torch.ones(1, at + len(part), dtype=torch.long)
            logits = self._forward(ids, mask, cache, self._weights([((), 0)], [part]))
        assert logits is not None
        return logits

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
        self, ids: Tensor, mask: Tensor, cache: DynamicCache, weights: Tensor | None, last: int = 1
    ) -> Tensor:
        """Logits `[rows, last, vocabulary]` of the last tokens; the cache grows by the ids."""
        device = self._model.device
        more: dict[str, Any] = {"logits_to_keep": last} if self._last_only else {}
        if self._positions:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            more["position_ids"] = positions.to(device)
        with self.stack.speaking(weights):
            found = self._model(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                past_key_values=cache,
                use_cache=True,
                **more,
            )
        logits: Tensor = found.logits[:, -last:].float()
        return logits

    def _one_each(self, voices: tuple[Voice, ...]) -> Tensor | None:
        if not any(voices):
            return None
        if (voices, self.stack.slots) != self._batch.spoken:
            self._batch.spoken = (voices, self.stack.slots)
            self._batch.weights = self.stack.weights([dict(voice) for voice in voices])
        return self._batch.weights

    def _weights(
        self, before: Sequence[tuple[Voice, int]], rows: Sequence[_Tokens]
    ) -> Tensor | None:
        """`[rows, S]` where every row has one voice, else `[rows, tokens, S]`; pads have none."""
        kinds = {voice for row in rows for voice in row.kinds}
        if kinds == {()}:
            return None
        if all(len(row.kinds) == 1 for row in rows):
            return self.stack.weights([dict(row.kinds[0]) for row in rows])
        table = self.stack.weights([dict(voice) for row in rows for voice in ((), *row.kinds)])
        made, first = [], 0
        for (_, pad), row in zip(before, rows, strict=True):
            which = torch.from_numpy(np.concatenate([np.full(pad, -1), row.numbers]) + 1 + first)
            made.append(table[which.to(table.device)])
            first += 1 + len(row.kinds)
        return torch.stack(made)

    def _take(self, rows: list[_Row], logits: Tensor) -> None:
        """Draw each row's next token; those that have come to their end leave."""
        drawn = _draw(logits, [row.wanted for row in rows], [row.draw for row in rows])
        told = _told(logits, drawn, rows, self._tokenizer)
        for row, token, one in zip(rows, drawn, told, strict=True):
            row.take(token, one, ended=token in self._ends)
        over = [n for n, row in enumerate(self._batch.rows) if row.finish is not None]
        if over:
            for n in over:
                row = self._batch.rows[n]
                self._kept.keep(row.tokens, self._batch.layers_of(n))
            gone = [self._batch.rows[n] for n in over]
            self._batch.keep([n for n in range(len(self._batch.rows)) if n not in set(over)])
            for row in gone:
                row.end()

    def _score(self, tokens: _Tokens, start: int) -> list[float]:
        found: list[float] = []
        with torch.inference_mode():
            layers, common = self._kept.longest(tokens, start - 1)
            cache = _cache(layers, common)
            if start - 1 > common:
                self._extend(cache, tokens, common, start - 1)
            for at in range(start - 1, len(tokens) - 1, _SCORED_AT_ONCE):
                part = tokens.part(at, min(at + _SCORED_AT_ONCE, len(tokens) - 1))
                mask = torch.ones(1, at + len(part), dtype=torch.long)
                ids = torch.from_numpy(part.ids)[None]
                weights = self._weights([((), 0)], [part])
                logits = self._forward(ids, mask, cache, weights, last=len(part))[0]
                given = torch.from_numpy(tokens.ids[at + 1 : at + 1 + len(part)])
                chosen = logits.log_softmax(-1).gather(-1, given.to(logits.device)[:, None])
                found += chosen[:, 0].tolist()
        return found


# Tokens and rows ----------------------------------------------------------------------------------


class _Tokens:
    """Ids and, of each, the voice it is computed under."""

    def __init__(self, ids: np.ndarray, voices: Iterable[Voice]) -> None:
        numbers: dict[Voice, int] = {}
        self._ids = ids
        self._numbers = np.asarray(
            [numbers.setdefault(voice, len(numbers)) for voice in voices], dtype=np.int64
        )
        self._more: list[int] = []
        self._more_numbers: list[int] = []
        self.kinds: tuple[Voice, ...] = tuple(numbers)

    def __len__(self) -> int:
        return len(self._ids) + len(self._more)

    def append(self, token: int, voice: Voice) -> None:
        if voice not in self.kinds:
            self.kinds = (*self.kinds, voice)
        self._more.append(token)
        self._more_numbers.append(self.kinds.index(voice))

    @property
    def ids(self) -> np.ndarray:
        self._settle()
        return self._ids

    @property
    def numbers(self) -> np.ndarray:
        """Of each token, the place of its voice in `kinds`."""
        self._settle()
        return self._numbers

    def _settle(self) -> None:
        if self._more:
            self._ids = np.concatenate([self._ids, np.asarray(self._more, dtype=np.int64)])
            self._numbers = np.concatenate(
                [self._numbers, np.asarray(self._more_numbers, dtype=np.int64)]
            )
            self._more, self._more_numbers = [], []

    def part(self, start: int, end: int) -> _Tokens:
        return _Tokens(self.ids[start:end], [self.kinds[n] for n in self.numbers[start:end]])

    def common(self, other: _Tokens) -> int:
        """How many first tokens are the same, and under the same voice."""
        n = min(len(self), len(other))
        same = self.ids[:n] == other.ids[:n]
        if self.kinds != other.kinds:
            place = {voice: k for k, voice in enumerate(self.kinds)}
            translated = np.asarray([place.get(voice, -1) for voice in other.kinds])
            same &= self.numbers[:n] == translated[other.numbers[:n]]
        else:
            same &= self.numbers[:n] == other.numbers[:n]
        return n if same.all() else int(np.argmin(same))


@dataclass(eq=False)
class _Row:
    """One reply under way."""

    wanted: Wanted
    voice: Voice
    tokens: _Tokens  # whose keys and values are there, once it has joined
    most: int
    text: _Text
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

    def take(self, token: int, told: TokenLogprob | None, *, ended: bool) -> None:
        self.next = token
        self.ended = ended
        if not ended:
            self.out.append(token)
            if told is not None:
                self.told.append(told)
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
                    logprobs=tuple(self.told) if self.wanted.logprobs else None,
                )
            )

    def fail(self, why: str) -> None:
        with contextlib.suppress(InvalidStateError):
            self.speech.future.set_exception(ServerError(why))


class _Text:
    """Tokens to text: in whole characters, and up to the first stop string."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, [s for s in stop if s]
        self._ids: list[int] = []
        # A token's text depends on the one before it (SentencePiece drops a leading space), so the
        # new tokens are decoded behind some that have been read.
        self._from, self._read = 0, 0
        self._held = ""
        self._given: list[str] = []
        self.stopped = False

    @property
    def whole(self) -> str:
        """All that was given out."""
        return "".join(self._given)

    def push(self, token: int) -> str:
        """What is certain to be part of the text, now that this token is there."""
        self._ids.append(token)
        before, now = self._decode(self._from, self._read), self._decode(self._from, None)
        if len(now) <= len(before) or now.endswith(_UNFINISHED):
            return ""
        self._from, self._read = self._read, len(self._ids)
        return self._give(now[len(before) :])

    def end(self) -> str:
        """What was held back."""
        if self.stopped:
            return ""
        before, now = self._decode(self._from, self._read), self._decode(self._from, None)
        rest = self._give(now[len(before) :])
        held, self._held = ("" if self.stopped else self._held), ""
        if held:
            self._given.append(held)
        return rest + held

    def _decode(self, start: int, end: int | None) -> str:
        text: str = self._tokenizer.decode(
            self._ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _give(self, piece: str) -> str:
        text = self._held + piece
        places = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if places:
            self.stopped, self._held = True, ""
            text = text[: min(places)]
        else:
            begun = max((_begins(text, stop) for stop in self._stop), default=0)
            text, self._held = text[: len(text) - begun], text[len(text) - begun :]
        if text:
            self._given.append(text)
        return text


def _begins(text: str, stop: str) -> int:
    """How many last characters of a text are the first ones of a stop string."""
    most = min(len(stop) - 1, len(text))
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


def _voice(weights: Mapping[str, float]) -> Voice:
    return tuple(sorted((block, float(w)) for block, w in weights.items() if w))


def _carry_out(work: Callable[[], Any], done: Future[Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001  it is the caller's, wherever he waits
        done.set_exception(error)


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


def _of_like_length(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Rows, sorted by length, in groups with little padding and not too many tokens."""
    group: list[_Row] = []
    for row in rows:
        longest, real = len(row.tokens), sum(len(one.tokens) for one in group) + len(row.tokens)
        padded = longest * (len(group) + 1)
        if group and (padded > _PREFILL_TOKENS or padded > _PAD_AT_MOST * real):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


# Keys and values ----------------------------------------------------------------------------------

_Layers = list[tuple[Tensor, Tensor]]
"""Of each layer keys and values, `[rows, heads, tokens, width]`."""


class _Growing(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers has no types
    """A layer's cache with room to grow into, so that a step does not copy all that is there."""

    _rooms: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append; returns keys and values of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if self._rooms is None or after > self._rooms[0].shape[-2]:
            rooms = []
            for new, old in ((key_states, self.keys), (value_states, self.values)):
                shape = (*new.shape[:-2], after + _ROOM, new.shape[-1])
                room = torch.zeros(shape, dtype=new.dtype, device=new.device)
                if before:
                    assert old is not None
                    room[..., :before, :] = old
                rooms.append(room)
            self._rooms = (rooms[0], rooms[1])
        for new, room in zip((key_states, value_states), self._rooms, strict=True):
            room[..., before:after, :] = new
        self.keys, self.values = (room[..., :after, :] for room in self._rooms)
        return self.keys, self.values


def _cache(layers: _Layers | None, tokens: int) -> DynamicCache:
    """A cache that begins with the first tokens of some layers; those stay as they are."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = _Growing
    for keys, values in layers or ():
        layer: Any = _Growing()  # type: ignore[no-untyped-call]  # transformers has no types
        layer.update(keys[..., :tokens, :], values[..., :tokens, :])
        cache.layers.append(layer)
    return cache


def _layers(cache: DynamicCache) -> _Layers:
    if not all(type(layer) is _Growing and layer.is_initialized for layer in cache.layers):
        raise UsageError("this model keeps another state than keys and values of each token")
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


class _Batch:
    """The rows under way, their keys and values padded on the left to one length."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.cache = _cache(None, 0)
        self._pads: list[int] = []
        self._length = 0
        self.spoken: object = None
        self.weights: Tensor | None = None

    def join(self, rows: list[_Row], layers: _Layers, pads: list[int]) -> None:
        """Take in rows whose keys and values are there."""
        length = layers[0][0].shape[-2]
        if self.rows:
            old = _layers(self.cache)
            longest = max(length, self._length)
            layers = [
                (_stacked(a, c, longest), _stacked(b, d, longest))
                for (a, b), (c, d) in zip(old, layers, strict=True)
            ]
            pads = [
                *(pad + longest - self._length for pad in self._pads),
                *(pad + longest - length for pad in pads),
            ]
            length = longest
        self.rows, self._pads, self._length = [*self.rows, *rows], pads, length
        self.cache = _cache(layers, length)

    def grow(self) -> Tensor:
        """The attention mask `[rows, tokens]` with one token more."""
        self._length += 1
        mask = torch.ones(len(self.rows), self._length, dtype=torch.long)
        for n, pad in enumerate(self._pads):
            mask[n, :pad] = 0
        return mask

    def layers_of(self, row: int) -> _Layers:
        """A copy of one row's keys and values without its padding."""
        pad = self._pads[row]
        return [
            (k[row : row + 1, :, pad:].clone(), v[row : row + 1, :, pad:].clone())
            for k, v in _layers(self.cache)
        ]

    def keep(self, rows: list[int]) -> None:
        """Let the others go, and what is padding in all that stay."""
        if len(rows) == len(self.rows):
            return
        if not rows:
            self.__init__()  # type: ignore[misc]  # as new
            return
        spare = min(self._pads[n] for n in rows)
        layers = [(k[rows][:, :, spare:], v[rows][:, :, spare:]) for k, v in _layers(self.cache)]
        self.rows = [self.rows[n] for n in rows]
        self._pads = [self._pads[n] - spare for n in rows]
        self._length -= spare
        self.cache = _cache(layers, self._length)


def _stacked(first: Tensor, second: Tensor, length: int) -> Tensor:
    """Two batches' keys or values in one, padded on the left."""
    rows = first.shape[0] + second.shape[0]
    made = first.new_zeros((rows, first.shape[1], length, first.shape[3]))
    made[: first.shape[0], :, length - first.shape[2] :] = first
    made[first.shape[0] :, :, length - second.shape[2] :] = second
    return made


class _Kept:
    """Keys and values of finished replies, the latest used ones up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._entries: deque[tuple[_Tokens, _Layers, int]] = deque()  # the latest last
        self._lock = threading.Lock()

    def longest(self, tokens: _Tokens, most: int) -> tuple[_Layers | None, int]:
        """The entry with the longest common beginning, and how long that is, at most `most`."""
        with self._lock:
            best, common = None, 0
            for entry in self._entries:
                n = min(entry[0].common(tokens), most)
                if n > common:
                    best, common = entry, n
            if best is None:
                return None, 0
            self._entries.remove(best)
            self._entries.append(best)
            return best[1], common

    def keep(self, tokens: _Tokens, layers: _Layers) -> None:
        """Add an entry; those that it continues, and the oldest ones, go."""
        size = sum(k.nbytes + v.nbytes for k, v in layers)
        with self._lock:
            stay: deque[tuple[_Tokens, _Layers, int]] = deque()
            for entry in self._entries:
                if entry[0].common(tokens) < len(entry[0]):
                    stay.append(entry)
            stay.append((tokens, layers, size))
            while stay and sum(entry[2] for entry in stay) > self._most:
                stay.popleft()
            self._entries = stay

    def clear(self) -> None:
        """Forget all of it."""
        with self._lock:
            self._entries.clear()


# Drawing ------------------------------------------------------------------------------------------


def _draw(logits: Tensor, wanted: Sequence[Wanted], draws: Sequence[random.Random]) -> list[int]:
    """A token for each row of `[rows, vocabulary]`.

    By the inverse of the distribution function over the tokens in the order of their probability,
    cut where their sum first reaches top_p (Holtzman et al. 2020, section 3.1).
    """
    chosen = logits.argmax(-1)
    rows = [n for n, one in enumerate(wanted) if one.temperature > 0]
    if rows:
        warmth = torch.tensor([wanted[n].temperature for n in rows], device=logits.device)
        most = torch.tensor([wanted[n].top_p for n in rows], device=logits.device)
        u = torch.tensor([draws[n].random() for n in rows], device=logits.device)
        scaled = (logits[rows] - logits[rows].amax(-1, keepdim=True)) / warmth[:, None]
        p = scaled.softmax(-1)
        count = min(_LIKELY, p.shape[-1])
        best, which = p.topk(count, dim=-1)
        if count < p.shape[-1] and bool((best.sum(-1) < most).any()):
            best, which = p.sort(dim=-1, descending=True, stable=True)
        sums = best.cumsum(-1)
        inside = (sums - best) < most[:, None]
        total = (best * inside).sum(-1)
        at = (sums < (u * total)[:, None]).sum(-1).clamp(max=best.shape[-1] - 1)
        at = torch.minimum(at, inside.sum(-1) - 1)
        chosen[rows] = which.gather(-1, at[:, None])[:, 0]
    drawn: list[int] = chosen.tolist()
    return drawn


def _told(
    logits: Tensor, drawn: Sequence[int], rows: Sequence[_Row], tokenizer: Any
) -> list[TokenLogprob | None]:
    """Of those rows that want them, the log-probabilities at temperature 1."""
    told: list[TokenLogprob | None] = [None] * len(rows)
    for n, (row, token) in enumerate(zip(rows, drawn, strict=True)):
        if row.wanted.logprobs:
            all_of = logits[n].log_softmax(-1)
            values, which = all_of.topk(row.wanted.logprobs)
            told[n] = TokenLogprob(
                token=tokenizer.decode([token]),
                logprob=float(all_of[token]),
                top=tuple(
                    (tokenizer.decode([int(one)]), float(value))
                    for one, value in zip(which, values, strict=True)
                ),
            )
    return told
