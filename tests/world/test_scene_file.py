"""The scene file: a scene a line, errors with line numbers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import InputError
from personae.records import Environment, Scene, SceneCharacter, ScriptLine, Secret
from personae.world.scene_file import read_scenes, write_scenes

HAND = '{"id": "duel", "environment": {}, "characters": [{"name": "Anna"}]}'


def a_scene(name: str = "duel", **more) -> Scene:
    given = {"environment": Environment(), "characters": (SceneCharacter(name="Anna"),), **more}
    return Scene(id=name, **given)


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_scene_can_be_written_by_hand_in_one_line(tmp_path: Path):
    assert read_scenes(written(tmp_path / "s.jsonl", HAND, "")) == (a_scene(),)


def test_an_id_that_comes_twice_is_refused_with_both_lines(tmp_path: Path):
    path = written(tmp_path / "s.jsonl", HAND, "", HAND)
    with pytest.raises(InputError, match=r"line 3: a scene 'duel' stands on line 1 already"):
        read_scenes(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[1]", "line 2: not a JSON object"),
        ('{"id": "x"', "line 2: not JSON"),
        ('{"id": "x", "environment": {}, "characters": []}', "line 2: .*characters"),
        ('{"id": "x", "environment": {}}', "line 2: .*characters"),
        ('{"id": "x", "environment": {}, "characters": [{"name": " "}]}', "line 2: .*name"),
        ('{"id": "x", "environment": {}, "characters": [{"name": "A"}], "mood": 1}', "mood"),
        (
            '{"id": "x", "environment": {}, "characters": [{"name": "A"}, {"name": "A"}]}',
            "two characters are called 'A'",
        ),
        (
            '{"id": "x", "environment": {}, "characters": [{"name": "A"}], '
            '"secrets": [{"fact": "f", "known_by": ["B"]}]}',
            "'B', who is not in the scene",
        ),
    ],
)
def test_a_line_that_is_no_scene_is_named(tmp_path: Path, line: str, complaint: str):
    with pytest.raises(InputError, match=complaint) as caught:
        read_scenes(written(tmp_path / "s.jsonl", HAND, line))
    assert caught.value.place == "line 2"


def test_a_file_without_scenes_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="holds no scene"):
        read_scenes(written(tmp_path / "s.jsonl", "", " "))


texts = st.text(max_size=30)
names = st.text(min_size=1, max_size=12).filter(str.strip)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    cast = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return Scene(
        id=draw(st.text(min_size=1, max_size=20)),
        title=draw(texts),
        language=draw(st.sampled_from(["en", "zh"])),
        event=draw(texts),
        environment=Environment(time=draw(texts), description=draw(texts)),
        characters=tuple(
            SceneCharacter(name=n, state=draw(texts), goal=draw(st.none() | texts)) for n in cast
        ),
        secrets=tuple(Secret(fact=draw(names), known_by=(n,)) for n in cast[:1]),
        script=(ScriptLine(character=draw(texts), dialogue=draw(texts)),),
    )


@given(st.lists(scenes(), min_size=1, max_size=4, unique_by=lambda s: s.id))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, some: list[Scene]):
    path = tmp_path_factory.mktemp("scenes") / "s.jsonl"
    write_scenes(some, path)
    assert read_scenes(path) == tuple(some)
    assert path.read_bytes().count(b"\n") == len(some)
    assert all(json.loads(line)["id"] for line in path.read_text("utf-8").split("\n")[:-1])


def test_scenes_of_one_id_are_not_written(tmp_path: Path):
    with pytest.raises(ValueError, match="same id"):
        write_scenes([a_scene(), a_scene(event="other")], tmp_path / "s.jsonl")
    assert not (tmp_path / "s.jsonl").exists()


def test_the_hash_is_over_what_a_play_can_depend_on():
    one = a_scene()
    assert (
        a_scene(plot="He dies.", source="x", script=(ScriptLine(character="A"),)).hash == one.hash
    )
    for changed in (
        a_scene(event="A duel"),
        a_scene(language="zh"),
        a_scene(secrets=(Secret(fact="f", known_by=("Anna",)),)),
        a_scene(characters=(SceneCharacter(name="Anna", goal="win"),)),
    ):
        assert changed.hash != one.hash
