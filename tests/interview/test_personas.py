"""Personas out of a file or out of a model: each once, each with a stable id, or a clear error."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.characters.card import card_of
from personae.characters.convert import write_card
from personae.characters.starter import starter, starter_ids
from personae.errors import BadRequestError, InputError
from personae.interview.build import EXAMINER_SAMPLING
from personae.interview.personas import (
    MAX_PERSONA_CHARS,
    character,
    generate_personas,
    persona_id,
    read_personas,
)
from personae.journal.client import Client
from personae.journal.store import Journal
from personae.models.scripted import ScriptedModel
from personae.records import Call, Character, Message


def text_file(tmp_path: Path, content: str, name: str = "people.txt") -> Path:
    path = tmp_path / name
    path.write_text(content, "utf-8")
    return path


def jsonl_file(tmp_path: Path, *lines: Any) -> Path:
    return text_file(tmp_path, "".join(json.dumps(x) + "\n" for x in lines), "people.jsonl")


def test_an_id_is_readable_and_stable() -> None:
    assert persona_id("A baker from Lyon, who sings") == "a-baker-from-lyon-who-315055"
    assert persona_id("一位面包师") == "一位面包师-91b6f0"


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_personas_have_different_ids(a: str, b: str) -> None:
    assert (persona_id(a) == persona_id(b)) == (a == b)


@given(st.text(min_size=1).filter(lambda s: s.strip()))
def test_an_id_has_no_spaces_or_slashes(text: str) -> None:
    made = persona_id(text)
    assert made
    assert not set(made) & set(" /\\\t\n@")


def test_a_text_file_holds_a_persona_a_line(tmp_path: Path) -> None:
    path = text_file(
        tmp_path, "\ufeff# people\nA cook\n\n   \n  A  diver \r\n  # no one\n一位面包师"
    )
    people = read_personas(path)
    assert [p.description for p in people] == ["A cook", "A diver", "一位面包师"]
    assert {p.source for p in people} == {"people.txt"}
    assert [p.id for p in people] == [persona_id(p.description) for p in people]


def test_a_jsonl_file_may_name_its_personas(tmp_path: Path) -> None:
    path = jsonl_file(
        tmp_path, {"description": "A cook"}, {"persona": "A diver", "id": "diver"}, {
            "description": "# counts here", "more": 1}
    )  # fmt: skip
    assert [(p.id, p.description) for p in read_personas(path)] == [
        (persona_id("A cook"), "A cook"),
        ("diver", "A diver"),
        (persona_id("# counts here"), "# counts here"),
    ]


@pytest.mark.parametrize("content", ["", "\n \n", "# only a comment\n"])
def test_a_file_without_a_persona_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match=r"holds no persona\. Write one persona a line"):
        read_personas(text_file(tmp_path, content))


@pytest.mark.parametrize(
    "line",
    [{}, {"description": ""}, {"description": " "}, {"description": 5}, {"description": None},
     {"name": "A cook"}, {"persona": ["A cook"]}],
)  # fmt: skip
def test_a_jsonl_line_without_a_persona_is_named(tmp_path: Path, line: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"people\.jsonl, line 2: no persona on this line"):
        read_personas(jsonl_file(tmp_path, {"description": "A cook"}, line))


@pytest.mark.parametrize("name", ["", 5, ["a"]])
def test_a_jsonl_id_must_be_a_name(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InputError, match=r"line 1: not a valid Persona: id"):
        read_personas(jsonl_file(tmp_path, {"description": "A cook", "id": name}))


def test_the_same_persona_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3: the same persona as line 1"):
        read_personas(text_file(tmp_path, "A cook\nA diver\nA   cook\n"))
    with pytest.raises(InputError, match="line 2: the same persona as line 1"):
        read_personas(
            jsonl_file(tmp_path, {"persona": "A", "id": "x"}, {"persona": "B", "id": "x"})
        )


def test_a_persona_has_a_length_that_a_prompt_can_hold(tmp_path: Path) -> None:
    assert read_personas(text_file(tmp_path, "x" * MAX_PERSONA_CHARS))
    with pytest.raises(InputError, match=r"line 1: a persona of 20,001 characters"):
        read_personas(text_file(tmp_path, "x" * (MAX_PERSONA_CHARS + 1)))


def test_binary_noise_is_an_input_error(tmp_path: Path) -> None:
    for name in ("noise.txt", "noise.jsonl"):
        (tmp_path / name).write_bytes(bytes(range(256)))
        with pytest.raises(InputError, match=name):
            read_personas(tmp_path / name)


# Cards ------------------------------------------------------------------------------------------


def card_file(path: Path, name: str, description: str, **more: Any) -> Path:
    write_card(card_of(Character(name=name, description=description, **more)), path)
    return path


@pytest.mark.parametrize("ending", ["json", "png", "charx", "JSON"])
def test_a_card_is_a_persona_whatever_file_it_comes_in(tmp_path: Path, ending: str) -> None:
    path = card_file(tmp_path / "ann.tmp.json", "Ann Lee", "A pilot.").rename(tmp_path / "a.json")
    target = tmp_path / f"ann.{ending}"
    if ending == "JSON":
        path.rename(target)
    else:
        card_file(target, "Ann Lee", "A pilot.")
    (person,) = read_personas(target)
    assert "Ann Lee" in person.description
    assert "A pilot." in person.description
    assert re.fullmatch(r"ann-lee-[0-9a-f]{6}", person.id)
    assert person.source == target.name


def test_a_folder_of_cards_gives_one_persona_each_in_the_order_of_their_names(
    tmp_path: Path,
) -> None:
    card_file(tmp_path / "b.png", "Bo", "A cook.")
    card_file(tmp_path / "a.json", "Ann", "A pilot.")
    (tmp_path / "readme.txt").write_text("not a card", "utf-8")
    people = read_personas(tmp_path)
    assert [p.source for p in people] == ["a.json", "b.png"]
    assert ["A pilot." in p.description for p in people] == [True, False]


def test_what_only_people_or_the_character_may_read_is_no_part_of_a_persona(
    tmp_path: Path,
) -> None:
    path = card_file(
        tmp_path / "a.json", "Ann", "A pilot.", creator_notes="NOTES", first_mes="GREETING",
        extensions={"personae": {"secrets": [{"fact": "SECRET", "known_by": ["Ann"]}]}},
    )  # fmt: skip
    (person,) = read_personas(path)
    assert not [w for w in ("NOTES", "GREETING", "SECRET") if w in person.description]
    assert "{{" not in person.description


@pytest.mark.parametrize("name", starter_ids())
def test_every_character_of_the_starter_cast_can_be_questioned(name: str, tmp_path: Path) -> None:
    write_card(card_of(starter(name)), tmp_path / "card.json")
    (person,) = read_personas(tmp_path / "card.json")
    assert starter(name).name in person.description
    assert "{{" not in person.description


def test_a_card_that_stands_twice_or_is_too_long_is_refused_with_its_file(tmp_path: Path) -> None:
    card_file(tmp_path / "a.json", "Ann", "A pilot.")
    card_file(tmp_path / "b.json", "Ann", "A pilot.")
    with pytest.raises(InputError, match=r"b\.json: the same persona as a\.json"):
        read_personas(tmp_path)
    long = card_file(tmp_path / "c.json", "Cy", "x" * (MAX_PERSONA_CHARS + 1))
    with pytest.raises(InputError, match=r"a persona of 20,\d+ characters"):
        read_personas(long)


def test_a_json_file_that_is_no_card_and_a_folder_without_cards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is no character card"):
        read_personas(text_file(tmp_path, "{}", "a.json"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no card"):
        read_personas(tmp_path / "empty")


# Written by a model -----------------------------------------------------------------------------

JOBS = ["baker", "surgeon", "pilot", "weaver", "judge", "miner", "poet", "chemist", "tailor",
        "diver", "librarian", "blacksmith", "farmer", "violinist", "detective", "nurse"]  # fmt: skip
PLACES = ["Lyon", "Osaka", "Quito", "Tromsø", "Lagos", "Perth", "Kraków", "Hanoi", "Boise",
          "Muscat", "Zagreb", "Nuuk", "Cork", "Izmir", "Lima", "Bern"]  # fmt: skip
SIXTEEN = [f"{job.upper()} {place} {job}" for job, place in zip(JOBS, PLACES, strict=True)]


def no_repair(call: Call, text: str, problem: str) -> tuple[Message, ...]:
    raise AssertionError("a scripted reply that meets its schema needs no repair")


async def generated(
    folder: Path, reply: Callable[[dict[str, Any]], dict[str, Any]], count: int
) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Personas, shortfalls, and the calls that the script saw."""
    calls: list[dict[str, Any]] = []

    def noted(call: dict[str, Any]) -> dict[str, Any]:
        calls.append(call)
        return reply(call)

    script = ScriptedModel(noted)
    journal = Journal(folder / "journal.sqlite", command="test")
    client = Client(journal, lambda _id: script, repair=no_repair)
    try:
        people, short = await generate_personas(
            client, "scripted:x", count, language="en", sampling=EXAMINER_SAMPLING
        )
    finally:
        await client.close()
        journal.close()
    return people, short, calls


