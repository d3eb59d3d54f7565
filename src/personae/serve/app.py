"""The routes of the server (Starlette)."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from personae.cast.bearers import Bearers
from personae.errors import InputError, PersonaeError
from personae.serve.answering import Answer
from personae.serve.api_errors import ApiError, of_engine, one_line, unforeseen, unknown_model
from personae.serve.doors import Doors, Logged, error_response
from personae.serve.engine import AUTO, Engine, ServedCharacter
from personae.serve.limits import ClientGoneError, Closing, Places, read_body
from personae.serve.metrics import Metrics
from personae.serve.replies import encode, model_entry
from personae.serve.requests import read_chat
from personae.serve.settings import ServeSettings

_REFRESHES = 8  # that may wait; each reads the whole cast
_log = logging.getLogger("personae.serve")
_AUTO = ServedCharacter(AUTO, {"about": "each request is routed to the character that it means"})


def create_app(
    engine: Engine, settings: ServeSettings, closing: Closing | None = None
) -> Starlette:
    """The server over an engine, which it neither opens nor closes.

    Args:
        closing: to have it answer 503 and finish; the caller's, who hears the signals.
    """
    closing = closing or Closing()
    service = _Service(engine, settings, closing)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
            Route("/v1/models", service.models, methods=["GET"]),
            Route("/v1/models/{name:path}", service.model, methods=["GET"]),
            Route("/v1/characters", service.refresh, methods=["POST"]),
            Route("/health", service.health, methods=["GET"]),
            Route("/metrics", service.metrics_page, methods=["GET"]),
        ],
        middleware=[
            Middleware(Logged, metrics=service.metrics),
            Middleware(Doors, token=settings.token, closing=closing),
        ],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientGoneError: _nobody,
            Exception: _unforeseen,
        },
    )


class _Service:
    """What the routes do."""

    def __init__(self, engine: Engine, settings: ServeSettings, closing: Closing) -> None:
        self._engine, self._settings, self._closing = engine, settings, closing
        self._created = int(time.time())
        self._look()
        self._ill: str | None = None
        self._probed: float | None = None
        self._probing = asyncio.Lock()
        self._places = Places(settings.max_concurrency, settings.max_queue)
        self._refreshing = Places(1, _REFRESHES)
        self.metrics = Metrics(
            lambda: self._served.keys() - {AUTO},
            {
                "answers_under_way": ("Answers under way", lambda: self._places.under_way),
                "answers_waiting": ("Requests that wait", lambda: self._places.waiting),
                "engine_busy": ("Answers under way or waiting in the engine", engine.busy),
                "characters": ("Characters served", lambda: len(self._served) - 1),
            },
        )

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        settings = self._settings
        asked = read_chat(
            await self._body(request),
            max_tokens=settings.max_tokens,
            default_tokens=settings.default_tokens,
        )
        model = self._named(asked.wanted.model)
        return Answer(
            replace(asked, wanted=replace(asked.wanted, model=model)),
            engine=self._engine,
            settings=settings,
            places=self._places,
            closing=self._closing,
            meter=self.metrics.answer(model),
        )

    async def models(self, _request: Request) -> Response:
        """`GET /v1/models`."""
        listed = [model_entry(c, self._created) for c in self._served.values()]
        return _document({"object": "list", "data": listed})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        found = self._served[self._named(request.path_params["name"])]
        return _document(model_entry(found, self._created))

    async def refresh(self, request: Request) -> Response:
        """`POST /v1/characters`: take in what the server's own cast has gained."""
        await self._body(request)  # nothing in it names a path
        try:
            async with self._refreshing.taken():
                added = await self._engine.refresh()
        except InputError as error:
            _log.warning("The cast: %s", one_line(str(error)))
            raise ApiError(
                409, f"The cast cannot be taken in: {error.what}", code="cast_unreadable"
            ) from error
        except PersonaeError as error:
            raise of_engine(error) from error
        finally:  # those beside whatever is wrong may have come in
            self._look()
        names = [name for name in self._served if name != AUTO]
        return _document({"object": "characters", "added": list(added), "characters": names})

    async def health(self, _request: Request) -> Response:
        """`GET /health`: 200, or 503; everybody may ask, so the engine's reason is for the log."""
        if self._closing.begun:
            return _document({"status": "shutting_down"}, 503)
        if await self._unwell() is not None:
            return _document({"status": "engine_unavailable"}, 503)
        return _document({"status": "ok"})

    async def metrics_page(self, _request: Request) -> Response:
        """`GET /metrics`."""
        return Response(self.metrics.page(), media_type=self.metrics.content_type)

    async def _unwell(self) -> str | None:
        """What the engine says of itself; who asks often hears the same again for a while."""
        async with self._probing:
            now = time.monotonic()
            if self._probed is None or now - self._probed >= self._settings.probe:
                why = await self._engine.healthy()
                if why is not None and why != self._ill:
                    _log.warning("The engine cannot answer: %s", one_line(why))
                self._ill, self._probed = why, now
            return self._ill

    def _look(self) -> None:
        """Whom the engine has."""
        served = (*self._engine.characters(), _AUTO)
        self._served = {one.name: one for one in served}
        self._bearers = Bearers(served)

    def _named(self, model: str) -> str:
        """The name of a model that was asked for: only letters and digits count, an alias will do.

        Raises:
            ApiError: 404: there is none, or there are several.
        """
        found = self._bearers.spelt(model)
        if len(found) != 1:
            raise unknown_model(model)
        return found[0]

    async def _body(self, request: Request) -> bytes:
        settings = self._settings
        return await read_body(request, most=settings.max_body, seconds=settings.body_timeout)


def _document(document: Any, status: int = 200) -> Response:
    return Response(encode(document), status, media_type="application/json")


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.scope['path']}"
    said = {404: f"Unknown request: {asked}", 405: f"Not allowed: {asked}"}
    code = {404: "unknown_url", 405: "method_not_allowed"}
    return error_response(
        ApiError(
            error.status_code,
            said.get(error.status_code, error.detail),
            code=code.get(error.status_code),
            headers=error.headers,
        )
    )


async def _nobody(_request: Request, _error: Exception) -> Response:
    """The client has gone; what is returned reaches nobody."""
    return Response(status_code=499)


async def _unforeseen(_request: Request, _error: Exception) -> Response:
    return error_response(unforeseen())
