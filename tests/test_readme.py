"""What the README promises: its commands and its Python run, its tree is the repository's."""

import io
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from openai import AuthenticationError, OpenAI

import personae
from personae.cast.store import write_cast
from personae.characters.starter import starter_scenes
from personae.cli import main
from personae.interview_stage import read_interviews
from personae.records.cast import Block, CastCharacter
from tests.cast.conftest import write_tiny_model
from tests.cast.serving import loaded, random_blocks
from tests.commands.test_serve import Running, running
from tests.conftest import ROOT
from tests.serve.vllm_stub import start_vllm
from tests.test_docs import FENCE, command_lines

TEXT = (ROOT / "README.md").read_text("utf-8")
PYTHON = re.compile(r"<!-- python: ([^>]*?) -->\n```python\n(.*?)```", re.DOTALL)
GYM = Path(__file__).parent / "scripts" / "gym.py"
WORLD = Path(__file__).parent / "scripts" / "world.py"
INTERVIEW = Path(__file__).parent / "scripts" / "interview.py"
QUESTIONS = "Who are you?\nDo you know what a telephone is?\n"
HELD_OUT = "".join(
    json.dumps({"character": name, "messages": [
        {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    ]}) + "\n"
    for name, question, answer in (
        ("Sherlock Holmes", "Whose hat is this?", "A man's who has lost his wife's affection."),
        ("Sherlock Holmes", "Is it raining?", "Your left boot says that it was."),
        ("Don Quixote", "What do you see?", "Giants, friend, with arms two leagues long."),
        ("Don Quixote", "Where is your lance?", "Where my honour is: at the ready."),
    )
)  # fmt: skip
MODEL_OPTIONS = ("--model", "--judge", "--examiner", "--exemplars", "--narrator", "--interviewer")


def block(language: str, holding: str) -> str:
    (found,) = [
        body for _, lang, body in FENCE.findall(TEXT) if lang == language and holding in body
    ]
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the README's people.txt, as a reader would have it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.txt").write_text(block("text", "lighthouse"), encoding="utf-8")
    return tmp_path


def with_scripts(words: list[str], folder: Path, of: Path = GYM) -> list[str]:
    """The command with a script in each model's place; two models stay two."""
    made: list[str] = []
    of_models = False
    for word in words:
        if word.startswith("--"):
            # To `play` characters are models; to `interview` they are cards.
            of_models = word in MODEL_OPTIONS or (word == "--characters" and words[0] == "play")
            made.append(word)
        elif of_models and not word.startswith("cast:"):
            lift, _, model = word.rpartition("lift:")
            script = folder / (re.sub(r"\W+", "-", model) + ".py")
            shutil.copy(of, script)
            made.append(f"{lift}{'lift:' if 'lift:' in word else ''}scripted:{script}")
        else:
            made.append(word)
    return made


def test_the_commands_of_the_page_do_what_it_says_one_after_the_other(here, capsys) -> None:
    lines = [line for line in command_lines(TEXT) if "first" in line or "bench.jsonl" in line]
    lines = [line for line in lines if "baker-street" not in line]
    kinds = [shlex.split(line)[1] for line in lines]
    assert kinds == ["bench", "eval", "eval", "audit", "report", "resume"]
    for line in lines:
        words = with_scripts(shlex.split(line)[1:], here)
        if words[0] == "bench":
            words += ["--questions", "2"]  # the page's ten take ten times as long
        if words[0] == "audit":
            words += ["--limit", "8"]
        if words[0] == "resume":
            words += ["--trust-scripts"]
        assert main(words) == 0, f"{line}\n{capsys.readouterr().err}"
        if "--dry-run" in words:
            assert not (here / "runs").exists(), "a dry run leaves nothing"
    run = here / "runs" / "first"
    names = {path.name for path in run.iterdir()}
    assert {
        "manifest.json",
        "journal.sqlite",
        "results.jsonl",
        "report.html",
        "scores.csv",
    } <= names
    page = (run / "report.html").read_text("utf-8")
    assert "gpt-4o-mini" in page


def test_the_python_of_the_page_runs_as_it_stands(here, capsys) -> None:
    blocks = PYTHON.findall(TEXT)
    assert [kind for kind, _ in blocks] == [
        "on a script instead of `local` (tests/test_readme.py)",
        "as it stands",
    ]
    printed = []
    for kind, code in blocks:
        if "instead" in kind:
            assert code.count('model = "local"') == 1
        runnable = code.replace('model = "local"', f'model = "scripted:{GYM}"')
        exec(compile(runnable, "README.md", "exec"), {"__name__": "readme"})
        printed.append(capsys.readouterr().out)
    first, second = printed
    assert first.startswith("10 questions, 0 shortfalls\n")
    assert "'mean'" in first
    assert "'audit': 'failed'" in first, "the script's scores are drawn by hash"
    assert (here / "runs" / "first" / "report.html").is_file()
    assert second.splitlines() == ["Since you ask about it: I bake.", "{4}"]


def test_all_python_of_the_page_is_run() -> None:
    assert len(PYTHON.findall(TEXT)) == TEXT.count("```python")


def test_the_commands_of_the_scenes_do_what_the_page_says(here, capsys) -> None:
    lines = [line for line in command_lines(TEXT) if "runs/play" in line]
    kinds = [shlex.split(line)[1] for line in lines]
    assert kinds == ["play", "rate", "audit", "report", "play"]
    for line in lines:
        words = with_scripts(shlex.split(line)[1:], here, WORLD)
        if "--from-round" in words:
            words += ["--trust-scripts"]
        assert main(words) == 0, f"{line}\n{capsys.readouterr().err}"
    assert "孙悟空" in (here / "runs" / "play" / "report.html").read_text("utf-8")
    assert (here / "runs" / "branch" / "plays.jsonl").is_file()


def test_the_commands_of_the_cast_do_what_the_page_says(
    here, tmp_path_factory, capsys, monkeypatch
) -> None:
    base = write_tiny_model(tmp_path_factory.mktemp("base"))
    (here / "held-out.jsonl").write_text(HELD_OUT, encoding="utf-8")
    lines = [line for line in command_lines(TEXT) if "baker-street" in line]
    lines = [line for line in lines if shlex.split(line)[1] in ("cast", "eval")]
    kinds = [" ".join(shlex.split(line)[1:3]) for line in lines]
    assert kinds == [
        "cast train", "cast route", "cast chat", "cast add", "cast eval", "eval bench.jsonl",
        "cast export",
    ]  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("Good evening.\n"))
    for line in lines:
        words = shlex.split(line)[1:]
        if words[:2] == ["cast", "train"]:
            words[words.index("local")] = str(base)
            at = words.index("--epochs")
            words[at : at + 2] = ["--tokens-per-role", "300"]
            words += ["--max-tokens", "400", "--rank", "2"]
        if words[0] == "eval":  # a model of random weights answers without end
            build = "bench build --personas people.txt --examiner M --exemplars M --questions 1"
            examined = with_scripts([*build.split(), "--out", "bench.jsonl"], here)
            assert main(examined) == 0, capsys.readouterr().err
            words = with_scripts(words, here)
            words += ["--limit", "1", "--max-tokens", "8"]
        capsys.readouterr()
        assert main(words) == 0, f"{line}\n{capsys.readouterr().err}"
        if "--json" in words:
            assert json.loads(capsys.readouterr().out)["role"] == "Sherlock Holmes"
    assert (here / "adapters" / "Sherlock-Holmes" / "adapter_config.json").is_file()
    assert (here / "runs" / "cast" / "report.html").is_file()


