"""What `personae models` shows."""

import io

from rich.console import Console

from personae.models.catalogue import SCHEMES, catalogue, print_catalogue
from personae.models.registry import Registry
from personae.session import all_schemes


def test_every_scheme_that_an_id_can_have_is_listed() -> None:
    registry = all_schemes(Registry())
    listed = {name.split(":")[0] for name in SCHEMES if ":" in name} - {"http"}
    assert listed >= {"local", "scripted", "cast", "lift"}
    assert all(scheme == "lift" or registry.knows(scheme) for scheme in listed)


def test_the_list_shows_how_a_cast_is_named() -> None:
    out = io.StringIO()
    print_catalogue(catalogue(), Console(file=out, width=160))
    assert "cast:DIR#NAME" in out.getvalue()
