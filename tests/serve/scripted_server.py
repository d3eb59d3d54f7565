"""The server over a scripted engine in a process of its own.

    python -m tests.serve.scripted_server '{"max_concurrency": 256}'

The argument is what `ServeSettings` is changed by; `token_env` names the token's variable. Prints
the base URL once it listens; SIGUSR1 lets those go on that hold; ends by SIGTERM or SIGINT, then
prints how many answers are still under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from pathlib import Path

from personae.journal.flow import run
from personae.serve.run import bind, serve_engine
from personae.serve.settings import ServeSettings, token_of
from tests.serve.scripted import ScriptedEngine


async def main(changed: dict[str, object]) -> None:
    token = token_of(str(changed.pop("token_env"))) if "token_env" in changed else None
    settings = ServeSettings(**{"cast": Path("cast"), "port": 0, "token": token, **changed})  # type: ignore[arg-type]  # of JSON
    engine = ScriptedEngine()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, engine.released.set)
    with contextlib.closing(bind(settings.host, settings.port)) as listener:
        await serve_engine(engine, settings, listener, lambda url: print(url, flush=True))
    print(f"busy {engine.busy()}", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    run(main(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}))
