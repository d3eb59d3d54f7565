"""A cast on torch that speaks for a server: all requests, whoever answers them, in one batch.

Always `cast.generate`, also where llama.cpp could run the cast: that one switches adapters between
requests, and takes no new character without being loaded again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from personae.cast.base import torch_and_transformers
from personae.cast.dialogue import spaced, turns_prompt, unspaced
from personae.cast.layout import layout_of
from personae.cast.store import Cast, read_cast
from personae.errors import BadRequestError, ServerError, UsageError
from personae.records import TokenLogprob
from personae.records.cast import CastCharacter, CastManifest
from personae.serve.engine import ChatWanted, Finished, ServedCharacter
from personae.serve.voices import Told, Voices, changed_otherwise, gained

if TYPE_CHECKING:
    from personae.cast import generate
    from personae.cast.generate import CastGenerator, Wanted


class CastSpeech:
    """An answer of a cast; see `serve.engine.Speech`."""

    def __init__(
        self,
        generator: CastGenerator,
        wanted: Wanted,
        character: str,
        *,
        strip: bool,
        logprobs: int | None,
    ) -> None:
        self.character = character
        self._generator, self._wanted = generator, wanted
        self._strip, self._logprobs = strip, logprobs
        self._speech: generate.Speech | None = None

    async def __aenter__(self) -> Self:
        """Join the batch.

        Raises:
            ServerError: the generator is closed.
        """
        self._speech = self._generator.stream(self._wanted)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Leave the batch."""
        if self._speech is not None:
            self._speech.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        """The pieces of the text.

        Raises:
            ServerError: the model failed.
        """
        async with aclosing(aiter(self._begun())) as pieces:  # type: ignore[type-var]
            async for piece in unspaced(pieces) if self._strip else pieces:
                yield piece

    async def done(self) -> Finished:
        """How it ended.

        Raises:
            ServerError: the model failed.
        """
        found = await self._begun().done()
        return Finished(
            text=found.text.removeprefix(" ") if self._strip else found.text,
            finish=found.finish,
            tokens_in=found.tokens_in,
            tokens_out=found.tokens_out,
            cached=found.cached,
            logprobs=_within(found.logprobs, self._logprobs),
        )

    def _begun(self) -> generate.Speech:
        if self._speech is None:
            raise UsageError("an answer begins with `async with`")
        return self._speech