def write_baker_street(folder: Path, base_folder: Path) -> Path:
    """The page's cast with random blocks, over a base that reads a whole card by its bytes."""
    config = base_folder / "config.json"
    whole = {**json.loads(config.read_text("utf-8")), "max_position_embeddings": 32768}
    config.write_text(json.dumps(whole), encoding="utf-8")
    base = loaded(base_folder)
    names = ("Sherlock Holmes", "Don Quixote")
    write_cast(
        folder,
        base=base.ref,
        rank=2,
        alpha=4.0,
        blocks=[Block(name=name) for name in ("shared", *names)],
        characters=[CastCharacter(name=n, weights={"shared": 1.0, n: 1.0}) for n in names],
        tensors=random_blocks(base, 3, 2, seed=1),
        mode="full",
    )
    return folder


def test_the_commands_of_the_interviews_do_what_the_page_says(
    here, tmp_path_factory, capsys
) -> None:
    write_baker_street(here / "baker-street", write_tiny_model(tmp_path_factory.mktemp("base")))
    (here / "questions.txt").write_text(QUESTIONS, encoding="utf-8")
    lines = [
        line for line in command_lines(TEXT) if "runs/interviews" in line or "runs/led" in line
    ]
    assert [shlex.split(line)[1] for line in lines] == ["interview", "interview", "audit", "report"]
    for line in lines:
        words = with_scripts(shlex.split(line)[1:], here, INTERVIEW)
        if "--generate" in words:  # the page's eight take four times as long
            words[words.index("--generate") + 1] = "2"
            words += ["--max-tokens", "4"]  # a model of random weights answers without end
        if words[0] == "report":
            words.append("--json")
        capsys.readouterr()
        assert main(words) == 0, f"{line}\n{capsys.readouterr().err}"
    found = json.loads(capsys.readouterr().out)
    voices = found["interviews"]["models"]
    assert [(v["model"], v["method"], v["mode"], v["n_interviews"]) for v in voices] == [
        ("cast:baker-street", method, "single", 4) for method in ("cast", "prompt", "rag")
    ]
    assert {v["answers_missing"] for v in voices} == {0.0}
    assert all(v["average"]["mean"] is not None for v in voices)
    assert [j["audit"] for j in found["judges"]] == ["failed"], "it scores by hash"
    assert {one.mode for one in read_interviews(here / "runs" / "led")} == {"live"}
    assert "own blocks" in (here / "runs" / "interviews" / "report.html").read_text("utf-8")


