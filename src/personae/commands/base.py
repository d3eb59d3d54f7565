"""What the commands share: their options, how they are carried out, how they print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from personae.errors import InputError
from personae.journal.client import DEFAULT_CONCURRENCY, Plan
from personae.journal.flow import run
from personae.models.prices import PriceTable, load_prices
from personae.progress import Display
from personae.records import Manifest
from personae.session import MANIFEST, REPORT, Options

Handler = Callable[[argparse.Namespace], int]
Resume = Callable[[argparse.Namespace, Path, "Was"], int]


def command(
    commands: Any, name: str, handler: Handler | None, text: str, **more: Any
) -> argparse.ArgumentParser:
    """A command under its name; `text` is its line of help."""
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", **more
    )
    made.set_defaults(help_of=made, command=name)
    if handler is not None:
        made.set_defaults(handler=handler)
    return made


def calls_models(parser: argparse.ArgumentParser) -> None:
    """The options of every command that calls a model."""
    group = parser.add_argument_group("the run")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed (default 0)")
    carries_out(group)


def carries_out(group: Any) -> None:
    """How a run is carried out: caps, dry run, replay, concurrency, prices, JSON."""
    group.add_argument(
        "--max-cost", type=float, metavar="USD", help="stop when the run has cost this much"
    )
    group.add_argument(
        "--max-calls", type=int, metavar="N", help="stop after N requests of this process"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="count calls, estimate tokens, send nothing"
    )
    group.add_argument("--replay", action="store_true", help="answer from the journal alone")
    group.add_argument(
        "--concurrency",
        type=int,
        default=DEFAULT_CONCURRENCY,
        metavar="N",
        help=f"most calls in flight at one endpoint (default {DEFAULT_CONCURRENCY})",
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds for one attempt"
    )
    group.add_argument("--prices", type=Path, metavar="FILE", help="your own price table")
    json_option(group)


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """What was said of the sampling of the models under test."""
    return {
        name: value
        for name in ("temperature", "top_p", "max_tokens")
        if (value := getattr(args, name)) is not None
    }


def json_option(group: Any) -> None:
    """`--json`."""
    group.add_argument("--json", action="store_true", help="print one JSON document, nothing else")


def options_of(args: argparse.Namespace, display: Display) -> Options:
    """The run options that the arguments mean."""
    return Options(
        max_cost=args.max_cost,
        max_calls=args.max_calls,
        dry_run=args.dry_run,
        replay=args.replay,
        concurrency=args.concurrency,
        timeout=args.timeout,
        trust_scripts=getattr(args, "trust_scripts", True),
        prices=prices_of(args),
        watcher=display,
        observe=display.hear,
    )


def prices_of(args: argparse.Namespace) -> PriceTable:
    """The price table of `--prices`, or the shipped one."""
    return load_prices(getattr(args, "prices", None))


def carry_out(
    args: argparse.Namespace,
    work: Callable[[Options], Coroutine[Any, Any, Any]],
    *,
    quiet: bool = False,
) -> Any:
    """Carry out a stage under the display.

    Args:
        quiet: no bars: something else is shown meanwhile.
    """
    with Display(quiet=quiet or (args.json and not sys.stderr.isatty())) as display:
        return run(work(options_of(args, display)))


def show_document(args: argparse.Namespace, document: Any, show: Callable[[Console], None]) -> int:
    """Print the document with `--json`, else show it; the exit code."""
    if args.json:
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))  # noqa: T201
    else:
        show(Console(highlight=False))
    return 0


def write_play_page(args: argparse.Namespace, run: Path) -> str | None:
    """Write the report of a play run beside its plays.

    A replay writes nothing, and plays that lie there without their run have no report.

    Raises:
        OutputError: the page cannot be written.
    """
    if args.replay or not (run / MANIFEST).is_file():
        return None
    from personae.reports.scenes import gather_plays, write_plays_html

    data = gather_plays([run], prices=prices_of(args))
    write_plays_html(data, run / REPORT, data.manifests[0].language)
    return str(run / REPORT)


def show_plan(args: argparse.Namespace, plan: Plan) -> int:
    """What a dry run counted."""
    prices = prices_of(args)
    lines: list[dict[str, Any]] = []
    for role, model in sorted(plan.calls):
        key = (role, model)
        price = prices(model)
        tokens_in, tokens_out = plan.tokens_in[key], plan.tokens_out[key]
        lines.append(
            {
                "role": role,
                "model": model,
                "calls": plan.calls[key],
                "tokens_in": tokens_in,
                "tokens_out": tokens_out,
                "usd": None if price is None else price.of_tokens(tokens_in, tokens_out),
            }
        )
    costs = [line["usd"] for line in lines]
    document = {
        "dry_run": True,
        "calls": sum(plan.calls.values()),
        "reused": plan.reused,
        "tokens_in": sum(plan.tokens_in.values()),
        "tokens_out": sum(plan.tokens_out.values()),
        "usd": None if None in costs else sum(costs),
        "lines": lines,
    }

    def show(console: Console) -> None:
        table = Table("role", "model", title="Dry run: nothing was sent")
        for name in ("calls", "tokens in", "tokens out", "USD"):
            table.add_column(name, justify="right")
        for line in lines:
            usd = "unknown" if line["usd"] is None else f"{line['usd']:.4f}"
            table.add_row(
                line["role"],
                line["model"],
                *(f"{line[k]:,}" for k in ("calls", "tokens_in", "tokens_out")),
                usd,
            )
        console.print(table)
        console.print(f"{document['calls']:,} calls; {plan.reused:,} are in the journal already.")
        console.print("Tokens are estimates: 4 letters, or 1.5 Chinese characters, a token.")

    return show_document(args, document, show)


class Was:
    """What a manifest says of the first time; it is a file that anyone may have written.

    Raises:
        InputError: an argument or a model is absent, or of a type that it cannot have.
    """

    def __init__(self, run: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._run = run

    def __call__(self, name: str, *kinds: type | None) -> Any:
        """An argument of one of these types; absent counts as None."""
        value = self.manifest.arguments.get(name)
        if (value is None and None not in kinds) or not (value is None or type(value) in kinds):
            raise self._wrong(f"arguments.{name}")
        return value

    def path(self, name: str) -> Path | None:
        """An argument that is a path, or None."""
        value = self(name, str, None)
        return None if value is None else Path(value)

    def texts(self, name: str) -> list[str]:
        """An argument that is a list of texts."""
        value: list[str] = self(name, list)
        if not all(isinstance(v, str) for v in value):
            raise self._wrong(f"arguments.{name}")
        return value

    def models(self, role: str) -> list[str]:
        """The models of a role, one at least."""
        found = self.manifest.models.get(role)
        if not found:
            raise self._wrong(f"models.{role}")
        return list(found)

    def out(self) -> Path:
        """The file that a build writes, where its run lies beside it and nowhere else."""
        out = Path(self("out", str))
        if self._run.parent != out.resolve().parent or not self._run.name.startswith(out.name):
            raise InputError(
                f"this run belongs beside {out}",
                path=self._run,
                mend="Move it back there, or run the command again",
            )
        return out

    def _wrong(self, place: str) -> InputError:
        return InputError(
            "does not say how to run it again", path=self._run / MANIFEST, place=place
        )
