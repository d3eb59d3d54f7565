"""One answer on its way to one client, whole or piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from personae.errors import PersonaeError
from personae.serve.api_errors import ApiError, of_engine, one_line, too_slow, unforeseen
from personae.serve.engine import Engine, Finished, Speech
from personae.serve.limits import ClientGoneError, Closing, Places
from personae.serve.metrics import AnswerMeter
from personae.serve.replies import HEARTBEAT, Wording, encode, event
from personae.serve.requests import ChatAsked
from personae.serve.settings import ServeSettings

_CACHED_IN_STEPS_OF = 16
_LAST_WORD = 5.0  # seconds in which a client has to take the end of a stream
_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the pieces back
)
_log = logging.getLogger("personae.serve")


class Answer(Response):
    """Asks the engine and sends what it says.

    An error that comes before the first piece has its HTTP status, unless a heartbeat has begun the
    stream before. An error after that ends the stream as an event, without a `finish_reason` and
    without `[DONE]`, so that no client takes the part for the whole.
    """

    def __init__(
        self,
        asked: ChatAsked,
        *,
        engine: Engine,
        settings: ServeSettings,
        places: Places,
        closing: Closing,
        meter: AnswerMeter,
    ) -> None:
        super().__init__()
        self._asked, self._engine, self._settings = asked, engine, settings
        self._places, self._closing, self._meter = places, closing, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            ApiError: instead of an answer, of which nothing has been sent yet.
        """
        stream = Stream(send, min(_LAST_WORD, self._settings.timeout))
        outcome = "failed"
        finished: Finished | None = None
        try:
            if self._asked.stream:
                said = await self._closing.while_wanted(receive, self._piecewise(stream))
                # Not before: once all is sent, servers say that the client has gone.
                await stream.end()
            else:
                body, said = await self._closing.while_wanted(receive, self._whole())
                await Response(body, media_type="application/json")(scope, receive, send)
            outcome, finished = said.finish, said
        except ClientGoneError:
            outcome = "client_gone"
        except ApiError as error:
            outcome = _outcome(error)
            if not stream.begun:
                raise
            await stream.end(error)
        except asyncio.CancelledError:
            outcome = "cut"
            raise
        except Exception:
            if not stream.begun:
                raise
            _log.exception("An answer failed")
            await stream.end(unforeseen())
        finally:
            self._meter.ended(outcome, finished)

    async def _whole(self) -> tuple[bytes, Finished]:
        async with self._speech() as speech:
            finished = await _told(speech)
        return encode(Wording(speech.character).whole(finished)), finished

    async def _piecewise(self, stream: Stream) -> Finished:
        async with stream.beating(self._settings.heartbeat), self._speech() as speech:
            wording = Wording(speech.character, usage=self._asked.usage)
            opening = wording.first()
            async for piece in speech:
                if not piece:
                    continue
                self._meter.piece()
                await stream.write(opening + wording.piece(piece))
                opening = b""
            finished = await _told(speech)
            await stream.write(opening + wording.last(finished))
            stream.complete = True
        return finished

    @contextlib.asynccontextmanager
    async def _speech(self) -> AsyncIterator[Speech]:
        """The engine's answer, once there is a place for it, within the time allowed."""
        seconds = self._settings.timeout
        try:
            async with asyncio.timeout(seconds), self._places.taken():
                speech = await self._engine.speak(self._asked.wanted)
                self._meter.character = speech.character
                async with speech:
                    yield speech
        except TimeoutError:
            raise too_slow(seconds) from None
        except PersonaeError as error:
            told = of_engine(error)
            if told.status >= 500:
                _log.warning("The engine: %s", one_line(str(error)))
            raise told from error


class Stream:
    """Server-sent events to one client; the response begins with the first of them.

    Args:
        last_word: seconds in which the client has to take its end.

    Attributes:
        begun: whether the client has been sent a status.
        complete: whether all has been said; what fails after that does not touch it.
    """

    def __init__(self, send: Send, last_word: float) -> None:
        self._send, self._last_word = send, last_word
        self._one_at_a_time = asyncio.Lock()
        self._written = 0
        self.begun = self.complete = False

    async def write(self, data: bytes) -> None:
        """Send one event or several.

        Raises:
            ClientGoneError: the server in front of us says so.
        """
        async with self._one_at_a_time:
            self._written += 1
            if not self.begun:
                self.begun = True
                await self._put(
                    {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
                )
            await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, error: ApiError | None = None) -> None:
        """Nothing comes any more; a client that does not take the end in time is left as it is."""
        with contextlib.suppress(TimeoutError, ClientGoneError):
            async with asyncio.timeout(self._last_word):
                if error is not None and not self.complete:
                    await self.write(event(error.body))
                await self._put({"type": "http.response.body", "body": b"", "more_body": False})

    @contextlib.asynccontextmanager
    async def beating(self, every: float) -> AsyncIterator[None]:
        """Meanwhile send a comment after each silence of `every` seconds."""
        beat = asyncio.ensure_future(self._beat(every))
        try:
            yield
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)

    async def _beat(self, every: float) -> None:
        while True:
            before = self._written
            await asyncio.sleep(every)
            if self._written == before:
                await self.write(HEARTBEAT)

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:  # as ASGI has it from 2.4 on; uvicorn keeps silent and `receive` tells
            raise ClientGoneError from None


async def _told(speech: Speech) -> Finished:
    """How an answer ended, as far as a client is told.

    What is cached of a prompt comes from whatever chats had the same beginning. To the token, it
    would tell who guesses at another's chat each token that is right.
    """
    finished = await speech.done()
    if finished.cached is None:
        return finished
    return replace(finished, cached=finished.cached - finished.cached % _CACHED_IN_STEPS_OF)


def _outcome(error: ApiError) -> str:
    by_code = {"timeout": "timeout", "shutting_down": "cut", "rate_limit_exceeded": "turned_away"}
    return by_code.get(error.code or "", "refused" if error.status < 500 else "failed")
