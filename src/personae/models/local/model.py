"""`LocalModel`: the backend of `local`, `local:FILE.gguf` and `local:OWNER/REPO:FILE.gguf`."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from personae.errors import UnsupportedError, UsageError
from personae.models.local import weights
from personae.models.local.child import Child
from personae.models.local.grammar import grammar
from personae.models.local.header import Header, read_header
from personae.models.local.template import defuse
from personae.records import Call, Capabilities, Reply, TokenLogprob, Usage

MAX_TOKENS = 512
TEMPERATURE, TOP_P = 0.7, 0.95
_CONTEXT, _MIN_CONTEXT = 4096, 256
_SLOTS = 8
_CACHE_BYTES = 1 << 30  # of key-value cache; a large model gets fewer slots
_MAX_THREADS = 16
_SCORED_AT_ONCE = 16
_UNDERFLOW = -103.28  # ln of the smallest positive number of 32 bits, 2**-149


class LocalModel:
    """A language model on this machine, behind the `Backend` protocol.

    Two engines, each in a process of its own, each started by the first call that needs it:
    llama.cpp samples, OpenVINO scores given text (`docs/decisions/0002-local-engine.md`).

    What a call leaves open: temperature 0.7, top_p 0.95, at most 512 tokens, and a seed taken from
    the call's content and repeat number. With a seed, repeats draw differently from it.

    Determinism: a call alone, with a fresh cache, gives the same text each time. Beside other calls
    the last bits of its log-probabilities depend on what shares the batch and on which prefix was
    cached (sums in another order), so that now and then a near tie falls the other way, at
    temperature 0 too. What is to be the same tomorrow is kept in the journal.

    Args:
        spec: the model id.
        adapters: GGUF LoRA files that `adapted` may use; all are held beside the weights.
        progress: is told of a download, see `weights.pull`.

    Raises:
        UsageError: the id names no weights, or the extra `local` is not installed.
    """

    def __init__(
        self,
        spec: str,
        *,
        adapters: Sequence[Path] = (),
        progress: weights.Progress | None = None,
    ) -> None:
        weights.parse_spec(spec)
        for package in ("xllamacpp", "openvino_genai", "gguf"):
            if importlib.util.find_spec(package) is None:
                raise UsageError(
                    f"the embedded model needs {package}: pip install 'personae[local]'"
                )
        self._spec, self._progress = spec, progress
        self._adapters = tuple(adapters)
        self._path: Path | None = None
        self._header: Header | None = None
        self._children: dict[str, Child] = {}
        self._loading = threading.Lock()
        self._scores = True

    @property
    def endpoint(self) -> str:
        """The model id: all its calls share one machine."""
        return self._spec

    @property
    def capabilities(self) -> Capabilities:
        """Schema and log-probabilities; those of given text until the weights turn out unfit."""
        return Capabilities(structured="schema", score=self._scores, logprobs=True)

    async def complete(self, call: Call) -> Reply:
        """Answer one call; many at once share a batch.

        `generate`: the weights' own chat template, the sampling asked for, the JSON Schema kept
        (no white space, every string and array bounded so that it fits `max_tokens`).
        Log-probabilities are of the model's full distribution at temperature 1, in nats.

        `score`: log-probability of every token of the last message's text given the messages before
        it; the template's own tokens are not among them.

        Raises:
            InputError: the weights file cannot be loaded.
            WeightsError: the weights cannot be fetched.
            ContextLengthError: the prompt does not fit; nothing is cut off.
            UnsupportedError: the weights bring no chat template, or cannot be scored.
            ServerError: the engine failed.
        """
        return await self._complete(call, {})

    async def stream(self, call: Call, heard: Callable[[str], None]) -> Reply:
        """The same, and each piece of the text as it comes.

        Cancelled, it ends with the next token; nothing goes on behind it.

        Args:
            heard: is told the pieces, none of which splits a character.

        Raises:
            UnsupportedError: the call wants log-probabilities, or is no `generate`.
        """
        return await self._complete(call, {}, heard)

    def adapted(self, scales: Mapping[Path, float]) -> AdaptedModel:
        """The same engine speaking through LoRA adapters, each with its scale.

        Calls through different adapters may be in flight together; llama.cpp batches those that
        share their adapters and runs the groups in turn. A `score` call folds the adapters into a
        copy of the weights (once, in the cache) and gives that copy an engine of its own.

        Raises:
            UsageError: an adapter was not named when the model was made.
        """
        if strangers := [str(p) for p in scales if p not in self._adapters]:
            raise UsageError(f"adapters unknown to this model: {', '.join(strangers)}")
        return AdaptedModel(self, dict(scales))

    async def _complete(
        self,
        call: Call,
        scales: Mapping[Path, float],
        heard: Callable[[str], None] | None = None,
    ) -> Reply:
        began = time.monotonic()
        if heard is not None and (call.kind != "generate" or call.sampling.logprobs):
            raise UnsupportedError("only text comes piece by piece, without log-probabilities")
        path, header = await self._load()
        messages, notes = [], set()
        for message in call.messages:
            content, changed = defuse(message.content, header.control)
            if changed:
                notes.add("control tokens in a message were made plain text")
            messages.append({"role": message.role, "content": content})
        if call.kind == "score":
            reply = await self._score(path, header, messages, scales)
        else:
            reply = await self._generate(path, header, call, messages, scales, heard)
        return reply.model_copy(
            update={
                "seconds": time.monotonic() - began,
                "served_model": path.name,
                "notes": (*reply.notes, *sorted(notes)),
            }
        )

    async def close(self) -> None:
        """End the engines' processes."""
        children, self._children = self._children, {}
        for child in children.values():
            await asyncio.to_thread(child.close)

    async def _load(self) -> tuple[Path, Header]:
        if self._path is None or self._header is None:
            return await asyncio.to_thread(self._load_now)
        return self._path, self._header

    def _load_now(self) -> tuple[Path, Header]:
        with self._loading:
            if self._path is None or self._header is None:
                path = weights.pull(self._spec, self._progress)
                header = Header(read_header(path))
                for adapter in self._adapters:
                    weights.check_adapter(adapter, header.architecture)
                self._header = header
                self._path = path
            return self._path, self._header

    async def _generate(
        self,
        path: Path,
        header: Header,
        call: Call,
        messages: list[dict[str, str]],
        scales: Mapping[Path, float],
        heard: Callable[[str], None] | None,
    ) -> Reply:
        sampling = call.sampling
        max_tokens = sampling.max_tokens or MAX_TOKENS
        body: dict[str, Any] = {
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": TEMPERATURE if sampling.temperature is None else sampling.temperature,
            "top_p": TOP_P if sampling.top_p is None else sampling.top_p,
            "top_k": 0,  # the engine's own defaults would cut the distribution further
            "min_p": 0.0,
            "seed": seed_of(call),
            "stop": list(sampling.stop),
            "cache_prompt": True,
        }
        if sampling.logprobs:
            body |= {"logprobs": True, "top_logprobs": sampling.logprobs}
        if call.reply_schema is not None:
            body["grammar"] = grammar(call, max_tokens, header.vocabulary)
        lora = {str(self._adapters.index(p)): scale for p, scale in scales.items()}
        request = {"body": body, "lora": lora, "stream": heard is not None}
        return _as_reply(await self._sampler(path, header).ask(request, heard))

    async def _score(
        self,
        path: Path,
        header: Header,
        messages: list[dict[str, str]],
        scales: Mapping[Path, float],
    ) -> Reply:
        exact = await asyncio.to_thread(
            weights.for_scoring, path, header.tensor_types, scales, self._progress
        )
        try:
            found = await self._scorer(exact, header).ask({"messages": messages})
        except UnsupportedError:
            self._scores = False
            raise
        return Reply(
            logprobs=tuple(TokenLogprob(token=t, logprob=v) for t, v in found["tokens"]),
            usage=Usage(tokens_in=found["tokens_in"], tokens_out=0),
        )

    def _sampler(self, path: Path, header: Header) -> Child:
        if "sampler" not in self._children:
            context = _context(header)
            slots = max(1, min(_SLOTS, _CACHE_BYTES // max(1, context * header.kv_bytes)))
            config = {
                "path": str(path),
                "context": context,
                "slots": slots,
                "threads": _threads(),
                "adapters": [str(p) for p in self._adapters],
            }
            self._children["sampler"] = Child("sampler", config, path)
        return self._children["sampler"]

    def _scorer(self, path: Path, header: Header) -> Child:
        key = f"scorer {path}"
        if key not in self._children:
            config = {
                "path": str(path),
                "context": _context(header),
                "batch": _SCORED_AT_ONCE,
                "header": {"template": header.template, "bos": header.bos, "eos": header.eos},
            }
            self._children[key] = Child("scorer", config, path)
        return self._children[key]


class AdaptedModel:
    """A `Backend` that speaks through adapters of a `LocalModel`; see `LocalModel.adapted`."""

    def __init__(self, model: LocalModel, scales: Mapping[Path, float]) -> None:
        self._model, self._scales = model, scales

    @property
    def endpoint(self) -> str:
        """The engine's: they share one machine."""
        return self._model.endpoint

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine."""
        return self._model.capabilities

    async def complete(self, call: Call) -> Reply:
        """Answer one call; raises what `LocalModel.complete` raises."""
        return await self._model._complete(call, self._scales)

    async def stream(self, call: Call, heard: Callable[[str], None]) -> Reply:
        """Answer one call piece by piece; see `LocalModel.stream`."""
        return await self._model._complete(call, self._scales, heard)

    async def close(self) -> None:
        """The engine belongs to the `LocalModel`."""


def _context(header: Header) -> int:
    """Tokens of one dialogue: the model's own, at most 4096 or PERSONAE_LOCAL_CONTEXT."""
    wanted = os.environ.get("PERSONAE_LOCAL_CONTEXT", str(_CONTEXT))
    if not wanted.isdecimal() or int(wanted) < _MIN_CONTEXT:
        raise UsageError(f"PERSONAE_LOCAL_CONTEXT is {wanted!r}; it must be a number of tokens")
    return min(header.context, int(wanted))


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _MAX_THREADS))


