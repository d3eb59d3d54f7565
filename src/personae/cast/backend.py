"""`cast:DIR`, `cast:DIR#NAME`, `cast:DIR#base`: a cast as a model like any other.

Who answers is fixed by the id, or else routed by the system message (by the last user message where
there is none). Somebody who is not of the cast, and somebody who is not certain, is a recorded
failure that says what can be done.

Two engines. A cast over `local` in mode `full` runs on the embedded llama.cpp engine, each
character as a GGUF LoRA in the cache: no torch, JSON schemas and log-probabilities as `local` has
them. Any other cast runs on torch (`cast.generate`), all calls in one batch.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from personae.cast.base import base_ref, check_base, is_local
from personae.cast.bearers import Bearers
from personae.cast.dialogue import chat_prompt, spaced, unspaced, with_system
from personae.cast.gguf_lora import PERMUTED
from personae.cast.store import (
    COMMIT,
    GATE,
    MANIFEST,
    MAX_MANIFEST,
    ROUTER,
    Cast,
    no_cast,
    read_cast,
)
from personae.errors import BadRequestError, InputError, UnsupportedError, UsageError
from personae.models.local.model import MAX_TOKENS, TEMPERATURE, TOP_P, LocalModel, seed_of
from personae.records import Call, Capabilities, Failure, Reply, TokenLogprob, Usage
from personae.records.base import content_hash
from personae.records.cast import BASE, CastManifest, Routed
from personae.records.files import read_bytes, read_json

if TYPE_CHECKING:
    from personae.cast.generate import CastGenerator, Prompt
    from personae.cast.layout import Layout
    from personae.models.local.model import AdaptedModel

SCHEME = "cast"
_ADAPTERS = "casts"
_FORM = 1  # of the adapter files in the cache
_ROUTES = 512  # instructions whose route is remembered


@dataclass(frozen=True)
class CastId:
    """What a model id of the scheme `cast` says.

    Attributes:
        name: the character that answers; None: whoever is routed to.
        base: nobody speaks, the base alone.
    """

    path: Path
    name: str | None = None
    base: bool = False


def parse_cast_id(model_id: str) -> CastId:
    """The parts of `cast:DIR`, `cast:DIR#NAME`, `cast:DIR#base`.

    Raises:
        UsageError: it names no directory, or nobody after the `#`.
    """
    head, _, rest = model_id.partition(":")
    folder, mark, name = rest.rpartition("#")
    if not mark:
        folder, name = rest, ""
    if head != SCHEME or not folder or (mark and not name):
        raise UsageError(
            f"{model_id!r} names no cast: use cast:DIR, cast:DIR#NAME or cast:DIR#base"
        )
    path = Path(folder).expanduser()
    return CastId(path, None if name in ("", BASE) else name, name == BASE)


def read_manifest(path: Path) -> CastManifest:
    """A cast's manifest; its blocks are not looked at.

    Raises:
        InputError: there is no cast, or the manifest is damaged.
    """
    file = _file(path, MANIFEST)
    if not file.is_file():
        raise no_cast(path)
    return CastManifest.from_dict(read_json(file, limit=MAX_MANIFEST), path=file)


def fingerprint(model_id: str) -> str:
    """SHA-256 of all that decides what a cast answers: manifest (so blocks and cards) and router.

    Raises:
        UsageError, InputError: see `parse_cast_id` and `read_manifest`.
    """
    path = parse_cast_id(model_id).path
    read_manifest(path)
    digest = hashlib.sha256()
    for name in (MANIFEST, ROUTER, GATE):
        file = _file(path, name)
        content = read_bytes(file, limit=MAX_MANIFEST * 64) if file.is_file() else b""
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def pinned(model_id: str, names: Sequence[str]) -> dict[str, str]:
    """`cast:DIR` for each of some names: `cast:DIR#NAME`.

    A name that only differs in case, or an alias, is that character's.

    Raises:
        UsageError: one of them is not of the cast, or may be several of it.
        InputError: there is no cast.
    """
    path = parse_cast_id(model_id).path
    bearers = Bearers(read_manifest(path).characters)
    made = {}
    for name in names:
        found = bearers.of(name)
        if not found:
            known = ", ".join(bearers.names)
            raise UsageError(
                f"{model_id} has no {name!r}; there are {known}. Add the character with "
                f"personae cast add, or have another model play {name!r} (of a play: --character "
                f"'{name}=MODEL')"
            )
        if len(found) > 1:
            raise UsageError(
                f"{model_id}: {name!r} may be {' or '.join(found)}. Give the card that one's name"
            )
        made[name] = f"{SCHEME}:{path}#{found[0]}"
    return made


def _file(path: Path, name: str) -> Path:
    committed = path / COMMIT
    return (committed if (committed / MANIFEST).is_file() else path) / name


class Casts:
    """Makes the backends of casts; all ids of one directory share one engine."""

    def __init__(self) -> None:
        self._houses: dict[Path, _House] = {}

    def backend(self, model_id: str) -> CastBackend:
        """The backend of a model id; nothing is loaded yet.

        Raises:
            UsageError: see `check`.
            InputError: see `check`.
        """
        asked = parse_cast_id(model_id)
        place = asked.path.resolve()
        house = self._houses.get(place)
        if house is None or house.closed:
            house = self._houses[place] = _House(asked.path, read_manifest(asked.path))
        self._require(asked, house.manifest)
        house.users += 1
        return CastBackend(model_id, asked, house)

    def check(self, model_id: str) -> None:
        """Refuse what could only fail later.

        Raises:
            UsageError: the id is malformed, the cast has no such character, or a package is absent.
            InputError: there is no cast, or it is damaged.
        """
        asked = parse_cast_id(model_id)
        manifest = read_manifest(asked.path)
        self._require(asked, manifest)
        if _embedded(manifest):
            LocalModel(manifest.base.id)  # says which package is absent
        else:
            for package in ("torch", "transformers"):
                if importlib.util.find_spec(package) is None:
                    raise UsageError(
                        f"{model_id} needs {package}: pip install 'personae[train]' (a cast over "
                        "`local` in mode full goes without)"
                    )

    @staticmethod
    def _require(asked: CastId, manifest: CastManifest) -> None:
        if asked.name is not None and manifest.of(asked.name) is None:
            known = ", ".join(c.name for c in manifest.characters)
            raise UsageError(
                f"{asked.path}: no character is named {asked.name!r}; there are {known}. "
                f"Add one with: personae cast add {asked.path}"
            )


def _embedded(manifest: CastManifest) -> bool:
    """Whether llama.cpp runs this cast as it was trained."""
    return (
        is_local(manifest.base.id)
        and manifest.mode == "full"
        and manifest.base.architecture in PERMUTED
    )


class CastBackend:
    """A `Backend` whose characters each answer through their own blocks. Made by `Casts`.

    What a call leaves open is as in `LocalModel`: temperature 0.7, top_p 0.95, 512 tokens, a seed
    from the call's content and repeat number.
    """

    def __init__(self, model_id: str, asked: CastId, house: _House) -> None:
        self._id, self._asked, self._house = model_id, asked, house
        self._open = True

    @property
    def endpoint(self) -> str:
        """The cast: all who speak in it share one machine."""
        return f"{SCHEME}:{self._house.path}"

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine; on torch no schema constrains a reply."""
        return self._house.capabilities

    async def complete(self, call: Call) -> Reply:
        """Answer one call, by the character that the id names or the router finds.

        Raises:
            BadRequestError: nobody, or nobody certain, is asked for; or the messages do not fit.
            InputError: the cast or its base cannot be used.
            TransportError, WeightsError: see `LocalModel.complete`.
        """
        return await self._complete(call, None)

    async def stream(self, call: Call, heard: Callable[[str], None]) -> Reply:
        """The same, and each piece of the text as it comes; cancelled, nothing goes on behind it.

        Args:
            heard: is told the pieces, none of which splits a character.

        Raises:
            UnsupportedError: the call wants a score or, of llama.cpp, log-probabilities.
        """
        if call.kind != "generate":
            raise UnsupportedError("a score has no pieces")
        return await self._complete(call, heard)

    async def _complete(self, call: Call, heard: Callable[[str], None] | None) -> Reply:
        began = time.monotonic()
        engine = await self._house.engine()
        name, routed = self._who(call, engine.cast)
        messages = call.messages if name is None else with_system(engine.cast, name, call.messages)
        told = call.model_copy(update={"messages": messages})
        reply = await engine.complete(told, call, name, heard)
        notes = list(reply.notes)
        if len(messages) > len(call.messages):
            notes.append("the cast's own system message was put in front")
        if routed is not None:
            notes.append(f"answered by {name}, found by {routed.by} ({routed.confidence:.2f})")
        failure = reply.failure
        if call.kind == "generate" and failure is None and not (reply.text or "").strip():
            failure = Failure(cause="empty", detail=f"{name or BASE} said nothing ({reply.finish})")
        return reply.model_copy(
            update={
                "text": reply.text if failure is None else None,
                "failure": failure,
                "seconds": time.monotonic() - began,
                "served_model": f"{self._house.path.name}#{name or BASE}",
                "notes": tuple(notes),
            }
        )

    async def cast(self) -> Cast:
        """The cast; its engine need not be loaded yet.

        Raises:
            InputError: the cast is damaged, or has changed since this was made.
        """
        return await asyncio.to_thread(self._house.read)

    async def generator(self) -> CastGenerator | None:
        """What generates on torch; None where llama.cpp runs the cast.

        Raises:
            InputError: the cast or its base cannot be used.
        """
        engine = await self._house.engine()
        return engine.generator if isinstance(engine, _OnTorch) else None

    async def close(self) -> None:
        """Leave the engine; the last one to leave ends it."""
        if self._open:
            self._open = False
            await self._house.leave()

    def _who(self, call: Call, cast: Cast) -> tuple[str | None, Routed | None]:
        if self._asked.base:
            return None, None
        if self._asked.name is not None:
            return self._asked.name, None
        told = [m.content for m in call.messages if m.role == "system"]
        said = [m.content for m in call.messages if m.role == "user"]
        instruction = told[0] if told else said[-1] if said else ""
        routed = self._house.route(cast, instruction)
        if routed.decision == "accept" and routed.role is not None:
            return routed.role, routed
        where = self._asked.path
        if routed.decision == "ask":
            raise BadRequestError(
                f"perhaps {routed.role} is asked for ({routed.confidence:.2f}), and perhaps not: "
                f"say so with cast:{where}#{routed.role}, or name the character in the system "
                "message"
            )
        raise BadRequestError(
            f"nobody of the cast is asked for ({', '.join(cast.names)}): name one with "
            f"cast:{where}#NAME, or add the character with personae cast add {where}"
        )


