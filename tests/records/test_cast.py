"""What the records of a cast refuse."""

from typing import Any

import pytest

from personae.errors import InputError
from personae.records import BaseModelRef, Block, CastCharacter, CastManifest, CastRow, CastTurn
from personae.records.cast import CastAnswer

HASH = "0" * 64


def row(**changes: Any) -> dict[str, Any]:
    return {
        "characters": ["Ada"],
        "turns": [{"text": "Well?"}, {"speaker": "Ada", "text": "Quite."}],
        "source": "talk.jsonl, line 1",
        **changes,
    }


def manifest(**changes: Any) -> dict[str, Any]:
    base = BaseModelRef(id="local", sha256=HASH, architecture="llama")
    whole = CastManifest(
        version="1",
        base=base,
        rank=8,
        alpha=16,
        targets=("q_proj",),
        blocks=(Block(name="shared"), Block(name="Ada")),
        characters=(CastCharacter(name="Ada", weights={"shared": 1, "Ada": 1}),),
        blocks_sha256=HASH,
    )
    return {**whole.to_dict(), **changes}


def test_a_row_names_only_characters_that_speak() -> None:
    assert CastRow.from_dict(row()).turns[1] == CastTurn(speaker="Ada", text="Quite.")
    with pytest.raises(InputError, match="'Bob' says nothing in this dialogue"):
        CastRow.from_dict(row(characters=["Ada", "Bob"]))


def test_a_row_names_no_character_twice_and_has_a_source() -> None:
    with pytest.raises(InputError, match="named twice"):
        CastRow.from_dict(row(characters=["Ada", "Ada"]))
    with pytest.raises(InputError, match="source"):
        CastRow.from_dict(row(source=" "))
    with pytest.raises(InputError, match="characters"):
        CastRow.from_dict(row(characters=[]))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"blocks": [{"name": "shared"}, {"name": "shared"}]}, "two blocks named 'shared'"),
        ({"characters": [{"name": "Ada"}, {"name": "Ada"}]}, "two characters named 'Ada'"),
        ({"characters": [{"name": "shared"}]}, "no character may be named 'shared'"),
        ({"characters": [{"name": "Ada", "weights": {"Bob": 1}}]}, "'Bob', no block here"),
        ({"blocks_sha256": "short"}, "blocks_sha256"),
        ({"rank": 0}, "rank"),
        ({"alpha": 0}, "alpha"),
        ({"characters": []}, "characters"),
    ],
)
def test_a_manifest_that_does_not_fit_together_is_an_error(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        CastManifest.from_dict(manifest(**changes))


def test_a_manifest_finds_its_characters_by_name() -> None:
    cast = CastManifest.from_dict(manifest())
    ada = cast.of("Ada")
    assert ada is not None
    assert ada.weights == {"shared": 1, "Ada": 1}
    assert cast.of("Bob") is None


@pytest.mark.parametrize("more", [{}, {"answer": "I.", "missing": "timeout"}])
def test_an_answer_is_there_or_it_is_said_why_not(more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="either an answer, or why there is none"):
        CastAnswer.from_dict({"question": "Who?", "character": "Ada", **more})
