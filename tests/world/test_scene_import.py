"""CharacterBox's files: all of them come in; what is sloppy is mended aloud or refused by place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from personae.cli import main
from personae.errors import InputError
from personae.world.scene_file import read_scenes
from personae.world.scene_import import import_characterbox

VERBATIM = "It was the best of chunks, it was the worst of chunks."


def person(number: Any = 0, name: Any = "Anna", **more: Any) -> dict[str, Any]:
    return {
        "id": number, "name": name, "gender": "Female", "description": "A fencer.",
        "position": "at the door", "states": "calm", **more,
    }  # fmt: skip


def scene(number: Any = 0, *people: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": number, "event": "A duel", "time": "dawn", "location": "the yard",
        "description": "Fog lies over the yard.", "characters": list(people) or [person()],
        "actions": [], "plot": "Anna wins.", "chunk": {"id": 7, "text": VERBATIM}, **more,
    }  # fmt: skip


def a_file(tmp_path: Path, *scenes: Any, folder: str = "extracted_scenes", **more: Any) -> Path:
    path = tmp_path / folder / "The_Duel.json"
    path.parent.mkdir(exist_ok=True)
    content = {"title": "The_Duel", "scenes": list(scenes) or [scene()], **more}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def noted(path: Path, **more: Any):
    notes: list[str] = []
    return import_characterbox(path, note=notes.append, **more), notes


def test_every_public_scene_comes_in_with_nothing_lost(shared_data: Callable[..., Path]):
    folder = shared_data("characterbox")
    scenes, notes = noted(folder)
    files = [*folder.glob("*_scenes/*.json"), *folder.glob("*_data/*.json")]
    raw = [
        (file, title["title"], one)
        for file in files
        for title in [json.loads(file.read_text("utf-8"))]
        for one in title["scenes"]
    ]
    assert len(scenes) == len(raw) == len({s.id for s in scenes})
    by_id = {s.id: s for s in scenes}
    for file, title, one in raw:
        origin = "extracted" if file.parent.name == "extracted_scenes" else "generated"
        made = by_id[f"{title}/{origin}/{one['id']}"]
        assert made.origin == origin
        assert made.language == ("zh" if any("\u4e00" <= c <= "\u9fff" for c in title) else "en")
        assert (made.event, made.environment.location) == (one["event"], one["location"])
        assert [(c.name, c.state, c.position) for c in made.characters] == [
            tuple(c[k].strip() for k in ("name", "states", "position")) for c in one["characters"]
        ]
        assert len(made.script) == len(one["actions"])
        assert made.plot == one["plot"]
    lacking = sum("gender" not in c for _, _, one in raw for c in one["characters"])
    assert len([n for n in notes if "gender" in n]) == lacking
    assert len(notes) == lacking


def test_both_origins_of_a_title_keep_apart_where_both_number_from_zero(tmp_path: Path):
    a_file(tmp_path, scene(0), scene(1))
    a_file(tmp_path, scene(0), folder="generated_data")
    assert [s.id for s in import_characterbox(tmp_path)] == [
        "The_Duel/extracted/0", "The_Duel/extracted/1", "The_Duel/generated/0",
    ]  # fmt: skip


def test_a_clone_of_the_repository_is_found_by_its_data_folder(tmp_path: Path):
    (tmp_path / "data").mkdir()
    a_file(tmp_path / "data")
    assert len(import_characterbox(tmp_path)) == 1


def test_the_verbatim_text_of_the_book_is_kept_nowhere(tmp_path: Path):
    scenes, notes = noted(a_file(tmp_path))
    assert VERBATIM not in scenes[0].to_json()
    assert not notes


def test_language_goes_by_the_text_and_an_option_overrides_it(tmp_path: Path):
    chinese = scene(
        1, person(name="孙悟空", description="齐天大圣", position="树上", states="高兴"),
        event="偷吃人参果", time="清晨", location="五庄观", description="园中有一棵树。",
    )  # fmt: skip
    path = a_file(tmp_path, scene(0), chinese)
    assert [s.language for s in import_characterbox(path)] == ["en", "zh"]
    assert [s.language for s in import_characterbox(path, language="zh")] == ["zh", "zh"]


def test_a_language_that_is_neither_must_be_said(tmp_path: Path):
    russian = scene(
        0, person(name="Анна", description="Фехтовальщица", position="у двери", states="спокойна"),
        event="Дуэль", time="рассвет", location="двор", description="Туман лежит над двором.",
    )  # fmt: skip
    path = a_file(tmp_path, russian)
    with pytest.raises(InputError, match="scene 0: neither English nor Chinese"):
        import_characterbox(path)
    assert import_characterbox(path, language="en")[0].language == "en"


@pytest.mark.parametrize(
    ("folder", "origin"), [("Extracted", "extracted"), ("my_generated_scenes", "generated")]
)
def test_a_folder_of_another_name_may_say_the_origin_too(tmp_path: Path, folder: str, origin: str):
    assert import_characterbox(a_file(tmp_path, folder=folder))[0].origin == origin
    bare = a_file(tmp_path, folder="x").rename(tmp_path / "x" / f"Duel.{origin}.json")
    assert import_characterbox(bare)[0].origin == origin


def test_an_origin_that_the_folder_does_not_say_must_be_said(tmp_path: Path):
    path = a_file(tmp_path, folder="elsewhere")
    with pytest.raises(InputError, match="--origin"):
        import_characterbox(path)
    assert import_characterbox(path, origin="generated")[0].id == "The_Duel/generated/0"


@pytest.mark.parametrize(
    ("row", "note"),
    [
        ({k: v for k, v in person().items() if k != "gender"}, "the gender of 'Anna' is unknown"),
        (person(dialogue="En garde!"), "character 0: left out: dialogue"),
        ({k: v for k, v in person().items() if k != "states"}, "no state of 'Anna'"),
        (person(states=["calm", "cold"]), "'states' is a list; its parts are joined"),
        ({k: v for k, v in person().items() if k != "id"}, "no id; 0, its place, is taken"),
        (person(position=None), "no position of 'Anna'"),
    ],
)
def test_a_sloppy_row_is_mended_with_a_note(tmp_path: Path, row: dict[str, Any], note: str):
    scenes, notes = noted(a_file(tmp_path, scene(3, row)))
    assert scenes[0].characters[0].name == "Anna"
    assert len(notes) == 1
    assert notes[0].startswith("The_Duel.json, scene 3, character 0: ")
    assert note in notes[0]


def test_state_and_states_are_the_same_unless_they_differ(tmp_path: Path):
    row = {k: v for k, v in person().items() if k != "states"} | {"state": "calm"}
    scenes, notes = noted(a_file(tmp_path, scene(0, row)))
    assert scenes[0].characters[0].state == "calm"
    assert not notes
    with pytest.raises(InputError, match="`states` and `state` differ"):
        import_characterbox(a_file(tmp_path, scene(0, person(state="wild"))))


def test_ids_may_be_text(tmp_path: Path):
    act = {"action_id": "0", "character": "Anna", "character_id": "4", "action": "bows"}
    scenes = import_characterbox(a_file(tmp_path, scene("12", person("4"), actions=[act])))
    assert scenes[0].id == "The_Duel/extracted/12"
    assert scenes[0].script[0].character == "Anna"


def test_two_of_one_name_are_told_apart_and_keep_their_acts(tmp_path: Path):
    acts = [
        {"character": "Guard", "character_id": 0, "action": "sleeps", "dialogue": "None"},
        {"character": "Guard", "character_id": 1, "action": "wakes", "dialogue": "Who?"},
        {"character": "Choi", "character_id": 9, "action": "leaves", "dialogue": ""},
        {"character": "Guard", "character_id": 1, "action": " ", "dialogue": "None"},
    ]
    guards = [person(0, "Guard"), person(1, "Guard"), person(2, "Guard")]
    scenes, notes = noted(a_file(tmp_path, scene(0, *guards, actions=acts)))
    assert [c.name for c in scenes[0].characters] == ["Guard", "Guard (2)", "Guard (3)"]
    assert [(line.character, line.dialogue) for line in scenes[0].script] == [
        ("Guard", ""), ("Guard (2)", "Who?"), ("Choi", ""),
    ]  # fmt: skip
    assert len([n for n in notes if "a second 'Guard' is called" in n]) == 2
    assert any("action 3: nothing is done or said" in n for n in notes)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (scene(5, characters=[]), "scene 5: has no characters"),
        (scene(5, characters=None), "scene 5: has no characters"),
        (scene(5, characters=["Anna"]), "scene 5, character 0: not an object"),
        (scene(5, person(name=" ")), "scene 5, character 0: has no name"),
        (scene(5, person(name={"a": 1})), "scene 5, character 0: 'name' is not a text"),
        (scene(5, person(), person(0, "Bo")), "character 1: a second character with id 0"),
        (scene(5, actions="x"), "scene 5: `actions` is not a list"),
        (scene(5, actions=[1]), "scene 5, action 0: not an object"),
        (scene(5, event=True), "scene 5: 'event' is not a text"),
        ("x", "scene at place 1 of the list: not an object"),
        (scene(0), "scene 0: a second scene 'The_Duel/extracted/0'"),
    ],
)
def test_what_cannot_be_mended_is_refused_by_its_place(tmp_path: Path, broken: Any, complaint: str):
    path = a_file(tmp_path, scene(0), broken)
    with pytest.raises(InputError) as caught:
        import_characterbox(path)
    assert complaint in str(caught.value)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"scenes": {}}', '{"title": "x", "scenes": []}', "{", "\x00"]
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str):
    path = a_file(tmp_path)
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        import_characterbox(path)
    assert caught.value.path == path


def test_a_title_that_is_missing_is_the_name_of_the_file(tmp_path: Path):
    scenes, notes = noted(a_file(tmp_path, scene(0), title=None))
    assert scenes[0].id == "The_Duel/extracted/0"
    assert any("no title" in n for n in notes)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path):
    outside = a_file(tmp_path)
    folder = tmp_path / "clone" / "generated_data"
    folder.mkdir(parents=True)
    (folder / "x.json").symlink_to(outside)
    with pytest.raises(InputError, match="outside of the folder"):
        import_characterbox(tmp_path / "clone")


def test_an_empty_folder_and_an_absent_file_are_said(tmp_path: Path):
    with pytest.raises(InputError, match="holds no scenes"):
        import_characterbox(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        import_characterbox(tmp_path / "extracted_scenes" / "x.json", origin="extracted")


def test_the_command_writes_a_scene_file_and_says_what_it_holds(tmp_path: Path, capsys):
    path, out = a_file(tmp_path, scene(0), scene(1, person(dialogue="x"))), tmp_path / "s.jsonl"
    assert main(["scene", "import", "characterbox", str(path), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["scenes"], found["titles"]) == (2, {"The_Duel": 2})
    assert found["notes"] == ["The_Duel.json, scene 1, character 0: left out: dialogue"]
    assert len(read_scenes(out)) == 2
    assert main(["scene", "import", "characterbox", str(path), "--out", str(out)]) == 0
    assert "note: The_Duel.json" in capsys.readouterr().out


def test_the_command_refuses_with_exit_code_two_and_leaves_the_old_file(tmp_path: Path, capsys):
    out = tmp_path / "s.jsonl"
    out.write_text("old")
    path = a_file(tmp_path, scene(0, characters=[]))
    assert main(["scene", "import", "characterbox", str(path), "--out", str(out)]) == 2
    assert "scene 0: has no characters" in capsys.readouterr().err
    assert out.read_text() == "old"


def test_the_command_prints_no_control_character_of_a_file(tmp_path: Path, capsys):
    path = a_file(tmp_path, scene(0, person(**{"x\x1b[2J": 1})), title="T\x1b]0;x\x07[bold]")
    out = str(tmp_path / "s.jsonl")
    assert main(["scene", "import", "characterbox", str(path), "--out", out]) == 0
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x07")
    assert "[bold] 1" in shown
    assert "left out: x" in shown


def test_a_complaint_of_the_command_holds_no_control_character_of_a_file(tmp_path: Path, capsys):
    path = a_file(tmp_path, scene("\x1b[31m"), scene("\x1b[31m"))
    out = str(tmp_path / "s.jsonl")
    assert main(["scene", "import", "characterbox", str(path), "--out", out]) == 2
    said = capsys.readouterr().err
    assert "a second scene" in said
    assert "\x1b" not in said
