from __future__ import annotations

import json
from pathlib import Path

import pytest

from personae.errors import InputError, MissingKeyError, UsageError
from personae.models.bodies import body_of, encode
from personae.models.keys import Settings
from personae.models.providers import (
    PROVIDERS,
    Address,
    backend_for_endpoint,
    is_endpoint_id,
    leads_key_away,
    resolve,
)
from personae.records import Call, Message, ReplySchema, Sampling

KEYS = {key: f"{key.lower()}-value" for p in PROVIDERS.values() for key in p.keys}


def at(model_id: str, environ: dict[str, str] | None = None, **dotenv: str) -> Address:
    return resolve(model_id, Settings(KEYS if environ is None else environ, dotenv))


def everything() -> Call:
    return Call(
        role="judge",
        model="m",
        messages=(Message(role="user", content="x"),),
        sampling=Sampling(
            temperature=1.5, top_p=0.9, max_tokens=9, seed=1, stop=("z",), logprobs=5
        ),
        reply_schema=ReplySchema(name="s", body={"type": "object"}),
    )


@pytest.mark.parametrize(
    "model_id",
    ["openai/gpt-4o", "openrouter/openai/gpt-4o", "http://h/v1#m", "https://[::1]:8/v1#Qwen/Q:8b"],
)
def test_endpoint_ids_are_told_from_others(model_id: str) -> None:
    assert is_endpoint_id(model_id)
    for other in ("local", "local:x.gguf", "scripted:a.py", "Qwen/Qwen3-8B", "openai", ""):
        assert not is_endpoint_id(other)


def test_every_provider_of_the_issue_is_there() -> None:
    assert set(PROVIDERS) == {
        "openai", "anthropic", "gemini", "openrouter", "together", "groq", "deepseek", "mistral",
        "ollama", "vllm",
    }  # fmt: skip


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_gets_its_own_key_at_its_own_address(name: str) -> None:
    address = at(f"{name}/a/b:c")
    assert address.model == "a/b:c"
    assert address.base_url == PROVIDERS[name].base_url
    assert address.key is not None
    assert address.key.reveal() == KEYS[PROVIDERS[name].keys[0]]


@pytest.mark.parametrize("name", [n for n, p in PROVIDERS.items() if p.needs_key])
def test_a_missing_key_names_its_variable(name: str) -> None:
    with pytest.raises(MissingKeyError, match=PROVIDERS[name].keys[0]):
        at(f"{name}/m", {})


@pytest.mark.parametrize("name", ["ollama", "vllm"])
def test_local_servers_need_no_key(name: str) -> None:
    assert at(f"{name}/m", {}).key is None


def test_an_address_of_one_s_own_is_moved_by_its_variable() -> None:
    address = at("ollama/m", {"OLLAMA_BASE_URL": "http://gpu:1234/v1/"})
    assert address.base_url == "http://gpu:1234/v1"


@pytest.mark.parametrize(
    ("model_id", "base_url", "model"),
    [
        ("http://localhost:8000/v1#Qwen/Qwen3-8B", "http://localhost:8000/v1", "Qwen/Qwen3-8B"),
        ("http://localhost:8000#m", "http://localhost:8000/v1", "m"),
        ("https://h/api/openai/v1/#a#b", "https://h/api/openai/v1", "a#b"),
        ("http://[::1]:8000/v1#m", "http://[::1]:8000/v1", "m"),
    ],
)
def test_a_url_names_address_and_model(model_id: str, base_url: str, model: str) -> None:
    address = at(model_id, {})
    assert (address.base_url, address.model, address.key) == (base_url, model, None)


def test_no_provider_s_key_goes_to_a_url() -> None:
    assert at("https://api.openai.com/v1#gpt-4o").key is None
    mine = at("http://h/v1#m", KEYS | {"PERSONAE_API_KEY": "mine-mine-mine"}).key
    assert mine is not None
    assert mine.reveal() == "mine-mine-mine"


@pytest.mark.parametrize(
    "model_id",
    ["gpt-4o", "opneai/gpt-4o", "openai/", "", "ftp://h/v1#m"],
)
def test_a_wrong_id_gets_the_list_of_schemes(model_id: str) -> None:
    with pytest.raises(UsageError, match=r"openai, anthropic.*http://.*local"):
        at(model_id)