def test_the_servers_of_the_page_answer(here, tmp_path_factory) -> None:
    write_baker_street(here / "baker-street", write_tiny_model(tmp_path_factory.mktemp("base")))
    lines = [line for line in command_lines(TEXT) if " serve " in line]
    alone, upstream = (shlex.split(line)[2:] for line in lines)
    assert alone == ["baker-street"]
    names = ["Sherlock Holmes", "Don Quixote"]

    def who_answers(server: Running, key: str) -> str:
        with OpenAI(base_url=server.url, api_key=key, max_retries=0) as client:
            assert [model.id for model in client.models.list()] == [*names, "auto"]
            made = client.chat.completions.create(
                model="auto", max_tokens=4,
                messages=[{"role": "user", "content": "Don Quixote, what do you see?"}],
            )  # fmt: skip
            return made.model

    with running(Path(*alone)) as server:
        assert who_answers(server, "none") == "Don Quixote"
        assert server.end()[0] == 0
    with start_vllm(adapters=names) as vllm:
        # As on the page, but for where things are: tests open no port to other machines.
        upstream[upstream.index("--host") + 1] = "127.0.0.1"
        upstream[upstream.index("--upstream") + 1] = vllm.url
        with running(Path(upstream[0]), *upstream[1:], PERSONAE_TOKEN="long-and-random") as server:
            assert who_answers(server, "long-and-random") == "Don Quixote"
            with pytest.raises(AuthenticationError):
                who_answers(server, "none")
            assert server.end()[0] == 0


def test_the_seat_of_the_page_is_one_that_the_scene_has() -> None:
    (line,) = [line for line in command_lines(TEXT) if "--as" in line]
    words = shlex.split(line)
    (scene,) = [s for s in starter_scenes("en") if s.id == words[words.index("--scene") + 1]]
    assert words[words.index("--as") + 1] in {c.name for c in scene.characters}


def test_the_tree_of_the_page_is_the_repositorys() -> None:
    lines = block("text", "src/personae/errors.py").splitlines()
    paths = [line.split()[0] for line in lines]
    for path in paths:
        assert (ROOT / path).exists(), path
        assert path.endswith("/") == (ROOT / path).is_dir(), path
    package = ROOT / "src" / "personae"
    rooms = {f"src/personae/{p.name}" for p in package.iterdir()
             if (p.suffix == ".py" or (p / "__init__.py").is_file())
             and p.name not in ("__init__.py", "__main__.py", "progress.py")}  # fmt: skip
    assert rooms == {path.rstrip("/") for path in paths if path.startswith("src/")}


def test_the_make_targets_of_the_pages_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = TEXT + (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = set(re.findall(r"(?:^ {4}|`)make (\w+)", text, re.MULTILINE))
    assert {"demo", "test", "setup", "bench"} <= named <= targets


def test_every_public_name_has_a_home_and_the_page_uses_only_these() -> None:
    for name in personae.__all__:
        assert getattr(personae, name) is not None
    assert set(personae._HOMES) == set(personae.__all__)
    used = re.findall(r"^from personae import (.+)$", TEXT, re.MULTILINE)
    assert len(used) == 2
    for line in used:
        assert {name.strip() for name in line.split(",")} <= set(personae.__all__)
