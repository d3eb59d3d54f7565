"""The server as a process: uvicorn, the signals, the order in which things open and close."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from personae.errors import UsageError
from personae.serve.app import create_app
from personae.serve.engine import Engine
from personae.serve.limits import Closing
from personae.serve.settings import ServeSettings, is_loopback

_IDLE_SECONDS = 75  # longer than the pools of usual clients keep an idle connection
_LINGER = 5  # seconds in which the last bytes leave


async def serve(settings: ServeSettings, ready: Callable[[str, Engine], None]) -> None:
    """Serve a cast until a signal says stop.

    The address is taken first, so that one in use is known before weights are loaded.

    Args:
        ready: told the base URL and the engine once requests are answered.

    Raises:
        UsageError: the address cannot be had.
        InputError, PersonaeError: the cast cannot be opened, or the upstream cannot be reached.
    """
    with contextlib.closing(bind(settings.host, settings.port)) as listener:
        if settings.token is None and not is_loopback(listener.getsockname()[0]):
            raise UsageError(f"{settings.host} is not this machine alone: a token is required")
        engine = await build_engine(settings)
        try:
            await serve_engine(engine, settings, listener, lambda url: ready(url, engine))
        finally:
            await engine.close()


async def build_engine(settings: ServeSettings) -> Engine:
    """Whoever speaks: the cast loaded here, or the server at `upstream`."""
    if settings.upstream is None:
        from personae.serve.cast_engine import CastEngine

        options = {} if settings.rows is None else {"rows": settings.rows}
        return await CastEngine.open(settings.cast, **options)
    from personae.serve.upstream import UpstreamEngine

    return await UpstreamEngine.open(
        settings.cast,
        settings.upstream,
        token=settings.upstream_token,
        timeout=settings.timeout,
        adapters=settings.upstream_adapters,
    )


async def serve_engine(
    engine: Engine,
    settings: ServeSettings,
    listener: socket.socket,
    ready: Callable[[str], None],
) -> None:
    """Serve until a signal says stop, then finish what is under way, within the grace."""
    await Server(engine, settings, lambda: ready(base_url(listener))).serve([listener])


def bind(host: str, port: int) -> socket.socket:
    """Take an address; nothing is accepted yet.

    Raises:
        UsageError: it cannot be had.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # `localhost` is both; most clients try IPv4.
        family, kind, protocol, _, address = min(found, key=lambda f: f[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":  # elsewhere it lets two servers share a port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be bound ({error.strerror or error}). Give another --port, or 0 "
            "for a free one"
        ) from None
    return listener


def base_url(listener: socket.socket) -> str:
    """What a client is given as its base URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


class Server(uvicorn.Server):
    """uvicorn, which on a signal first lets those inside finish, and then exits with 0.

    Told to stop, uvicorn itself would close its doors at once, so that nobody could be told why,
    and would then raise the signal again. A second signal cuts what is under way.
    """

    def __init__(self, engine: Engine, settings: ServeSettings, ready: Callable[[], None]) -> None:
        self._closing = Closing()
        self._grace, self._ready = settings.grace, ready
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                create_app(engine, settings, self._closing),
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,  # `doors.Logged` writes it, without queries
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=_LINGER,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: stop; a second one: stop now."""
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._closing.cut)
        self.should_exit = True

    async def main_loop(self) -> None:
        """Serve until told to stop, then let those inside finish; the address still answers."""
        await super().main_loop()
        self._closing.begin()
        await self._closing.wait(self._grace)
