"""What a call costs: a small dated table that the user can override; unknown is unknown."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from personae.errors import InputError
from personae.models.registry import model_scheme
from personae.records import Price
from personae.records.files import read_json

ENVIRONMENT = "PERSONAE_PRICES"
FREE = Price(0.0, 0.0)


class PriceTable:
    """Prices by model id. The embedded model, casts, scripts and people cost nothing.

    Args:
        models: model id to `{"in", "out", "cached"?}`, US dollars per million tokens.
    """

    def __init__(self, models: Mapping[str, Price]) -> None:
        self._models = dict(models)

    def __call__(self, model: str) -> Price | None:
        """The price of a model id, or None if it is not known."""
        if model_scheme(model) in ("local", "scripted", "person", "cast"):
            return FREE
        return self._models.get(model)


def _read(value: Any, path: Path | str) -> dict[str, Price]:
    models = value.get("models") if isinstance(value, dict) else None
    if not isinstance(models, dict):
        raise InputError('has no "models"', path=path, mend="See docs/running.md, Prices")
    prices: dict[str, Price] = {}
    for name, entry in models.items():
        try:
            numbers = [float(entry["in"]), float(entry["out"])]
            cached = None if entry.get("cached") is None else float(entry["cached"])
        except (TypeError, KeyError, ValueError, AttributeError):
            raise InputError(
                'a price is {"in": USD, "out": USD} per million tokens', path=path, place=str(name)
            ) from None
        if not all(0 <= n < math.inf for n in (*numbers, cached or 0.0)):
            raise InputError("a price is a number from 0", path=path, place=str(name))
        prices[name] = Price(numbers[0], numbers[1], cached)
    return prices


def load_prices(path: Path | None = None) -> PriceTable:
    """The shipped table, with the entries of the user's file over it.

    Args:
        path: the user's file; by default the one that `PERSONAE_PRICES` names.

    Raises:
        InputError: the user's file is not a price table.
    """
    shipped = json.loads(files(__package__).joinpath("prices.json").read_text("utf-8"))
    prices = _read(shipped, "prices.json")
    if path is None and os.environ.get(ENVIRONMENT):
        path = Path(os.environ[ENVIRONMENT])
    if path is not None:
        prices |= _read(read_json(path), path)
    return PriceTable(prices)
