"""Cards' secrets in company: who knows which, under the names that the company uses."""

from __future__ import annotations

from typing import Any

import pytest

from personae.characters.secrets import card_secrets
from personae.errors import InputError
from personae.records import Character


def card(name: str, *secrets: tuple[str, list[str]], **fields: Any) -> Character:
    ours = {"secrets": [{"fact": fact, "known_by": by} for fact, by in secrets]}
    return Character.model_validate({"name": name, "extensions": {"personae": ours}, **fields})


WATSON = card(
    "Dr. John Watson",
    ("The wound is in the leg", ["Watson", "Sherlock Holmes"]),
    ("Mary has written to {{char}}", ["dr. john  watson"]),
    ("Nobody here knows this", ["Mycroft"]),
    ("The Doctor owes money", ["the landlady", "The Doctor"]),
    nickname="Watson",
)
COMPANY = {"The Doctor": WATSON, "Holmes": card("Sherlock Holmes"), "Wiggins": None}


def test_whoever_is_there_and_named_knows_a_secret_under_its_name_there() -> None:
    found = card_secrets(COMPANY, "The Doctor", language="en", seed=0)
    assert [(one.line, one.known_by) for one in found] == [
        ("The Doctor: The wound is in the leg", ("The Doctor", "Holmes")),
        ("The Doctor: Mary has written to Watson", ("The Doctor",)),
        ("The Doctor owes money", ("The Doctor",)),
    ]


def test_an_alias_names_too() -> None:
    aliases = {"Wiggins": ("The Landlady",)}
    *_, last = card_secrets(COMPANY, "The Doctor", language="zh", seed=0, aliases=aliases)
    assert last.known_by == ("The Doctor", "Wiggins")


def test_an_alias_that_is_anothers_name_on_a_card_means_neither() -> None:
    aliases = {"Wiggins": ("Sherlock Holmes",)}
    first, *_ = card_secrets(COMPANY, "The Doctor", language="en", seed=0, aliases=aliases)
    assert first.known_by == ("The Doctor",)


def test_who_has_no_card_has_no_secrets_and_a_malformed_one_is_an_error() -> None:
    assert card_secrets(COMPANY, "Wiggins", language="en", seed=0) == ()
    wrong = Character.model_validate({"name": "A", "extensions": {"personae": {"secrets": 3}}})
    with pytest.raises(InputError, match="secrets"):
        card_secrets({"A": wrong}, "A", language="en", seed=0)