def wanted(call: dict[str, Any]) -> int:
    most = call["schema"]["properties"]["personas"]["maxItems"]
    assert isinstance(most, int)
    return most


async def test_as_many_personas_as_wanted_are_written_in_batches(tmp_path: Path) -> None:
    left = iter(SIXTEEN)
    people, short, calls = await generated(
        tmp_path, lambda call: {"personas": [next(left) for _ in range(wanted(call))]}, 13
    )
    assert [p.description for p in people] == SIXTEEN[:13]
    assert short == ()
    assert [wanted(call) for call in calls] == [10, 3]
    assert [call["repeat"] for call in calls] == [0, 1]
    assert {call["sampling"]["temperature"] for call in calls} == {0.9}


async def test_the_second_request_names_those_already_there(tmp_path: Path) -> None:
    left = iter(SIXTEEN)
    _, _, calls = await generated(
        tmp_path, lambda call: {"personas": [next(left) for _ in range(wanted(call))]}, 12
    )
    assert SIXTEEN[0] not in json.dumps(calls[0]["messages"])
    assert SIXTEEN[0] in json.dumps(calls[1]["messages"], ensure_ascii=False)


async def test_near_duplicates_are_refused_and_asked_for_again(tmp_path: Path) -> None:
    replies = iter([["A baker from Lyon", "a Baker, from Lyon.", SIXTEEN[1]], [SIXTEEN[2]]])
    people, short, calls = await generated(tmp_path, lambda call: {"personas": next(replies)}, 3)
    assert [p.description for p in people] == ["A baker from Lyon", SIXTEEN[1], SIXTEEN[2]]
    assert short == ()
    assert wanted(calls[1]) == 1


async def test_where_diversity_runs_out_is_said(tmp_path: Path) -> None:
    people, short, calls = await generated(
        tmp_path, lambda call: {"personas": (SIXTEEN[:2] * 5)[: wanted(call)]}, 10
    )
    assert [p.description for p in people] == SIXTEEN[:2]
    assert len(calls) == 4
    (shortfall,) = short
    assert (shortfall.wanted, shortfall.got) == (10, 2)
    assert "diversity ran out after 2 personas (32 near-duplicates were refused)" in shortfall.cause


async def test_an_examiner_that_fails_leaves_a_shortfall_and_no_persona(tmp_path: Path) -> None:
    def fail(call: dict[str, Any]) -> dict[str, Any]:
        raise BadRequestError("the script says no")

    people, short, _ = await generated(tmp_path, fail, 5)
    assert people == ()
    assert (short[0].wanted, short[0].got) == (5, 0)
    assert short[0].cause == "the examiner failed: bad_request"


@given(st.text().filter(lambda s: s.strip()))
def test_a_description_has_single_spaces_and_no_line_breaks(text: str) -> None:
    made = character(text).description
    assert made == " ".join(made.split())
    assert made.split() == text.split()