class _Engine(Protocol):
    """What runs a cast."""

    cast: Cast

    async def complete(
        self, told: Call, asked: Call, name: str | None, heard: Callable[[str], None] | None
    ) -> Reply:
        """Answer `told` by a character (None: the base); `asked` decides the seed."""

    async def close(self) -> None:
        """End it."""


class _House:
    """One cast and its engine, shared by all ids of its directory."""

    def __init__(self, path: Path, manifest: CastManifest) -> None:
        self.path, self.manifest = path, manifest
        self.users = 0
        self.closed = False
        self._cast: Cast | None = None
        self._engine: _Engine | None = None
        self._loading = threading.Lock()
        self._routed: dict[str, Routed] = {}

    @property
    def capabilities(self) -> Capabilities:
        if isinstance(self._engine, _Embedded):
            return self._engine.model.capabilities
        level: Any = "schema" if _embedded(self.manifest) else "none"
        return Capabilities(structured=level, score=True, logprobs=True)

    def route(self, cast: Cast, instruction: str) -> Routed:
        """Who is asked for; one persona's questions all come with the same instruction."""
        found = self._routed.get(instruction)
        if found is None:
            if len(self._routed) >= _ROUTES:
                self._routed.clear()
            found = self._routed[instruction] = cast.route(instruction)
        return found

    async def engine(self) -> _Engine:
        if self._engine is None:
            return await asyncio.to_thread(self._load)
        return self._engine

    def read(self) -> Cast:
        """The cast that this house was made for."""
        with self._loading:
            return self._read()

    def _read(self) -> Cast:
        if self._cast is None:
            cast = read_cast(self.path)
            if cast.manifest != self.manifest:
                raise InputError(
                    "the cast has changed since this run began",
                    path=self.path / MANIFEST,
                    mend="Run it again from the start, with another --out",
                )
            self._cast = cast
        return self._cast

    def _load(self) -> _Engine:
        with self._loading:
            if self._engine is None:
                cast = self._read()
                # Its blocks are in the engine now, and need no second place in memory.
                self._cast = replace(cast, tensors={})
                self._engine = (_Embedded if _embedded(cast.manifest) else _OnTorch)(cast)
            return self._engine

    async def leave(self) -> None:
        self.users -= 1
        if self.users <= 0:
            self.closed = True
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.close()