@pytest.mark.parametrize(
    ("model_id", "says"),
    [
        ("http://localhost:8000/v1", "names no model"),
        ("http://localhost:8000/v1#", "names no model"),
        ("http://#m", "no URL"),
        ("http://h:99999/v1#m", "no URL"),
        ("http://h:port/v1#m", "no URL"),
        ("http://[::1/v1#m", "no URL"),
        ("http://h/v1?key=abc#m", "query"),
        ("http://me:secret@h/v1#m", "user name or password"),
    ],
)
def test_a_wrong_url_is_told_what_is_wrong(model_id: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        at(model_id)
    assert "secret" not in str(caught.value)


def test_a_wrong_base_url_names_its_variable() -> None:
    with pytest.raises(UsageError, match="VLLM_BASE_URL"):
        at("vllm/m", {"VLLM_BASE_URL": "gpu:8000"})


# --- keys and .env --------------------------------------------------------------------------------


def test_an_address_from_a_file_never_gets_a_key_from_the_environment() -> None:
    with pytest.raises(MissingKeyError, match=r"\.env"):
        at("openai/m", {"OPENAI_API_KEY": "sk-mine-mine"}, OPENAI_BASE_URL="http://evil/v1")
    address = at(
        "openai/m",
        {"OPENAI_API_KEY": "sk-mine-mine"},
        OPENAI_BASE_URL="http://proxy/v1",
        OPENAI_API_KEY="sk-file-file",
    )
    assert address.key is not None
    assert address.key.reveal() == "sk-file-file"


def test_an_address_and_a_key_of_the_environment_belong_together() -> None:
    address = at("openai/m", {"OPENAI_API_KEY": "sk-mine", "OPENAI_BASE_URL": "http://proxy/v1"})
    assert address.key is not None
    assert address.base_url == "http://proxy/v1"


def test_a_moved_address_that_wants_no_key_gets_none() -> None:
    assert at("openai/m", {"OPENAI_BASE_URL": "http://localhost:1/v1"}).key is None


def test_dotenv_is_read_but_neither_interpolated_nor_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-env")
    (tmp_path / ".env").write_text("GROQ_API_KEY=gsk-file\nVLLM_API_KEY=${OPENAI_API_KEY}\n")
    settings = Settings.load(tmp_path)
    groq = settings.key(("GROQ_API_KEY",))
    vllm = settings.key(("VLLM_API_KEY",))
    assert groq is not None
    assert groq.reveal() == "gsk-file"
    assert vllm is not None
    assert vllm.reveal() == "${OPENAI_API_KEY}"
    import os

    assert "GROQ_API_KEY" not in os.environ


def test_the_environment_comes_before_the_file() -> None:
    setting = Settings({"A": "env"}, {"A": "file", "B": "file"}).get("A")
    assert setting is not None
    assert setting.value == "env"
    assert Settings({"A": "  "}, {}).get("A") is None


def test_a_dotenv_that_is_no_text_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00K=1")
    with pytest.raises(InputError, match=r"\.env"):
        backend_for_endpoint("vllm/m", folder=tmp_path)
    (tmp_path / ".env").write_bytes(b"A=1\n" * 50_000)
    with pytest.raises(InputError, match="64 KiB"):
        backend_for_endpoint("vllm/m", folder=tmp_path)


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as caught:
        at("openai/m", {"OPENAI_API_KEY": "sk-ab\r\nX-Evil: 1"})
    assert "sk-ab" not in str(caught.value)


# --- dialects -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_id", "notes"),
    [
        ("openai/gpt-4.1-mini", []),
        ("openai/gpt-5-chat-latest", []),
        ("openai/gpt-5.1", []),  # takes them in some modes: asked, and learnt from
        ("openai/o3-mini",
         ["temperature dropped", "top_p dropped", "stop dropped", "logprobs dropped"]),
        ("openai/gpt-5-mini",
         ["temperature dropped", "top_p dropped", "stop dropped", "logprobs dropped"]),
        ("anthropic/claude",
         ["temperature lowered to 1", "seed dropped", "logprobs dropped", "schema dropped"]),
        ("gemini/gemini-2.5-flash", ["seed dropped", "logprobs dropped"]),
        ("groq/llama", ["logprobs dropped"]),
        ("mistral/mistral-small", ["logprobs dropped"]),
        ("deepseek/deepseek-chat", ["seed dropped", "schema weakened to json"]),
        ("deepseek/deepseek-reasoner",
         ["temperature dropped", "top_p dropped", "seed dropped", "logprobs dropped",
          "schema weakened to json"]),
        ("openrouter/x/y", []),
        ("together/x", []),
        ("ollama/x", []),
        ("vllm/x", []),
        ("http://h/v1#x", []),
    ],
)  # fmt: skip
def test_what_a_provider_does_not_take_is_left_out_and_noted(
    model_id: str, notes: list[str]
) -> None:
    address = at(model_id)
    body, said = body_of(everything(), address.model, address.dialect)
    assert said == notes
    for note in notes:
        if note.endswith("dropped"):
            assert note.split()[0] not in body
    sent = json.loads(encode(body, everything().messages))
    assert sent == {**body, "messages": [{"role": "user", "content": "x"}]}


def test_parameters_go_by_the_provider_s_names() -> None:
    def body(model_id: str) -> dict[str, object]:
        address = at(model_id)
        return body_of(everything(), address.model, address.dialect)[0]

    assert body("openai/gpt-4o")["max_completion_tokens"] == 9
    assert "max_tokens" not in body("openai/gpt-4o")
    assert body("mistral/m")["random_seed"] == 1
    assert "seed" not in body("mistral/m")
    assert body("together/m")["logprobs"] == 5
    assert "top_logprobs" not in body("together/m")
    assert body("anthropic/m")["temperature"] == 1.0


def test_a_moved_provider_speaks_the_plain_protocol() -> None:
    address = at("openai/o3", {"OPENAI_BASE_URL": "http://localhost:1/v1"})
    assert body_of(everything(), address.model, address.dialect)[1] == []


@pytest.mark.parametrize(
    ("model_id", "away"),
    [
        ("http://gpu.example:8000/v1#m", True),
        ("https://192.0.2.7/v1#m", True),
        ("http://localhost.example/v1#m", True),
        ("http://[::1]:8000/v1#m", False),
        ("http://127.0.0.1:8000/v1#m", False),
        ("http://localhost:8000/v1#m", False),
        ("openai/m", False),
        ("local", False),
    ],
)
def test_only_another_machine_s_address_leads_the_key_away(model_id: str, away: bool) -> None:
    assert leads_key_away(model_id, Settings({"PERSONAE_API_KEY": "sk-1234567"}, {})) == away
    assert leads_key_away(model_id, Settings({}, {"PERSONAE_API_KEY": "sk-1234567"})) == away
    assert not leads_key_away(model_id, Settings({"OPENAI_API_KEY": "sk-1234567"}, {}))
