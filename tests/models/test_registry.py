"""A model id finds its backend; what is no id is said to be none."""

from pathlib import Path

import pytest

from personae.errors import InputError, UsageError
from personae.models import Registry, ScriptedModel, model_scheme


@pytest.mark.parametrize(
    ("model_id", "scheme"),
    [
        ("local", "local"),
        ("local:FILE.gguf", "local"),
        ("local:owner/repo:file.gguf", "local"),
        ("scripted:x.py", "scripted"),
        ("scripted:/a/b/x.py", "scripted"),
        ("http://host:1/v1#m", "http"),
        ("https://host/v1#m", "http"),
        ("openai/gpt-4o", "provider"),
        ("ollama/llama3:8b", "provider"),
        ("openrouter/meta/llama:free", "provider"),
        ("cast:dir", "cast"),
    ],
)
def test_the_scheme_of_a_model_id(model_id, scheme):
    assert model_scheme(model_id) == scheme


def test_another_room_registers_its_scheme_once():
    registry = Registry()
    made = ScriptedModel(lambda _call: "x")
    registry.register("cast", lambda _id: made)
    assert registry("cast:dir") is made
    with pytest.raises(UsageError, match="already taken"):
        registry.register("cast", lambda _id: made)


@pytest.mark.parametrize("model_id", ["", "klingon:x", "gpt-4o", "http://host/v1", "openai/x"])
def test_an_id_that_could_only_fail_is_refused_before_anything_is_made(model_id, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError):
        Registry().check(model_id)


@pytest.mark.parametrize("model_id", ["local", "scripted:absent.py", "http://127.0.0.1:9/v1#m"])
def test_checking_an_id_runs_and_asks_nothing(model_id):
    Registry().check(model_id)


def test_an_unknown_scheme_lists_the_schemes():
    with pytest.raises(UsageError, match=r"local:FILE\.gguf"):
        Registry()("klingon:x")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def answer(call): ...", "defines no function `reply`"),
        ("def reply(call:", "does not run: SyntaxError"),
        ("1 / 0", "does not run: ZeroDivisionError"),
        ("raise SystemExit(5)", "does not run: SystemExit"),
    ],
)
def test_a_script_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, source, said):
    path = tmp_path / "s.py"
    path.write_text(source)
    with pytest.raises(InputError, match=said) as error:
        Registry()(f"scripted:{path}")
    assert str(path) in str(error.value)