class _Embedded:
    """A cast on llama.cpp."""

    def __init__(self, cast: Cast) -> None:
        self.cast = replace(cast, tensors={})
        spec = cast.manifest.base.id
        check_base(cast.manifest.base, base_ref(spec), path=cast.path / MANIFEST)
        files = adapter_files(cast)
        self.model = LocalModel(spec, adapters=tuple(dict.fromkeys(files.values())))
        self._voices: dict[str | None, AdaptedModel] = {
            name: self.model.adapted({file: 1.0}) for name, file in files.items()
        }
        self._base = self.model.adapted({})

    async def complete(
        self, told: Call, asked: Call, name: str | None, heard: Callable[[str], None] | None
    ) -> Reply:
        if told.sampling.seed is None:
            # The messages may have grown by a system message; the seed is that of what was asked.
            sampling = told.sampling.model_copy(update={"seed": seed_of(asked)})
            told = told.model_copy(update={"sampling": sampling, "repeat": 0})
        voice = self._voices.get(name, self._base)
        return await (voice.complete(told) if heard is None else voice.stream(told, heard))

    async def close(self) -> None:
        await self.model.close()


def adapter_files(cast: Cast) -> dict[str, Path]:
    """Each character's blocks as one GGUF LoRA in the cache; who has none is not in it.

    A file's name is the digest of all that decides its content, so a cast that was trained again
    never meets old files; characters with the same weights share one.

    Raises:
        InputError: a module has no counterpart in GGUF.
        OutputError: the cache cannot be written.
        UsageError: gguf is not installed.
    """
    from personae.cast.export import adapter_of
    from personae.cast.gguf_lora import heads_of, write_gguf_lora
    from personae.models.local.weights import cache_dir

    manifest = cast.manifest
    heads = None
    made: dict[str, Path] = {}
    for character in manifest.characters:
        weights = {block: w for block, w in character.weights.items() if w}
        if not weights:
            continue
        key = content_hash(
            [
                _FORM,
                manifest.blocks_sha256,
                [block.name for block in manifest.blocks],
                list(manifest.targets),
                manifest.rank,
                manifest.alpha,
                manifest.base.sha256,
                sorted(weights.items()),
            ]
        )
        file = cache_dir() / _ADAPTERS / f"{key[:40]}.gguf"
        if not file.is_file():
            heads = heads or heads_of(manifest.base.id)
            write_gguf_lora(file, adapter_of(cast, character.name), heads, name=character.name)
        made[character.name] = file
    return made


