"""Which models can be named, for people: the embedded weights, providers, schemes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from personae.models.local import weights
from personae.models.providers import PROVIDERS

SCHEMES = {
    "provider/model": "an endpoint of one of the providers below",
    "http://host:port/v1#model": "any OpenAI-compatible endpoint",
    "local": "the embedded model",
    "local:FILE.gguf": "your own weights",
    "local:OWNER/REPO:FILE.gguf": "weights from the Hugging Face hub",
    "cast:DIR": "the characters of a cast (`personae cast train`): who is asked for answers",
    "cast:DIR#NAME": "one of them; #base is the model under the cast",
    "scripted:FILE.py": "a script that defines reply(call)",
    "lift:MODEL": "as a judge: persona lift, measured with MODEL",
}


def catalogue() -> dict[str, Any]:
    """What `personae models` shows."""
    return {
        "embedded": [
            {
                "id": info.id,
                "name": info.name,
                "licence": info.licence,
                "bytes": info.size,
                "source": info.source,
                "cached": info.cached,
            }
            for info in weights.catalogue()
        ],
        "providers": sorted(PROVIDERS),
        "schemes": SCHEMES,
    }


def print_catalogue(found: dict[str, Any], console: Console) -> None:
    """The catalogue as tables."""
    table = Table("id", "weights", "licence", "size", "fetched", title="Embedded")
    for line in found["embedded"]:
        table.add_row(
            line["id"],
            line["name"],
            line["licence"],
            f"{line['bytes'] / 1e6:.0f} MB",
            "yes" if line["cached"] else "no (personae models pull)",
        )
    console.print(table)
    ids = Table("model id", "what it is", title="Ids")
    for scheme, text in found["schemes"].items():
        ids.add_row(scheme, text)
    console.print(ids)
    console.print("Providers: " + ", ".join(found["providers"]), soft_wrap=True)


def pull_with_progress(name: str, console: Console) -> Path:
    """Fetch weights under a progress bar that says what comes from where under which licence.

    Raises:
        UsageError: no such weights.
        WeightsError: they cannot be had.
    """
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bars:
        said: dict[str, Any] = {}

        def tell(what: str, done: int | None, total: int | None) -> None:
            if what not in said:
                said[what] = bars.add_task(what, total=total)
                if not console.is_terminal:
                    console.print(what, highlight=False, markup=False)
            bars.update(said[what], completed=done or 0, total=total)

        return weights.pull(name, tell)
