"""`personae serve` as it is typed: what is refused at once, and a cast of torch behind it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from personae.cli import main
from personae.serve.run import base_url, bind
from personae.serve.settings import DEFAULT_TOKEN_ENV
from tests.cast.serving import NAMES, small_cast
from tests.serve.upstreams import write_three
from tests.serve.vllm_stub import start_vllm

LIMIT = 120.0


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["serve", *words]) == 2
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEFAULT_TOKEN_ENV, raising=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_an_open_door_without_a_token_is_refused_before_the_cast_is_looked_at(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "no such cast", "--host", host)
    assert "a token is required" in said
    assert DEFAULT_TOKEN_ENV in said
    assert "no such cast" not in said


def test_a_token_variable_that_is_not_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NOT_SET_ANYWHERE is not set" in refused(capsys, "c", "--token-env", "NOT_SET_ANYWHERE")


def test_a_folder_that_is_no_cast_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(tmp_path) in refused(capsys, str(tmp_path), "--port", "0").replace("\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "--port"),
        (["--timeout", "0"], "--timeout"),
        (["--max-body", "1"], "--max-body"),
        (["--upstream", "nowhere"], "--upstream"),
        (["--upstream-adapters", "d"], "need --upstream"),
        (["--upstream", "http://127.0.0.1:1/v1", "--rows", "3"], "--rows"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "cast", *words)


# A cast ----------------------------------------------------------------------------------------


@dataclass
class Running:
    url: str
    process: subprocess.Popen[str]
    said: str

    def end(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=LIMIT)
        return code, self.said + self.process.stderr.read()


@contextlib.contextmanager
def running(cast: Path, *words: str, **environ: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "personae.cli", "serve", str(cast), "--port", "0", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said, url = "", None
        while url is None and (line := process.stderr.readline()):
            said += line
            url = re.search(r"at (http://\S+/v1)", line)
        assert url is not None, said
        yield Running(url[1], process, said)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Path:
    folder = tmp_path_factory.mktemp("served") / "cast"
    small_cast(folder, tiny_base)
    return folder


def test_the_characters_of_a_cast_answer_each_by_its_own_blocks_and_a_signal_ends_it(
    cast: Path,
) -> None:
    secret = "a-long-and-random-token"
    with running(cast, "--rows", "2", "--token-env", "MINE", MINE=secret) as here:
        assert "Ada Byron, Wu Song and auto" in here.said
        with OpenAI(base_url=here.url, api_key=secret, max_retries=0) as client:
            assert [m.id for m in client.models.list()] == [*NAMES, "auto"]

            def ask(model: str) -> str:
                made = client.chat.completions.create(
                    model=model, max_tokens=12, temperature=0, seed=1,
                    messages=[{"role": "user", "content": "Good evening. Who are you?"}],
                )  # fmt: skip
                assert made.usage is not None
                assert 0 < made.usage.completion_tokens <= 12
                assert made.choices[0].message.content is not None
                return made.choices[0].message.content

            ada, wu = ask("Ada Byron"), ask("Wu Song")
            assert ada != wu  # random blocks say different things
            stream = client.chat.completions.create(
                model="wu song", max_tokens=12, temperature=0, seed=1, stream=True,
                messages=[{"role": "user", "content": "Good evening. Who are you?"}],
            )  # fmt: skip
            chunks = list(stream)
            assert {c.model for c in chunks} == {"Wu Song"}
            assert "".join(c.choices[0].delta.content or "" for c in chunks) == wu
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model="Wu Song", messages=[{"role": "user", "content": "long " * 20_000}]
                )
            assert caught.value.code == "context_length_exceeded"
        with (
            OpenAI(base_url=here.url, api_key="wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()
        code, said = here.end()
    assert code == 0
    assert secret not in said
    assert "Traceback" not in said
    assert re.search(r"POST /v1/chat/completions 200 \d", said)


# A server behind -------------------------------------------------------------------------------


def test_an_upstream_answers_under_the_adapters_names_and_is_shown_its_own_token(
    tmp_path: Path,
) -> None:
    cast, token = write_three(tmp_path / "cast"), "the-upstreams-own-token"
    with (
        start_vllm(adapters=["Sherlock Holmes", "Alice"], token=token) as vllm,
        running(
            cast, "--upstream", vllm.url, "--upstream-token-env", "VLLM_TOKEN", VLLM_TOKEN=token
        ) as here,
    ):
        assert "for this machine only" in here.said
        with OpenAI(base_url=here.url, api_key="none", max_retries=0) as client:
            assert [m.id for m in client.models.list()] == ["Sherlock Holmes", "Alice", "auto"]
            made = client.chat.completions.create(
                model="Sherlock Holmes", messages=[{"role": "user", "content": "Who are you?"}]
            )
        assert made.choices[0].message.content == "I am Sherlock Holmes. Good evening."
        code, said = here.end()
    assert code == 0
    assert token not in said
    assert "Ada Lovelace" in said  # of the cast, and upstream has no adapter of that name


def test_an_upstream_that_is_not_there_ends_the_command_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as nobody:
        url = base_url(nobody)
        cast = write_three(tmp_path / "cast")
        assert main(["serve", str(cast), "--port", "0", "--upstream", url]) == 1
    assert url.removesuffix("/v1") in capsys.readouterr().err
