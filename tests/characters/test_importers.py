"""What others published becomes a character as it is, or a clear error names the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from personae.characters.card import card_of, read_character
from personae.characters.convert import write_card
from personae.characters.importers import (
    DESCRIPTION_CHARS,
    PERSONA_KEY,
    PROFILE_KEY,
    from_persona,
    from_scenes,
    import_neeko,
    read_characters,
)
from personae.errors import InputError
from personae.interview.personas import character as persona
from personae.records import Character, Scene
from personae.world.scene_import import import_characterbox

PROFILE = """# Hypatia of Alexandria

Hypatia taught mathematics.
\x20
She edited the Almagest with her father.

## Death

A mob killed her in 415.
"""


def profile(folder: Path, text: str = PROFILE, name: str = "wiki_Hypatia.txt") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


# Neeko's profiles --------------------------------------------------------------------------------


def test_a_profile_gives_its_name_and_the_paragraphs_before_the_first_heading(
    tmp_path: Path,
) -> None:
    (made,) = import_neeko(profile(tmp_path))
    assert made.name == "Hypatia of Alexandria"
    assert made.description == (
        "Hypatia taught mathematics.\n\nShe edited the Almagest with her father."
    )
    assert made.ours.language == "en"
    assert made.source == ("wiki_Hypatia.txt",)


def test_no_paragraph_of_a_profile_is_lost(tmp_path: Path) -> None:
    (made,) = import_neeko(profile(tmp_path))
    assert made.extensions[PROFILE_KEY] == [
        "Hypatia taught mathematics.",
        "She edited the Almagest with her father.",
        "## Death",
        "A mob killed her in 415.",
    ]


def test_a_profile_without_headings_is_cut_between_paragraphs(tmp_path: Path) -> None:
    half = "x" * (DESCRIPTION_CHARS // 2)
    (made,) = import_neeko(profile(tmp_path, f"# A\n\n{half}\n\n{half}\n\ny\n"))
    assert made.description == f"{half}\n\n{half}"
    (made,) = import_neeko(profile(tmp_path, f"# A\n\n{half}{half}z\n\ny\n"))
    assert made.description == f"{half}{half}z"


def test_a_heading_right_after_the_name_does_not_hide_the_first_paragraph(tmp_path: Path) -> None:
    (made,) = import_neeko(profile(tmp_path, "# A\n## Life\nBorn.\n## Death\nDied.\n"))
    assert made.description == "Born."


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: does not begin with the character's name"),
        ("\n\nHypatia taught.\n", "line 3: does not begin with the character's name"),
        ("#Hypatia\n\nShe taught.\n", "line 1: does not begin"),
        ("## Life\n\nShe taught.\n", "line 1: does not begin"),
        ("# Hypatia\n\n", "says nothing of the character"),
        ("# Hypatia\n## Life\n", "says nothing of the character"),
    ],
)
def test_a_profile_without_name_or_text_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=rf"wiki_Hypatia\.txt.*{complaint}"):
        import_neeko(profile(tmp_path, text))


def test_a_folder_gives_its_profiles_and_nothing_else(tmp_path: Path) -> None:
    profile(tmp_path)
    profile(tmp_path, "# Newton\n\nA physicist.\n", "wiki_Newton.txt")
    profile(tmp_path, "not a profile", "readme.txt")
    assert [c.name for c in import_neeko(tmp_path)] == ["Hypatia of Alexandria", "Newton"]


def test_a_folder_without_profiles_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no profile"):
        import_neeko(tmp_path)
    profile(tmp_path)
    profile(tmp_path, name="wiki_Hypatia2.txt")
    with pytest.raises(InputError, match=r"the same character as wiki_Hypatia\.txt"):
        import_neeko(tmp_path)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "wiki_A.txt").symlink_to(profile(tmp_path))
    with pytest.raises(InputError, match="a link to a file outside of the folder"):
        import_neeko(tmp_path / "in")


def test_the_published_profiles_become_characters(shared_data: Callable[..., Path]) -> None:
    folder = shared_data("neeko", "profiles")
    made = import_neeko(folder)
    assert len(made) == len(list(folder.glob("wiki_*.txt")))
    assert {"Ludwig van Beethoven", "Isaac Newton"} <= {c.name for c in made}
    for character in made:
        assert 500 < len(character.description) <= DESCRIPTION_CHARS + 2 * 20
        (name,) = character.source or ()
        lines = (folder / name).read_text("utf-8").splitlines()
        told = [line.strip() for line in lines if line.strip()]
        assert [f"# {character.name}", *character.extensions[PROFILE_KEY]] == told


# Persona lines -----------------------------------------------------------------------------------


def test_a_persona_line_is_called_by_its_first_clause_and_keeps_its_id() -> None:
    line = "A 71-year-old retired lighthouse keeper from Cornwall, who carves whales"
    made = from_persona(persona(line, "people.txt"), language="en")
    assert made.name == "A 71-year-old retired lighthouse keeper from Cornwall"
    assert made.description == line
    assert made.extensions[PERSONA_KEY] == persona(made.description).id
    assert made.source == ("people.txt",)
    assert made.ours.language == "en"


@pytest.mark.parametrize(
    ("line", "name"),
    [("一位面包师，住在里昂", "一位面包师"), (", who sings", ", who sings"), ("x" * 200, "x" * 80)],
)
def test_a_persona_line_has_a_name_whatever_it_looks_like(line: str, name: str) -> None:
    assert from_persona(persona(line)).name == name


def test_every_published_persona_becomes_a_character_of_the_same_id(
    shared_data: Callable[..., Path],
) -> None:
    lines = [p.stem for p in shared_data("personagym", "questions", "benchmark-v1").glob("*.json")]
    made = {line: from_persona(persona(line)) for line in lines}
    assert len({c.extensions[PERSONA_KEY] for c in made.values()}) == len(lines) > 50
    assert all(c.name and c.description for c in made.values())


# Characters of scenes ----------------------------------------------------------------------------


def scene(number: int, *people: dict[str, Any], **more: Any) -> Scene:
    return Scene.from_dict(
        {"id": f"T/{number}", "title": "T", "environment": {}, "characters": people, **more}
    )


def test_a_character_of_several_scenes_is_one_with_all_of_its_descriptions() -> None:
    ann = {"name": "Ann", "gender": "female", "state": "tired", "position": "here", "goal": "win"}
    found = from_scenes(
        [
            scene(1, {**ann, "description": "A pilot."}, {"name": "Bo"}),
            scene(2, {**ann, "description": "A pilot."}),
            scene(3, {**ann, "description": "She lost a ship."}, source="Somebody"),
        ]
    )
    assert list(found) == ["T/Ann", "T/Bo"]
    made = found["T/Ann"]
    assert made.description == "A pilot.\n\nShe lost a ship."
    assert made.tags == ("T", "female")
    assert made.source == ("Somebody",)
    assert found["T/Bo"].description == ""
    assert "tired" not in made.model_dump_json()


def test_the_same_name_in_two_titles_is_two_characters() -> None:
    found = from_scenes([scene(1, {"name": "Ann"}), scene(2, {"name": "Ann"}, title="U")])
    assert list(found) == ["T/Ann", "U/Ann"]


def test_a_character_takes_the_secrets_that_it_knows_and_no_other() -> None:
    one = scene(1, {"name": "Ann"}, {"name": "Bo"}, secrets=[
        {"fact": "hers", "known_by": ["Ann"]}, {"fact": "both", "known_by": ["Ann", "Bo"]}])  # fmt: skip
    found = from_scenes([one, one])
    assert [s.fact for s in found["T/Ann"].ours.secrets] == ["hers", "both"]
    assert [s.fact for s in found["T/Bo"].ours.secrets] == ["both"]


def test_every_character_of_the_published_scenes_becomes_a_card(
    shared_data: Callable[..., Path], tmp_path: Path
) -> None:
    scenes = import_characterbox(shared_data("characterbox"))
    found = from_scenes(scenes)
    assert set(found) == {f"{s.title}/{c.name}" for s in scenes for c in s.characters}
    assert {c.ours.language for c in found.values()} == {"en", "zh"}
    wukong = next(c for key, c in found.items() if key.endswith("/孙悟空"))
    write_card(card_of(wukong), tmp_path / "card.json")
    assert read_character(tmp_path / "card.json") == wukong


# Files of cards ----------------------------------------------------------------------------------


def test_cards_of_a_folder_are_read_whatever_they_are_in(tmp_path: Path) -> None:
    for name, ending in (("Ann", "json"), ("Bo", "png"), ("Cy", "charx")):
        write_card(card_of(Character(name=name, description="x")), tmp_path / f"{name}.{ending}")
    (tmp_path / "notes.txt").write_text("no card", "utf-8")
    assert [(p.name, c.name) for p, c in read_characters(tmp_path)] == [
        ("Ann.json", "Ann"), ("Bo.png", "Bo"), ("Cy.charx", "Cy"),
    ]  # fmt: skip
    assert [c.name for _, c in read_characters(tmp_path / "Bo.png")] == ["Bo"]


def test_a_folder_with_no_card_or_with_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no card \(no \.json, \.png, \.apng, \.charx"):
        read_characters(tmp_path)
    write_card(card_of(Character(name="Ann")), tmp_path / "Ann.json")
    (tmp_path / "book.json").write_text(json.dumps({"spec": "lorebook_v3", "data": {}}), "utf-8")
    with pytest.raises(InputError, match=r"book\.json.*this is a lorebook"):
        read_characters(tmp_path)
