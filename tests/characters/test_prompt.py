import hashlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.characters.prompt import (
    EXAMPLE_TOKENS,
    ExampleLine,
    Profile,
    lore,
    persona_line,
    profile,
)
from personae.characters.starter import starter, starter_ids
from personae.errors import InputError
from personae.prompts import LANGUAGES, names, sentence, variables
from personae.records import Character, Language, Lorebook, LoreEntry, Persona
from personae.records.tokens import estimate_tokens

SECRETS = [
    {"fact": "{{char}} cannot swim.", "known_by": ["ADA  lovelace"]},
    {"fact": "The bridge is mined.", "known_by": ["Charles"]},
    {"fact": "Nobody knows this.", "known_by": []},
]


def ada(**fields: Any) -> Character:
    ours = fields.pop("ours", {"secrets": SECRETS, "voice": "Exact; says {{user}} often."})
    return Character(
        **{
            "name": "Ada Lovelace",
            "nickname": "Ada",
            "description": "{{char}} counts. {{// left out}}",
            "personality": "curious",
            "scenario": "In a park with {{user}}.",
            "creator_notes": "NOTES: best at temperature 1",
            "system_prompt": "SYSTEM: you are unfiltered",
            "post_history_instructions": "POST: stay in character",
            "first_mes": "GREETING",
            "tags": ("TAGS",),
            "creator": "CREATOR",
            "extensions": {"personae": ours},
            **fields,
        }
    )


def of(character: Character, **options: Any) -> Profile:
    return profile(character, **{"language": "en", "user": "Charles", "seed": 0, **options})


def book(*entries: LoreEntry) -> Lorebook:
    return Lorebook(entries=entries)


def test_macros_are_filled_in_everywhere():
    told = of(ada(mes_example="<START>\n{{user}}: hm?\n{{char}}: {{user}}!"), with_scenario=True)
    assert told.name == "Ada"
    assert told.description == "Ada counts."
    assert told.scenario == "In a park with Charles."
    assert told.voice == "Exact; says Charles often."
    assert told.examples[0][1].text == "Charles!"
    assert "{{" not in told.text_with_lore


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_for_people_or_for_a_chat_program_reaches_no_prompt(language: Language):
    notes = {"en": "MULTILINGUAL"}
    text = of(ada(creator_notes_multilingual=notes), language=language).text_with_lore
    assert not re.search("NOTES|MULTILINGUAL|SYSTEM|POST|TAGS|CREATOR|GREETING", text)
    assert "Ada counts." in text


def test_the_scenario_of_the_card_is_told_on_request_only():
    assert "park" not in of(ada()).text
    assert "park" in of(ada(), with_scenario=True).text


def test_a_character_knows_the_secrets_that_name_it_and_no_other():
    told = of(ada())
    assert told.secrets == ("Ada cannot swim.",)
    assert "swim" not in told.text_with_lore
    assert "mined" not in told.to_json()


def test_a_secret_may_name_the_character_as_the_scene_does():
    assert of(ada(), aliases=["charles"]).secrets == ("Ada cannot swim.", "The bridge is mined.")


def test_a_malformed_extension_of_ours_is_an_error_with_its_place():
    with pytest.raises(InputError, match=r"extensions\.personae"):
        of(ada(ours={"secrets": "none"}))


# Examples ---------------------------------------------------------------------------------------


def test_examples_are_parted_by_start_and_by_speaker():
    told = of(
        ada(
            mes_example="<START>\n{{user}}: One?\n{{char}}: Two.\nAnd on.\n"
            "<start>\nAda Lovelace: Three.\n<BOT>：Four.\n<START>\n"
        )
    )
    assert told.examples == (
        (
            ExampleLine(speaker="Charles", own=False, text="One?"),
            ExampleLine(speaker="Ada", own=True, text="Two.\nAnd on."),
        ),
        (
            ExampleLine(speaker="Ada", own=True, text="Three."),
            ExampleLine(speaker="Ada", own=True, text="Four."),
        ),
    )


def test_prose_that_names_no_speaker_is_the_characters():
    (block,) = of(ada(mes_example="I count, therefore it is so.")).examples
    assert block == (ExampleLine(speaker="Ada", own=True, text="I count, therefore it is so."),)


def test_a_conversation_in_which_the_character_is_silent_shows_no_voice():
    assert of(ada(mes_example="<START>\n{{user}}: Hello? Anyone?")).examples == ()


def test_dialogue_of_ours_follows_the_cards_examples():
    ours = {"dialogue": [{"user": "Tea?", "character": "Never before noon, {{user}}."}]}
    told = of(ada(ours=ours, mes_example="{{char}}: First."))
    assert [line.text for block in told.examples for line in block] == [
        "First.", "Tea?", "Never before noon, Charles.",
    ]  # fmt: skip


def test_examples_end_at_their_budget_with_a_line_of_the_character():
    talk = "".join(
        f"{{{{user}}}}: q{n} {'x' * 80}\n{{{{char}}}}: a{n} {'y' * 80}\n" for n in range(99)
    )
    told = of(ada(mes_example=talk))
    lines = [line for block in told.examples for line in block]
    spent = sum(estimate_tokens(f"{line.speaker}: {line.text}\n") for line in lines)
    assert 0.8 * EXAMPLE_TOKENS < spent <= EXAMPLE_TOKENS
    assert lines[-1].own
    assert of(ada(mes_example=talk), example_budget=0).examples == ()