class _OnTorch:
    """A cast on torch: a thread of its own that answers all calls in one batch."""

    def __init__(self, cast: Cast) -> None:
        from personae.cast.generate import CastGenerator
        from personae.cast.layout import layout_of

        self.generator = CastGenerator.of(cast)
        self.cast = self.generator.cast
        self._layout: Layout = layout_of(self.generator.base.tokenizer)

    async def complete(
        self, told: Call, asked: Call, name: str | None, heard: Callable[[str], None] | None
    ) -> Reply:
        from personae.cast.generate import Wanted

        if told.kind == "score":
            return await self._score(told, name)
        prompt = await asyncio.to_thread(self._prompt, told, name)
        sampling = told.sampling
        notes = ["schema dropped"] if told.reply_schema is not None else []
        wanted = Wanted(
            prompt,
            name,
            max_tokens=sampling.max_tokens or MAX_TOKENS,
            temperature=TEMPERATURE if sampling.temperature is None else sampling.temperature,
            top_p=TOP_P if sampling.top_p is None else sampling.top_p,
            seed=seed_of(asked),
            stop=sampling.stop,
            logprobs=sampling.logprobs,
        )
        strip = spaced(self.cast.manifest.mode, name)
        if heard is None:
            found = await self.generator.generate(wanted)
        else:
            async with self.generator.stream(wanted) as speech:
                async for piece in unspaced(aiter(speech)) if strip else speech:
                    heard(piece)
                found = await speech.done()
        return Reply(
            text=found.text.removeprefix(" ") if strip else found.text,
            usage=Usage(
                tokens_in=found.tokens_in, tokens_out=found.tokens_out, cached=found.cached
            ),
            logprobs=found.logprobs,
            finish=found.finish,
            notes=tuple(notes),
        )

    async def close(self) -> None:
        await asyncio.to_thread(self.generator.close)

    def _prompt(self, told: Call, name: str | None) -> Prompt:
        return chat_prompt(self._layout, self.cast.manifest.mode, told.messages, name)

    async def _score(self, told: Call, name: str | None) -> Reply:
        before = told.model_copy(update={"messages": told.messages[:-1], "kind": "generate"})
        if not before.messages:
            raise BadRequestError("nothing stands before the message that is to be scored")
        prompt = await asyncio.to_thread(self._prompt, before, name)
        text = self._layout.plain(told.messages[-1].content)
        tokenizer = self._layout.tokenizer
        lead = " " if spaced(self.cast.manifest.mode, name) else ""
        ids = tokenizer(lead + text, add_special_tokens=False)["input_ids"] if text else []
        if not ids:
            return Reply(failure=Failure(cause="empty", detail="there is no text to score"))
        values = await asyncio.wrap_future(self.generator.score(prompt, ids, name))
        return Reply(
            logprobs=tuple(
                TokenLogprob(token=tokenizer.decode([token]), logprob=value)
                for token, value in zip(ids, values, strict=True)
            ),
            usage=Usage(tokens_in=len(prompt.ids) + len(ids), tokens_out=0),
        )
