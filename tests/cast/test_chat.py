"""A talk in the terminal: who answers, why, and how one gets out."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from personae.cast.chat import Chat, chat, words
from personae.cast.export import export_gguf
from personae.cast.store import Cast
from personae.errors import InputError, UsageError
from tests.cast.serving import NAMES, cast_over_local, small_cast

ADA, WU = NAMES
PERSONAE = (sys.executable, "-c", "import sys; from personae.cli import main; sys.exit(main())")


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Cast:
    return small_cast(tmp_path_factory.mktemp("casts") / "two", tiny_base, seed=2)


def reading(*lines: str) -> Callable[[], Awaitable[str | None]]:
    left = list(lines)

    async def read() -> str | None:
        return left.pop(0) if left else None

    return read


def talk(cast: Cast, *lines: str, role: str | None = None) -> str:
    shown: list[str] = []
    asyncio.run(chat(cast.path, role, reading(*lines), shown.append))
    return "".join(shown)


def test_each_line_is_answered_by_whom_it_asks_for_and_why_is_said(cast: Cast) -> None:
    shown = talk(cast, "I want to talk to Ada Byron.", "And you, Wu Song, who are you?")
    assert shown.startswith("two: Ada Byron, Wu Song.")
    assert "\nAda Byron (named, 100%): " in shown
    assert "\nWu Song (named, 100%): " in shown


def test_what_asks_for_nobody_goes_on_with_who_spoke_last(cast: Cast) -> None:
    shown = talk(cast, "I want to talk to Wu Song.", "Tell me more about it.")
    assert "Wu Song (named, 100%): " in shown
    assert "Wu Song (goes on): " in shown


def test_who_is_chosen_answers_every_line(cast: Cast) -> None:
    shown = talk(cast, "I want to talk to Ada Byron.", role="wu song")
    assert "Wu Song (chosen): " in shown
    assert "Ada Byron (" not in shown


def test_a_role_is_chosen_and_given_up_on_the_way(cast: Cast) -> None:
    shown = talk(cast, "/role Ada Byron", "Hello.", "/role", "/role Lu Zhishen", "Hello, Wu Song.")
    assert "Ada Byron answers from now on." in shown
    assert "Ada Byron (chosen): " in shown
    assert "There is no Lu Zhishen; there are Ada Byron, Wu Song." in shown
    assert "Wu Song (named, 100%): " in shown


def test_a_stranger_is_answered_by_nobody_and_it_is_said_what_can_be_done(cast: Cast) -> None:
    shown = talk(cast, "You are Napoleon Bonaparte. How was Moscow?")
    assert "Nobody here is asked for" in shown
    assert f"personae cast add {cast.path}" in shown


@pytest.mark.parametrize(
    ("answer", "who"), [("yes", ADA), ("no", None), ("Wu Song", WU), ("", None), ("好", ADA)]
)
def test_where_the_router_is_not_certain_the_person_is_asked(
    cast: Cast, answer: str, who: str | None
) -> None:
    shown = talk(cast, "What did Ada Byron say to Wu Song?", answer)
    assert "Perhaps Ada Byron (50%)" in shown
    if who is None:
        assert "Then nobody answers." in shown
    else:
        assert f"{who} (chosen): " in shown


def test_the_talk_is_in_the_language_of_what_is_said(cast: Cast) -> None:
    shown = talk(cast, "我想和Wu Song说话。", "/role Ada Byron")
    assert "Wu Song (点名，100%): " in shown
    assert "从现在起由Ada Byron回答。" in shown


def test_both_languages_say_the_same_things() -> None:
    english, chinese = words("en"), words("zh")
    assert english.keys() == chinese.keys()
    assert english["by"].keys() == chinese["by"].keys()


def test_commands_help_begin_anew_and_end(cast: Cast) -> None:
    shown = talk(cast, "/help", "/what", "/new", "", "/quit", "Hello, Wu Song.")
    assert "/role NAME" in shown
    assert "There is no /what" in shown
    assert "A new dialogue." in shown
    assert "Wu Song (" not in shown


def test_an_interrupt_stops_the_reply_and_the_next_one_ends_the_talk(cast: Cast) -> None:
    shown: list[str] = []
    lines = iter(["Good evening, Wu Song.", "Hello, Wu Song."])

    async def read() -> str | None:
        line = next(lines, None)
        if line is None:
            await asyncio.Event().wait()  # nobody types any more
        return line

    async def press() -> None:
        one = Chat(cast.path, None, read, shown.append)
        talking = asyncio.create_task(one.run())
        for wanted in ("Wu Song (named, 100%): ", "Wu Song (named, 100%): "):
            seen = len(shown)
            while wanted not in "".join(shown[seen:]):
                await asyncio.sleep(0)
            one.interrupt()
            while "(stopped)" not in "".join(shown[seen:]):
                await asyncio.sleep(0)
        while not one.waits:
            await asyncio.sleep(0)
        one.interrupt()
        await talking

    asyncio.run(press())
    assert "".join(shown).count("(stopped)") == 2


def test_a_dialogue_that_no_longer_fits_says_so(cast: Cast) -> None:
    shown = talk(cast, "Wu Song! " + "Listen. " * 300, "/new", "Hello, Wu Song.")
    assert "/new begins another" in shown
    assert shown.count("Wu Song (named, 100%): ") == 2


def test_a_character_that_is_not_there_is_refused_before_the_talk(cast: Cast) -> None:
    with pytest.raises(UsageError, match="Lu Zhishen"):
        talk(cast, "Hello.", role="Lu Zhishen")
    with pytest.raises(InputError, match="no cast"):
        asyncio.run(chat(cast.path.parent, None, reading(), lambda _t: None))


def test_the_command_talks_over_pipes_and_ends_with_the_input(cast: Cast) -> None:
    done = subprocess.run(
        [*PERSONAE, "cast", "chat", str(cast.path), "--role", ADA],
        input="Good evening.\n",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "Ada Byron (chosen): " in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.weights
def test_a_cast_over_local_talks_through_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_local = cast_over_local(tmp_path / "local")
    monkeypatch.setattr("personae.cast.chat.MAX_TOKENS", 8)
    shown = talk(over_local, "Good evening, Wu Song.", "Tell me more about it.")
    assert "Wu Song (named, 100%): " in shown
    assert "Wu Song (goes on): " in shown
    assert shown.count("(says nothing)") < 2


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_at_the_prompt_ends_the_command(cast: Cast) -> None:
    with subprocess.Popen(
        [*PERSONAE, "cast", "chat", str(cast.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as talking:
        assert talking.stdout is not None
        while not (line := talking.stdout.readline()).startswith("two: "):
            assert line, talking.stderr and talking.stderr.read()
        talking.stdout.read(2)  # the prompt
        talking.send_signal(signal.SIGINT)
        assert talking.wait(timeout=60) == 0
        assert talking.stderr is not None
        assert "Traceback" not in talking.stderr.read()


def test_a_role_that_is_not_there_is_refused_with_what_to_do_in_a_talk(cast: Cast) -> None:
    with pytest.raises(UsageError, match=r"there are Ada Byron, Wu Song. Give one of them with"):
        talk(cast, role="Watson")


def test_a_cast_given_as_the_present_folder_is_called_by_its_name(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cast.path)
    shown: list[str] = []
    asyncio.run(chat(Path(), None, reading(), shown.append))
    assert shown[0].startswith("two: Ada Byron, Wu Song.")


def test_a_cast_whose_base_is_gone_says_where_it_was_and_what_to_do(
    tmp_path: Path, tiny_base: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_base, base)
    gone = small_cast(tmp_path / "cast", base)
    base.rename(tmp_path / "elsewhere")
    mend = r"no longer at .*base\. Put it back there, a link will do; or write where it lies now"
    with pytest.raises(InputError, match=mend):
        talk(gone, "Ada Byron?")
    with pytest.raises(InputError, match=mend):
        export_gguf(gone, tmp_path / "out")
    base.symlink_to(tmp_path / "elsewhere")
    assert "Ada Byron" in talk(gone, "Ada Byron?")
