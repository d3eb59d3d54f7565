"""Prices: the user's file over the shipped table; unknown is unknown, not 0."""

import json
from pathlib import Path

import pytest

from personae.errors import InputError
from personae.models.prices import load_prices


def test_the_embedded_model_and_scripts_cost_no_money_and_strangers_are_unknown():
    prices = load_prices()
    for free in ("local", "local:x.gguf", "scripted:x.py"):
        price = prices(free)
        assert price is not None
        assert price.of_tokens(10**6, 10**6) == 0
    assert prices("vllm/unheard-of") is None


def test_the_users_file_wins(tmp_path: Path, monkeypatch):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"models": {"openai/gpt-4o": {"in": 1, "out": 2}}}))
    for prices in (
        load_prices(path),
        (monkeypatch.setenv("PERSONAE_PRICES", str(path)), load_prices())[1],
    ):
        price = prices("openai/gpt-4o")
        assert price is not None
        assert price.of_tokens(1_000_000, 500_000) == 2.0


@pytest.mark.parametrize(
    "content",
    ['{"models": {"m": {"in": 1}}}', '{"models": {"m": {"in": -1, "out": 1}}}', "[]",
     '{"models": {"m": {"in": NaN, "out": 1}}}', '{"models": {"m": 3}}'],
)  # fmt: skip
def test_a_file_that_is_no_price_table_is_refused(tmp_path: Path, content):
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"p\.json"):
        load_prices(path)
