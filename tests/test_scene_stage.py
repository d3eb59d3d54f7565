"""`personae scene write` end to end on a script: books, casts, stop, resume, replay, comparison."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from personae.cli import main
from personae.errors import InputError, UsageError
from personae.journal.store import Journal
from personae.models import Registry, ScriptedModel
from personae.scene_stage import compare, read_stuff, write
from personae.session import JOURNAL, read_manifest
from personae.world.scene_file import read_scenes
from tests.conftest import ROOT
from tests.scripts.scenes import reply as sensible
from tests.scripts.scenes import verdict

SCENES = f"scripted:{Path(__file__).parent / 'scripts' / 'scenes.py'}"


def a_book(path: Path, chapters: int = 12, encoding: str = "utf-8") -> Path:
    path.write_text(
        "\n\n".join(
            f"CHAPTER {i}\n\n" + f"Alice and Ada spoke of matter {i}, and Holmes heard. " * 40
            for i in range(1, chapters + 1)
        ),
        encoding=encoding,
    )
    return path


def a_cast(folder: Path, *names: str, language: str = "en") -> Path:
    folder.mkdir()
    for name in names:
        card = {
            "spec": "chara_card_v3", "spec_version": "3.0",
            "data": {
                "name": name, "description": "{{char}} is cautious.", "personality": "",
                "extensions": {"personae": {"language": language}},
            },
        }  # fmt: skip
        (folder / f"{name.lower()}.json").write_text(json.dumps(card), "utf-8")
    return folder


def run_of(*words: object) -> int:
    return main([str(w) for w in words])


def document(capsys) -> dict[str, Any]:
    out = capsys.readouterr().out
    assert out.count("\n") == 1, "one JSON document and nothing else"
    found: dict[str, Any] = json.loads(out)
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def requests(run: Path) -> int:
    with Journal(run / JOURNAL, read_only=True) as journal:
        return journal.totals().made


def scripted(reply) -> Registry:
    registry = Registry()
    registry.register("mine", lambda _id: ScriptedModel(reply))
    return registry


def test_a_book_becomes_a_scene_file_with_its_reviews_beside_it(tmp_path: Path, capsys):
    out = tmp_path / "s.jsonl"
    book = a_book(tmp_path / "Wells.txt")
    args = ("scene", "write", "--book", book, "--writer", SCENES, "--n", 3, "--out", out)
    assert run_of(*args, "--chunk-tokens", 600, "--json") == 0
    found = document(capsys)
    assert (found["scenes"], found["wanted"], found["shortfall"]) == (3, 3, None)
    assert found["rule"] == {"lowest": 3, "mean": 3.5}
    scenes = read_scenes(out)
    assert [s.id for s in scenes] == [f"Wells/extracted/{i}" for i in range(3)]
    run = tmp_path / "s.jsonl.run"
    assert [row["scene"]["id"] for row in lines(run / "reviews.jsonl")] == [s.id for s in scenes]
    assert lines(run / "rejected.jsonl") == []
    manifest = read_manifest(run)
    assert (manifest.kind, manifest.status) == ("scene write", "done")
    assert {"en/repair", "en/scenes/extract", "en/scenes/review"} <= set(manifest.prompts)
    assert "en/judge" not in manifest.prompts


def test_a_book_of_two_megabytes_gives_scenes_from_its_whole_length(tmp_path: Path, capsys):
    book = a_book(tmp_path / "Long.txt", chapters=950)
    assert book.stat().st_size > 2_000_000
    out = tmp_path / "s.jsonl"
    assert run_of("scene", "write", "--book", book, "--writer", SCENES, "--n", 4, "--out", out) == 0
    starts = [
        int(row["unit"].removeprefix("passage-").partition(".")[0])
        for row in lines(tmp_path / "s.jsonl.run" / "reviews.jsonl")
    ]
    count = len(read_stuff(out, book, None).supply().next(10_000))
    assert count > 150
    assert [4 * start // count for start in starts] == [0, 1, 2, 3]


def test_a_chinese_book_in_gb18030_is_told_by_its_text(tmp_path: Path, capsys):
    book = tmp_path / "西游记.txt"
    book.write_text(
        "第一回\n" + "　　唐僧与悟空说话，八戒在一旁听着，不说一个字。\n" * 90, "gb18030"
    )
    out = tmp_path / "s.jsonl"
    args = ("scene", "write", "--book", book, "--writer", SCENES, "--n", 2, "--out", out)
    assert run_of(*args, "--chunk-tokens", 500, "--json") == 0
    assert document(capsys)["languages"] == {"zh": 2}
    assert read_manifest(tmp_path / "s.jsonl.run").language == "zh"


def test_cards_are_referred_to_from_where_the_scene_file_lies(tmp_path: Path, capsys):
    folder = a_cast(tmp_path / "cards", "Ada", "Alice", "Bo")
    out = tmp_path / "out" / "s.jsonl"
    args = ("scene", "write", "--cast", folder, "--writer", SCENES, "--n", 2, "--out", out)
    assert run_of(*args) == 0
    scenes = read_scenes(out)
    assert {s.title for s in scenes} == {"cards"}
    for scene in scenes:
        for character in scene.characters:
            assert character.card == f"../cards/{character.name.lower()}.json"
            assert (out.parent / character.card).is_file()


async def test_a_writer_is_told_the_card_with_its_macros_filled_in(tmp_path: Path):
    folder = a_cast(tmp_path / "cards", "Ada", "Alice")
    seen: list[str] = []

    def spy(call):
        seen.append("\n".join(m["content"] for m in call["messages"]))
        return sensible(call)

    await write(tmp_path / "s.jsonl", "mine:x", 1, cast=folder, registry=scripted(spy))
    assert all("Ada is cautious." in text and "{{char}}" not in text for text in seen)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_starter_cast_of_a_language_is_taken_where_none_is_given(
    tmp_path: Path, capsys, language: str
):
    out = tmp_path / "s.jsonl"
    args = ("scene", "write", "--writer", SCENES, "--n", 3, "--lang", language, "--out", out)
    assert run_of(*args, "--json") == 0
    assert document(capsys)["languages"] == {language: 3}
    cards = {c.card for s in read_scenes(out) for c in s.characters}
    assert all(card and card.startswith("starter:") for card in cards)


def test_a_stopped_run_is_resumed_where_it_was_and_asks_nothing_twice(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    a_book(Path("Wells.txt"))
    args = ("scene", "write", "--book", "Wells.txt", "--chunk-tokens", 600, "--n", 3)
    assert run_of(*args, "--out", "s.jsonl", "--writer", SCENES, "--max-calls", 4) == 3
    assert "personae resume s.jsonl.run" in capsys.readouterr().err
    assert not Path("s.jsonl").exists()
    assert read_manifest(Path("s.jsonl.run")).status == "stopped"
    assert requests(Path("s.jsonl.run")) == 4
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_of("resume", "../s.jsonl.run", "--trust-scripts", "--json") == 0
    assert document(capsys)["scenes"] == 3
    assert requests(tmp_path / "s.jsonl.run") == 9
    assert len(read_scenes(tmp_path / "s.jsonl")) == 3


def test_a_replay_sends_nothing_and_gives_the_same_file(tmp_path: Path, capsys):
    out = tmp_path / "s.jsonl"
    args = ("scene", "write", "--writer", SCENES, "--n", 4, "--out", out)
    assert run_of(*args) == 0
    before = out.read_bytes()
    made = requests(tmp_path / "s.jsonl.run")
    out.unlink()
    assert run_of(*args, "--replay") == 0
    assert out.read_bytes() == before
    assert requests(tmp_path / "s.jsonl.run") == made
    assert run_of(*args[:-1], tmp_path / "other.jsonl", "--replay") == 1


def test_a_dry_run_counts_three_calls_a_scene_and_writes_nothing(tmp_path: Path, capsys):
    book = a_book(tmp_path / "Wells.txt")
    args = ("scene", "write", "--writer", SCENES, "--n", 5, "--out", tmp_path / "s.jsonl")
    for more in ((), ("--book", book, "--chunk-tokens", 600)):
        assert run_of(*args, *more, "--dry-run", "--json") == 0
        assert document(capsys)["calls"] == 15
    assert run_of(*args, "--compare", "--reviewer", SCENES, "--dry-run", "--json") == 0
    # a draft for each source, one direction, one review inside, two scores outside
    assert document(capsys)["calls"] == 5 * 5
    assert not (tmp_path / "s.jsonl").exists()
    assert not (tmp_path / "s.jsonl.run").exists()


async def test_a_shortfall_is_said_and_the_rejected_stay_with_their_reasons(tmp_path: Path, capsys):
    def half(call):
        if call["role"] == "reviewer" and "matter 1" in str(call["messages"]):
            return verdict(call, 2, False, "Too thin.")
        return sensible(call)

    book = a_book(tmp_path / "Wells.txt", chapters=2)
    done = await write(
        tmp_path / "s.jsonl", "mine:x", 2, book=book, chunk_tokens=600, max_rounds=1,
        registry=scripted(half),
    )  # fmt: skip
    assert len(done.written.scenes) == 2  # the second chapter was used again
    rejected = lines(tmp_path / "s.jsonl.run" / "rejected.jsonl")
    assert rejected
    assert {r["cause"] for r in rejected} == {"rejected"}
    assert rejected[0]["reviews"][0]["changes"] == ["Too thin."]
    assert rejected[0]["reviews"][0]["scores"]["detail"] == 2


def test_no_scene_at_all_is_exit_code_one_and_leaves_the_old_file(tmp_path: Path, capsys):
    script = tmp_path / "no.py"
    script.write_text("def reply(call):\n    return 'no'\n")
    out = tmp_path / "s.jsonl"
    out.write_text("old")
    args = ("scene", "write", "--writer", f"scripted:{script}", "--n", 2, "--out", out)
    assert run_of(*args, "--json") == 1
    found = document(capsys)
    assert (found["scenes"], found["shortfall"]["got"]) == (0, 0)
    assert found["rejected"] == {"failed": 6}
    assert out.read_text() == "old"
    assert run_of(*args) == 1
    assert "No scene was accepted" in capsys.readouterr().out


def test_writers_are_compared_in_one_table_and_one_document(tmp_path: Path, capsys):
    other = tmp_path / "other.py"
    other.write_text(Path(SCENES.removeprefix("scripted:")).read_text())
    book, out = a_book(tmp_path / "Wells.txt"), tmp_path / "c.jsonl"
    args = (
        "scene", "write", "--book", book, "--chunk-tokens", 600, "--compare", "--n", 4, "--out", out,
        "--writer", SCENES, f"scripted:{other}", "--reviewer", SCENES,
    )  # fmt: skip
    assert run_of(*args, "--json") == 0
    found = document(capsys)
    assert len(found["writers"]) == 8
    assert len(found["differences"]) == 4
    cell = found["writers"][0]
    assert cell["criteria"]["creativity"] is None
    assert cell["criteria"]["detail"].keys() == {"mean", "low", "high", "n", "missing"}
    assert found["scenes"] == 32 == len(read_scenes(out))
    run = tmp_path / "c.jsonl.run"
    assert len(lines(run / "comparison.jsonl")) == 32
    stored = json.loads((run / "comparison.json").read_text("utf-8"))
    assert stored["writers"] == found["writers"]
    assert run_of("resume", run, "--trust-scripts", "--json") == 0
    assert document(capsys)["writers"] == found["writers"]
    assert run_of(*args) == 0
    shown = capsys.readouterr().out
    assert "Extracted scenes" in shown
    assert "Generated scenes" in shown


def test_what_a_run_leaves_meets_the_published_schemas(tmp_path: Path, capsys):
    script = tmp_path / "moody.py"
    script.write_text(
        f"import runpy\nown = runpy.run_path({SCENES.removeprefix('scripted:')!r})\n"
        "def reply(call):\n"
        "    low = call['role'] == 'reviewer' and 'matter 1,' in str(call['messages'])\n"
        "    return own['verdict'](call, 2, False, 'More.') if low else own['reply'](call)\n"
    )
    book = a_book(tmp_path / "Wells.txt", chapters=4)
    shared = ("scene", "write", "--book", book, "--chunk-tokens", 600, "--n", 3, "--max-rounds", 1)
    for name, *more in (("s",), ("c", "--compare", "--reviewer", SCENES)):
        out = tmp_path / f"{name}.jsonl"
        assert run_of(*shared, "--writer", f"scripted:{script}", "--out", out, *more) == 0
    written, compared = tmp_path / "s.jsonl.run", tmp_path / "c.jsonl.run"
    for name, values in (
        ("scenes", lines(tmp_path / "s.jsonl") + lines(tmp_path / "c.jsonl")),
        ("scene_attempts", lines(written / "reviews.jsonl") + lines(written / "rejected.jsonl")),
        ("scene_attempts", lines(compared / "rejected.jsonl")),
        ("scene_scores", lines(compared / "comparison.jsonl")),
        ("scene_comparison", [json.loads((compared / "comparison.json").read_text("utf-8"))]),
        ("manifest", [read_manifest(run).to_dict() for run in (written, compared)]),
    ):
        assert values
        schema = json.loads((ROOT / "docs" / "formats" / f"{name}.schema.json").read_text("utf-8"))
        for value in values:
            Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--n", 0), "count from 1"),
        (("--n", 1, "--max-rounds", 0), "count from 1"),
        (("--n", 1, "--threshold", 6), "--threshold"),
        (("--n", 1, "--threshold", "nan"), "--threshold"),
        (("--n", 1, "--chunk-tokens", 5), "--chunk-tokens"),
        (("--n", 1, "--overlap", 2000), "--overlap"),
        (("--n", 1, "--origin", "extracted"), "--book"),
        (("--n", 1, "--writer", "other/x"), "--compare"),
        (("--n", 1, "--compare"), "--reviewer"),
        (("--n", 1, "--compare", "--reviewer", SCENES, "--director", SCENES), "--director"),
        (("--n", 1, "--book", "b.txt", "--cast", "c"), "exclude each other"),
        (("--n", 1, "--book", "b.txt"), "no such file"),
        (("--n", 1, "--cast", "c"), "no such folder"),
    ],
)
def test_wrong_arguments_are_exit_code_two(tmp_path: Path, capsys, monkeypatch, more, complaint):
    monkeypatch.chdir(tmp_path)
    assert run_of("scene", "write", "--writer", SCENES, "--out", "s.jsonl", *more) == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_book_or_number_does_not_go_on_in_the_same_run(tmp_path: Path, capsys):
    book, out = a_book(tmp_path / "Wells.txt"), tmp_path / "s.jsonl"
    args = (
        "scene",
        "write",
        "--book",
        book,
        "--chunk-tokens",
        600,
        "--writer",
        SCENES,
        "--out",
        out,
    )
    assert run_of(*args, "--n", 1) == 0
    assert run_of(*args, "--n", 2) == 2
    assert "--n would differ" in capsys.readouterr().err
    a_book(book, chapters=13)
    assert run_of(*args, "--n", 1) == 2
    assert "what it is made from" in capsys.readouterr().err


def test_a_cast_that_cannot_meet_is_refused(tmp_path: Path):
    out = tmp_path / "s.jsonl"
    with pytest.raises(InputError, match="needs two characters"):
        read_stuff(out, None, a_cast(tmp_path / "one", "Ada"))
    empty = tmp_path / "none"
    empty.mkdir()
    with pytest.raises(InputError, match="holds no card"):
        read_stuff(out, None, empty)
    twice = a_cast(tmp_path / "twice", "Ada", "Alice")
    (twice / "copy.json").write_bytes((twice / "ada.json").read_bytes())
    with pytest.raises(InputError, match=r"'Ada' is in ada\.json already"):
        read_stuff(out, None, twice)


def test_the_language_of_a_cast_is_that_of_most_cards(tmp_path: Path):
    folder = a_cast(tmp_path / "cards", "Ada", "Alice", language="zh")
    assert read_stuff(tmp_path / "s.jsonl", None, folder).language == "zh"
    assert read_stuff(tmp_path / "s.jsonl", None, folder, language="en").language == "en"


def test_a_comparison_says_that_a_cast_has_fewer_groups_than_were_asked_for(tmp_path: Path, capsys):
    folder = a_cast(tmp_path / "cards", "Ada", "Alice", "Bo")  # three pairs and a three
    args = (
        "scene", "write", "--cast", folder, "--compare", "--writer", SCENES, "--reviewer", SCENES,
        "--out", tmp_path / "c.jsonl", "--n",
    )  # fmt: skip
    assert run_of(*args, 5, "--json") == 0
    found = document(capsys)
    assert (found["shortfall"]["wanted"], found["shortfall"]["got"]) == (5, 4)
    assert found["scenes"] == 8
    assert run_of(*args, 5) == 0
    assert "4 of 5 sources: the cast has no more groups." in capsys.readouterr().out
    args = (*args[:-2], tmp_path / "d.jsonl", "--n")
    assert run_of(*args, 4, "--json") == 0
    assert document(capsys)["shortfall"] is None


async def test_a_comparison_needs_different_writers(tmp_path: Path):
    with pytest.raises(UsageError, match="each once"):
        await compare(tmp_path / "s.jsonl", ["a", "a"], "r", 1)