def seed_of(call: Call) -> int:
    """32 bits: the seed asked for, moved by the repeat number; or the call's content."""
    if call.sampling.seed is None:
        return int.from_bytes(call.key()[:4], "big")
    return (call.sampling.seed + 0x9E3779B1 * call.repeat) % (1 << 32)


def _nats(entry: dict[str, Any]) -> float:
    """A log-probability; the engine writes -3.4e38 where exp() left nothing of 32 bits."""
    return max(float(entry["logprob"]), _UNDERFLOW)


def _as_reply(found: dict[str, Any]) -> Reply:
    choice, usage = found["choices"][0], found["usage"]
    logprobs = None
    if choice.get("logprobs"):
        logprobs = tuple(
            TokenLogprob(
                token=entry["token"],
                logprob=_nats(entry),
                top=tuple((other["token"], _nats(other)) for other in entry["top_logprobs"]),
            )
            for entry in choice["logprobs"]["content"]
        )
    return Reply(
        text=choice["message"].get("content") or "",
        reasoning=choice["message"].get("reasoning_content") or None,
        usage=Usage(
            tokens_in=usage["prompt_tokens"],
            tokens_out=usage["completion_tokens"],
            cached=usage.get("prompt_tokens_details", {}).get("cached_tokens"),
        ),
        logprobs=logprobs,
        finish=choice["finish_reason"],
    )
