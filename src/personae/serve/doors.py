"""Who may come in, and the line that the log keeps of each: both before any route is looked at."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from personae.models.keys import Key
from personae.records.shown import clean
from personae.serve.api_errors import ApiError, stopping
from personae.serve.limits import Closing
from personae.serve.metrics import Metrics
from personae.serve.replies import encode
from personae.serve.settings import is_loopback

HEALTH = "/health"
_MAX_PATH = 200
_CLIENT_LEFT = 499  # as nginx says it: before an answer
_access = logging.getLogger("personae.serve.access")


def error_response(error: ApiError) -> Response:
    """An error as it is sent."""
    return Response(encode(error.body), error.status, error.headers, "application/json")


class Logged:
    """Counts each request and writes a line of it: no body, no header, no query."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), _CLIENT_LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if status == _CLIENT_LEFT:  # Starlette answers beyond this, by 500
                status = 500
            raise
        finally:
            self._metrics.request(scope["method"], scope["path"], status)
            _access.info(
                "%s %s %d %.3fs",
                clean(scope["method"])[:16],
                ascii(clean(scope["path"])[:_MAX_PATH])[1:-1],
                status,
                time.monotonic() - began,
            )


class Doors:
    """Lets in who may: the token, or this machine alone; nobody once the server is closing.

    Without a token the server is bound to loopback. What can reach it then without being meant to
    is a page in the user's browser: by a name that resolves to 127.0.0.1 (DNS rebinding; the `Host`
    header tells) or straight at the address (the `Origin` header tells). No CORS header is ever
    sent.
    """

    def __init__(self, app: ASGIApp, *, token: Key | None, closing: Closing) -> None:
        self._app, self._closing = app, closing
        self._digest = None if token is None else _digest(token.reveal().encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on, or answer by an error."""
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope), scope["path"])
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, path: str) -> None:
        # The path that is routed by, not one of a URL: that is put together with the `Host` header,
        # and `Host: x/health?` was enough for a path of `/health` there (Starlette before 1).
        if self._digest is None:
            _only_this_machine(headers)
        elif path != HEALTH:
            self._check_token(headers)
        if self._closing.begun and path != HEALTH:
            raise stopping()

    def _check_token(self, headers: Headers) -> None:
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        # Digests are of one length, so that neither length nor content of the token shows in time.
        given = _digest(shown.strip().encode("latin-1"))
        assert self._digest is not None
        if not hmac.compare_digest(given, self._digest) or scheme.casefold() != "bearer":
            missing = not headers.get("authorization")
            raise ApiError(
                401,
                "A token is required: Authorization: Bearer TOKEN"
                if missing
                else "The token is not this server's",
                code="missing_api_key" if missing else "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _only_this_machine(headers: Headers) -> None:
    host = _host_of(f"//{headers.get('host', '')}")
    if host is None or not is_loopback(host):
        raise ApiError(
            403,
            "This server answers only as localhost. Start it with a token to reach it by a name",
            code="host_not_allowed",
        )
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_host_of(origin) or ""):
        raise ApiError(
            403, "Pages of other sites may not use this server", code="origin_not_allowed"
        )


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
