"""Cards for tests: one by the specification of each version, and any that people may have made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from personae.characters.png import Png, plain_picture, text_chunk

JSON = Any


def v1() -> dict[str, Any]:
    return {
        "name": "Ada Lovelace",
        "description": "{{char}} is a mathematician.",
        "personality": "exact, playful",
        "scenario": "London, 1843",
        "first_mes": "Good evening.",
        "mes_example": "<START>\n{{user}}: Hello\n{{char}}: Good evening.",
    }


def v2() -> dict[str, Any]:
    return {
        "spec": "chara_card_v2",
        "spec_version": "2.0",
        "data": {
            **v1(),
            "creator_notes": "Best with a patient model.",
            "system_prompt": "{{original}} Stay in 1843.",
            "post_history_instructions": "",
            "alternate_greetings": ["Do come in."],
            "tags": ["history", "science"],
            "creator": "someone",
            "character_version": "1.0",
            "extensions": {"agnai/voice": {"rate": 1.5}},
            "character_book": {
                "name": "Ada's world",
                "extensions": {},
                "entries": [
                    {
                        "keys": ["engine", "Babbage"],
                        "content": "The Analytical Engine was never built.",
                        "extensions": {"depth": 4},
                        "enabled": True,
                        "insertion_order": 10,
                        "priority": 3,
                        "id": 1,
                        "position": "before_char",
                    }
                ],
            },
        },
    }


def v3() -> dict[str, Any]:
    card = v2()
    entries = card["data"]["character_book"]["entries"]
    entries[0]["use_regex"] = False
    entries.append(
        {
            "keys": [r"byron\w*"],
            "content": "@@depth 4\n@@role system\n\nHer father was Lord Byron.",
            "extensions": {},
            "enabled": True,
            "insertion_order": 20,
            "use_regex": True,
            "constant": False,
            "id": "father",
        }
    )
    card["data"] |= {
        "nickname": "Ada",
        "group_only_greetings": ["Good evening, all."],
        "creator_notes_multilingual": {"zh": "请用耐心的模型。"},
        "source": ["https://example.org/ada"],
        "creation_date": 1700000000,
        "modification_date": 1700000001.5,
        "assets": [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}],
    }
    return {**card, "spec": "chara_card_v3", "spec_version": "3.0"}


CARDS = {"v1": v1, "v2": v2, "v3": v3}


def picture(*texts: tuple[str, bytes], seed: bytes = b"picture") -> Png:
    """A small PNG with these text chunks in front of its end."""
    png = plain_picture(seed)
    chunks = (*png.chunks[:-1], *(text_chunk(k, t) for k, t in texts), png.chunks[-1])
    return Png(chunks)


def json_file(folder: Path, value: JSON, name: str = "card.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value), "utf-8")
    return path


# Any card --------------------------------------------------------------------------------------

text = st.text(max_size=12)
worded = st.text(min_size=1, max_size=12).filter(str.strip)
number = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
value: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
unknown = st.dictionaries(text, value, max_size=2)
# What stands in real cards where a text, a list, a number or a truth value belongs.
loose_text = text | st.none() | st.integers() | st.booleans()
loose_texts: st.SearchStrategy[JSON] = (
    st.lists(loose_text, max_size=3) | st.none() | text | st.just({})
)
loose_number = number | st.none() | st.integers().map(str) | st.just("")
loose_truth = st.booleans() | st.none() | st.sampled_from([0, 1, "true", "false", ""])
loose_object: st.SearchStrategy[JSON] = unknown | st.none() | st.just([])
decorated = st.sampled_from(["", "@@depth 4\n", "@@depth 4\n@@@role user\n\n", "\n@@x\n"])


def fields(known: dict[str, st.SearchStrategy[JSON]]) -> st.SearchStrategy[dict[str, JSON]]:
    """Objects with any of the known fields, and with others."""
    some = st.fixed_dictionaries({}, optional=known)
    return st.builds(lambda more, these: {**more, **these}, unknown, some)


entry = fields(
    {
        "keys": loose_texts,
        "content": st.builds(lambda head, rest: head + rest, decorated, text) | loose_text,
        "extensions": loose_object,
        "enabled": loose_truth,
        "insertion_order": loose_number,
        "case_sensitive": loose_truth,
        "use_regex": loose_truth,
        "constant": loose_truth,
        "name": loose_text,
        "priority": loose_number,
        "id": loose_text,
        "comment": loose_text,
        "selective": loose_truth,
        "secondary_keys": loose_texts,
        "position": st.sampled_from(["before_char", "after_char", 0, 4, "", None, "top"]),
    }
)
book = fields(
    {
        "name": loose_text,
        "description": loose_text,
        "scan_depth": loose_number,
        "token_budget": loose_number,
        "recursive_scanning": loose_truth,
        "extensions": loose_object,
        "entries": st.lists(entry, max_size=3)
        | st.none()
        | st.dictionaries(st.integers(0, 9).map(str), entry, max_size=2),
    }
)
asset = fields({"type": loose_text, "uri": loose_text, "name": loose_text, "ext": loose_text})
six = dict.fromkeys(
    ("description", "personality", "scenario", "first_mes", "mes_example"), loose_text
)
of_v2 = {
    **dict.fromkeys(
        ("creator_notes", "system_prompt", "post_history_instructions", "creator",
         "character_version"),
        loose_text,
    ),
    "alternate_greetings": loose_texts,
    "tags": loose_texts,
    "extensions": loose_object,
    "character_book": book | st.none() | st.just([]),
}  # fmt: skip
of_v3 = {
    "nickname": loose_text,
    "creator_notes_multilingual": st.dictionaries(text, loose_text, max_size=2) | loose_object,
    "source": loose_texts,
    "group_only_greetings": loose_texts,
    "creation_date": loose_number,
    "modification_date": loose_number,
    "assets": st.lists(asset, max_size=2) | st.none() | value,
}


def _named(name: str, rest: dict[str, JSON]) -> dict[str, JSON]:
    return {**rest, "name": name}


def _old_named(name: str, rest: dict[str, JSON]) -> dict[str, JSON]:
    return {**{k: v for k, v in rest.items() if k not in ("name", "data")}, "char_name": name}


old_names = dict.fromkeys(
    ("char_persona", "world_scenario", "char_greeting", "example_dialogue"), loose_text
)
data = st.builds(_named, worded, fields({**six, **of_v2, **of_v3}))
any_v1 = (
    data
    | st.builds(_named, worded, fields(six))
    | st.builds(_old_named, worded, fields({**six, **old_names, **of_v2}))
)


def framed(version: str, number: str) -> st.SearchStrategy[dict[str, JSON]]:
    around = fields({**six, "name": loose_text, "tags": loose_texts, "avatar": text})
    frame = st.just({"spec": f"chara_card_{version}", "spec_version": number})
    odd = st.sampled_from(["2.1", 2, None]).map(
        lambda n: {"spec": f"chara_card_{version}", "spec_version": n}
    )
    frames = frame | odd | (st.just({}) if version == "v2" else frame)
    return st.builds(lambda a, f, d: {**a, **f, "data": d}, around, frames, data)


any_card = any_v1 | framed("v2", "2.0") | framed("v3", "3.0")