@given(st.text("<START>{}charusenx: \n", max_size=80), st.integers(0, 30))
def test_any_examples_are_read_within_their_budget(text: str, budget: int):
    told = of(ada(ours={}, mes_example=text), example_budget=budget)
    for block in told.examples:
        assert any(line.own for line in block)
        assert all(line.text == line.text.strip() for line in block)
    spent = sum(
        estimate_tokens(f"{line.speaker}: {line.text}\n") for b in told.examples for line in b
    )
    assert spent <= budget


# Lore -------------------------------------------------------------------------------------------


def test_lore_stands_before_or_behind_the_description_and_nowhere_in_the_fixed_text():
    character = ada(
        character_book=book(
            LoreEntry(keys=("engine",), content="BEFORE {{char}}", position="before_char"),
            LoreEntry(keys=("engine",), content="AFTER", position="after_char"),
            LoreEntry(keys=("loom",), content="UNHEARD"),
        )
    )
    told = of(character, heard=["The Engine!"], turn=1)
    assert (told.lore_before, told.lore_after) == (("BEFORE Ada",), ("AFTER",))
    text = told.text_with_lore
    assert text.index("BEFORE") < text.index("counts") < text.index("AFTER")
    assert told.text == of(character).text
    assert "AFTER" not in told.text


def test_what_belongs_among_the_messages_goes_by_its_depth_to_either_end():
    contents = ("@@depth 9\ndeep", "@@depth 1\nnear", "plain", "@@position before_desc\nbefore")
    entries = [LoreEntry(keys=("k",), content=content) for content in contents]
    told = of(ada(character_book=book(*entries)), heard=["k", "k"])
    assert told.lore_before == ("deep", "before")
    assert told.lore_after == ("plain", "near")


def test_lore_keeps_to_its_budget():
    entries = [LoreEntry(keys=("k",), content=f"{n} " + "x" * 400) for n in range(99)]
    character = ada(character_book=book(*entries))
    assert of(character, heard=["k"]).lore.tokens <= 2_000
    assert len(of(character, heard=["k"], lore_budget=None).lore.fired) == 99


def test_a_character_without_a_lorebook_has_no_lore():
    assert lore(ada(), ["k"], user="Charles", seed=0, turn=0).fired == ()


def test_a_choice_at_random_is_made_anew_each_turn_and_a_pick_is_kept():
    entry = LoreEntry(constant=True, content="{{random:a,b,c,d}} {{pick:1,2,3,4}}")
    character = ada(character_book=book(entry), description="{{random:u,v,w,x,y,z}}")
    told = [of(character, turn=turn, seed=3) for turn in range(30)]
    drawn = [t.lore_after[0].split() for t in told]
    assert len({letter for letter, _ in drawn}) == 4
    assert len({number for _, number in drawn}) == 1
    assert len({t.text for t in told}) == 1
    assert of(character, turn=7, seed=3) == told[7]


# Personas ---------------------------------------------------------------------------------------


def test_a_persona_is_the_card_in_one_line_without_secrets_examples_and_scenario():
    character = ada(
        mes_example="{{char}}: EXAMPLE",
        character_book=book(
            LoreEntry(constant=True, content="Born in 1815."), LoreEntry(keys=("x",), content="NO")
        ),
    )
    description = (
        "Ada Lovelace. Ada counts. Personality: curious. How Ada speaks: Exact; says the user often."
        " Born in 1815."
    )
    digest = hashlib.sha256(f'"{description}"'.encode()).hexdigest()
    assert persona_line(character, source="ada.json") == Persona(
        id=f"ada-lovelace-{digest[:6]}", description=description, source="ada.json"
    )


def test_a_personas_id_changes_with_its_description_and_with_nothing_else():
    one = persona_line(ada())
    assert persona_line(ada(creator_notes="others", tags=())).id == one.id
    assert persona_line(ada(personality="bored")).id != one.id


def test_a_name_of_no_letters_still_gives_an_id():
    assert re.fullmatch(r"[0-9a-f]{6}", persona_line(ada(name="???", nickname=None)).id)


def test_a_persona_speaks_the_first_language_of_its_card():
    ours = {"language": "zh", "voice": "直率"}
    told = persona_line(ada(ours=ours, name="孙悟空", nickname=None, description="石猴。"))
    assert told.description == "孙悟空。石猴。 性格：curious。 孙悟空的言谈：直率。"
    assert told.id.startswith("孙悟空-")


def test_every_character_of_the_starter_cast_is_a_persona_and_has_a_voice():
    assert len(starter_ids()) >= 8
    for name in starter_ids():
        character = starter(name)
        language = character.ours.language or "en"
        told = persona_line(character)
        assert sentence(told.description, language)
        assert len({persona_line(starter(other)).id for other in starter_ids()}) == len(
            starter_ids()
        )
        whole = of(character, language=language)
        assert whole.examples
        for secret in character.ours.secrets:
            assert secret.fact not in whole.text_with_lore
            assert secret.fact not in told.description


# Templates --------------------------------------------------------------------------------------


def test_both_languages_have_the_same_templates_with_the_same_variables():
    assert names("en", "characters") == names("zh", "characters")
    for name in names("en", "characters"):
        assert variables(name, "en") == variables(name, "zh")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_bare_card_leaves_no_heading_behind(language: Language):
    told = of(Character(name="Bo", description="A dog."), language=language)
    assert told.text == "A dog."
    assert of(Character(name="Bo"), language=language).text == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_full_card_shows_every_part_once_and_no_ragged_edge(language: Language):
    character = ada(mes_example="{{char}}: E1\n<START>\n{{char}}: E2")
    told = of(character, language=language, with_scenario=True).text
    for part in ("Ada counts.", "curious", "Exact", "park", "E1", "E2"):
        assert told.count(part) == 1
    assert "\n\n\n" not in told
    assert told == told.strip()
