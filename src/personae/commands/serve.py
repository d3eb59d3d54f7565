"""`personae serve`: the characters of a cast behind OpenAI's API."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from personae.commands.base import command
from personae.errors import UsageError
from personae.journal.flow import run
from personae.records.shown import clean

if TYPE_CHECKING:
    from personae.serve.engine import Engine
    from personae.serve.settings import ServeSettings

_SHORT_TOKEN = 16
_SHOWN = 12
_EXTRA = ("prometheus_client", "safetensors", "starlette", "uvicorn")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    from personae.serve.settings import DEFAULT_TOKEN_ENV, ServeSettings

    usual = {f.name: f.default for f in ServeSettings.__dataclass_fields__.values()}
    made = command(commands, "serve", _serve, "serve the characters of a cast by OpenAI's API")
    made.add_argument("cast", type=Path, metavar="CAST", help="the folder of a cast")
    made.add_argument(
        "--host", default=usual["host"], help=f"address to bind (default {usual['host']})"
    )
    made.add_argument(
        "--token-env",
        metavar="NAME",
        help="the variable that holds the clients' token; required beyond this machine (default "
        f"{DEFAULT_TOKEN_ENV}, where it is set)",
    )
    made.add_argument(
        "--upstream",
        metavar="URL",
        help="a vLLM server that answers under the adapters' names, as http://127.0.0.1:8000/v1",
    )
    made.add_argument(
        "--upstream-token-env", metavar="NAME", help="the variable that holds the upstream's token"
    )
    made.add_argument(
        "--upstream-adapters",
        type=Path,
        metavar="DIR",
        help="a folder that the upstream finds under the same path: characters that it lacks are "
        "exported to it and loaded there",
    )
    made.add_argument(
        "--rows", type=int, metavar="N", help="answers in one batch of a cast that is loaded here"
    )
    limits = made.add_argument_group("limits")
    for to, name, kind, mark, text in (
        (made, "port", int, "N", "port; 0 takes a free one"),
        (limits, "max_body", int, "BYTES", "of a request"),
        (limits, "max_tokens", int, "N", "the most tokens of an answer"),
        (limits, "usual_tokens", int, "N", "of an answer whose request names no number"),
        (limits, "max_concurrency", int, "N", "answers under way at once"),
        (limits, "max_queue", int, "N", "requests that may wait for a place"),
        (limits, "timeout", float, "S", "seconds for an answer, waiting included"),
        (limits, "body_timeout", float, "S", "seconds in which a request has to come"),
        (limits, "grace", float, "S", "seconds for answers under way once told to stop"),
        (limits, "heartbeat", float, "S", "seconds of silence after which a stream has a comment"),
        (limits, "probe", float, "S", "seconds for which the engine's health is remembered"),
    ):
        to.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            default=usual[name],
            metavar=mark,
            help=f"{text} (default {usual[name]:g})"
            if kind is float
            else f"{text} (default {usual[name]})",
        )


def _serve(args: argparse.Namespace) -> int:
    from personae.serve.settings import ServeSettings, token_of

    settings = ServeSettings(
        token=token_of(args.token_env),
        upstream_token=token_of(args.upstream_token_env) if args.upstream_token_env else None,
        **{
            name: getattr(args, name)
            for name in ServeSettings.__dataclass_fields__
            if name not in ("token", "upstream_token")
        },
    )
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the server needs {', '.join(missing)}: install it with pip install 'personae[serve]'"
        )
    from personae.serve.run import serve

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    _log_to_standard_error()
    if settings.token is not None and len(settings.token.reveal()) < _SHORT_TOKEN:
        _say(console, f"{settings.token.name} is short; a token should be long and random")
    run(serve(settings, lambda url, engine: _tell(console, settings, url, engine)))
    return 0


def _tell(console: Console, settings: ServeSettings, url: str, engine: Engine) -> None:
    if settings.token is None:
        _say(console, "Without a token: for this machine only")
    names = [c.name for c in engine.characters()]
    shown = ", ".join(names[:_SHOWN]) + (f", {n} more" if (n := len(names) - _SHOWN) > 0 else "")
    _say(console, f"Serving {shown} and auto at {url}")


def _say(console: Console, text: str) -> None:
    console.print(clean(text), markup=False)


def _log_to_standard_error() -> None:
    """A line for each request, and what goes wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("personae.serve").setLevel(logging.INFO)