class CastEngine:
    """An `Engine` over one cast and its base; made by `open`.

    What a request leaves open: temperature 0.7, top_p 0.95, 512 tokens, and a seed of its own, so
    that asking again brings another answer.
    """

    def __init__(self, cast: Cast, generator: CastGenerator) -> None:
        self.generator = generator
        self._voices = Voices(replace(cast, tensors={}))
        self._digests = _digests(cast)
        self._layout = layout_of(generator.base.tokenizer)
        self._refreshing = asyncio.Lock()
        self._joined: dict[str, CastCharacter] = {}  # since the start

    @classmethod
    async def open(cls, path: Path | str, **options: Any) -> Self:
        """Load a cast and its base.

        Args:
            path: the cast's directory.
            options: of `CastGenerator.of`.

        Raises:
            InputError: the cast or its base cannot be used.
            UsageError: torch is not installed.
            WeightsError: `local` cannot be fetched.
        """
        return await asyncio.to_thread(cls._load, path, options)

    @classmethod
    def _load(cls, path: Path | str, options: Mapping[str, Any]) -> Self:
        torch_and_transformers()
        from personae.cast.generate import CastGenerator

        cast = read_cast(path)
        return cls(cast, CastGenerator.of(cast, **options))

    def characters(self) -> Sequence[ServedCharacter]:
        """Who can be asked for."""
        return self._voices.served()

    async def speak(self, wanted: ChatWanted) -> CastSpeech:
        """Prepare an answer; it joins the batch when it is entered.

        Raises:
            BadRequestError: nobody is meant, or nobody certain; the messages cannot be put to it;
                sampling that means nothing.
            ContextLengthError: they do not fit.
            ServerError: the engine is closed.
        """
        return await asyncio.to_thread(self._prepared, wanted)

    async def refresh(self) -> tuple[str, ...]:
        """Take in the characters that the cast has gained, between two steps of who speaks.

        Router and cards are taken in with them. Once begun it goes on, whoever waits for it.

        Raises:
            InputError: the cast is damaged, or has changed otherwise.
            ServerError: the engine is closed.
        """
        return await asyncio.shield(asyncio.ensure_future(self._refresh()))

    def busy(self) -> int:
        """How many answers are under way or wait."""
        return self.generator.busy

    async def healthy(self) -> str | None:
        """None, or why it cannot answer now."""
        return "the engine is closed" if self.generator.closed else None

    async def close(self) -> None:
        """End it; answers under way fail."""
        await asyncio.to_thread(self.generator.close)

    def _prepared(self, wanted: ChatWanted) -> CastSpeech:
        told = self._voices.told(wanted)
        asked = self._wanted(wanted, told)
        try:
            self.generator.check(asked)
        except UsageError as error:
            raise BadRequestError(str(error)) from None
        strip = spaced(self._mode, told.character)
        return CastSpeech(
            self.generator, asked, told.character, strip=strip, logprobs=wanted.logprobs
        )

    @property
    def _mode(self) -> Any:
        return self._manifest.mode

    @property
    def _manifest(self) -> CastManifest:
        return self._voices.cast.manifest

    def _wanted(self, wanted: ChatWanted, told: Told) -> Wanted:
        from personae.cast.generate import MAX_TOKENS, TEMPERATURE, TOP_P, Wanted

        known = self.generator.characters
        prompt = turns_prompt(
            self._layout, self._mode, told.system, told.turns, told.character, known=known
        )
        return Wanted(
            prompt,
            told.character,
            max_tokens=MAX_TOKENS if wanted.max_tokens is None else wanted.max_tokens,
            temperature=TEMPERATURE if wanted.temperature is None else wanted.temperature,
            top_p=TOP_P if wanted.top_p is None else wanted.top_p,
            seed=random.getrandbits(63) if wanted.seed is None else wanted.seed,
            stop=wanted.stop,
            # 0 alternatives are still log-probabilities; to the generator 0 is none at all.
            logprobs=0 if wanted.logprobs is None else max(wanted.logprobs, 1),
        )

    async def _refresh(self) -> tuple[str, ...]:
        async with self._refreshing:
            if self.generator.closed:
                raise ServerError("the engine is closed")
            cast = await asyncio.to_thread(read_cast, self._voices.cast.path)
            new = gained(self._manifest, cast)
            digests = await asyncio.to_thread(_digests, cast)
            for block, digest in self._digests.items():
                if digests.get(block) != digest:
                    raise changed_otherwise(cast, f"the block {block!r} is not what it was")
            voices = await asyncio.to_thread(Voices, replace(cast, tensors={}))
            for name in new:
                await self._join(cast, name, digests)
            self._voices, self._digests = voices, digests
            return new

    async def _join(self, cast: Cast, name: str, digests: Mapping[str, str]) -> None:
        """Have the generator learn of a character.

        What it has learnt it keeps, also where the refresh fails at somebody else; then the next
        refresh finds it there.
        """
        one = cast.character(name)
        if name in self._joined:
            if self._joined[name] != one:
                raise changed_otherwise(cast, f"{name!r} is not who it was")
            return
        added = self.generator.add(cast, name)
        try:
            blocks = await asyncio.wrap_future(added)
        except asyncio.CancelledError:
            if added.cancelled():
                raise ServerError("the engine was closed") from None
            raise
        self._joined[name] = one
        self._digests = {**self._digests, **{block: digests[block] for block in blocks}}


def _within(
    found: tuple[TokenLogprob, ...] | None, alternatives: int | None
) -> tuple[TokenLogprob, ...] | None:
    """Log-probabilities with as many alternatives as were asked for."""
    if found is None or alternatives != 0:
        return found
    return tuple(one.model_copy(update={"top": ()}) for one in found)


def _digests(cast: Cast) -> Mapping[str, str]:
    """SHA-256 of each block's values, by its name."""
    made = {}
    for number, block in enumerate(cast.manifest.blocks):
        digest = hashlib.sha256()
        for name in sorted(cast.tensors):
            digest.update(np.ascontiguousarray(cast.tensors[name][number]).data)
        made[block.name] = digest.hexdigest()
    return made
