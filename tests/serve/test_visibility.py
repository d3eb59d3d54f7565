"""Who perceived a message: fields, whispers in the text, names; what cannot be told is refused."""

from __future__ import annotations

from typing import Any

import pytest

from personae.cast.bearers import Bearers
from personae.errors import BadRequestError
from personae.records import Secret
from personae.records.cast import CastCharacter, CastTurn
from personae.serve.engine import ChatMessage
from personae.serve.visibility import (
    MOST_MARKS,
    MOST_PEOPLE,
    Line,
    as_turns,
    known,
    perceived,
    read_lines,
)

ADA, WU, LIN = "Ada Byron", "Wu Song", "Lin Chong"
CAST = Bearers(
    [
        CastCharacter(name=ADA, aliases=("Lady Lovelace",)),
        CastCharacter(name=WU, aliases=("武松",)),
        CastCharacter(name=LIN),
    ]
)


def said(content: str, role: Any = "user", **fields: Any) -> ChatMessage:
    by = fields.pop("by", None)
    return ChatMessage(role, content, perceived_by=None if by is None else frozenset(by), **fields)


def read(*messages: ChatMessage | str) -> tuple[Line, ...]:
    return read_lines([said(m) if isinstance(m, str) else m for m in messages], CAST)


def heard(character: str, *messages: ChatMessage | str) -> list[str]:
    return [line.text for line in perceived(read(*messages), character)]


def turns(character: str, *messages: ChatMessage | str) -> tuple[CastTurn, ...]:
    return as_turns(perceived(read(*messages), character), character)[1]


# Who perceives -----------------------------------------------------------------------------------


def test_what_names_nobody_is_perceived_by_everybody_in_its_order() -> None:
    chat = (said("Good evening."), said("And to you.", "assistant", name=WU), said("Sit."))
    for who in (ADA, WU, LIN):
        assert heard(who, *chat) == ["Good evening.", "And to you.", "Sit."]


def test_a_message_is_perceived_by_those_of_its_field_and_by_who_says_it() -> None:
    chat = (said("Before."), said("Psst.", "assistant", name=WU, by=[ADA]), said("After."))
    assert heard(ADA, *chat) == heard(WU, *chat) == ["Before.", "Psst.", "After."]
    assert heard(LIN, *chat) == ["Before.", "After."]


def test_a_field_without_names_is_perceived_by_who_says_it_alone() -> None:
    chat = (said("I should go.", "assistant", name=WU, by=[]), said("Hm.", by=[]))
    assert heard(WU, *chat) == ["I should go."]
    assert heard(ADA, *chat) == heard(LIN, *chat) == []


@pytest.mark.parametrize("name", [WU, "wu  song", "ＷＵ ＳＯＮＧ", "Wu_Song", "WuSong", "武松"])
def test_a_name_is_known_by_alias_and_whatever_its_case_width_and_spaces(name: str) -> None:
    assert heard(WU, said("x", by=[name])) == ["x"]
    assert heard(ADA, said("x", by=[name])) == []
    assert read(said("x", "assistant", name=name))[0].speaker == WU


def test_a_field_means_whole_names_and_a_person_may_write_a_part() -> None:
    assert heard(ADA, said("x", by=["Ada"])) == []
    assert heard(ADA, "[to Ada] x") == ["x"]


def test_whom_the_cast_does_not_know_may_perceive_too() -> None:
    chat = said("x", by=["Mycroft", ADA])
    assert heard(ADA, chat) == ["x"]
    assert heard(WU, chat) == []


@pytest.mark.parametrize(
    "text",
    [
        "[to Ada Byron] psst",
        "  [to ada]psst",
        "[To: Ada Byron]: psst",
        "[to ADA BYRON, ] psst",
        "［ｔｏ Ada Byron］ psst",
        "\u200b\ufeff[to Ada] psst",
        "[toAda Byron] psst",
        "[\u3000to\u3000Ada] psst",
        "[\u200bto Ada\u200b] psst",
        "【to Ada】psst",
        "【私语 Ada】psst",
        "[to-Ada] psst",
        "[私语 Ada Byron] psst",
        "[密语：Ada] psst",
        "[to Lady Lovelace] psst",
    ],
)
def test_a_text_that_begins_so_is_a_whisper(text: str) -> None:
    (line,) = read(text)
    assert (line.text, line.to, line.perceived_by) == ("psst", (ADA,), frozenset({ADA}))


@pytest.mark.parametrize("mark", ["[to Ada, Wu]", "[to Wu Song & Ada]", "[私语 武松、Ada Byron]"])
def test_a_whisper_may_be_for_several(mark: str) -> None:
    chat = (f"{mark} now", "[to Lin] later")
    assert heard(ADA, *chat) == heard(WU, *chat) == ["now"]
    assert heard(LIN, *chat) == ["later"]


@pytest.mark.parametrize("text", ["[today] x", "[to-do list] x", "(to Ada) x", "x [to come]"])
def test_what_only_looks_like_a_whisper_is_said_openly_as_it_stands(text: str) -> None:
    (line,) = read(text)
    assert (line.text, line.to, line.perceived_by) == (text, (), None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[to Bob] x", "'Bob'"),
        ("[to Ada, Bob] x", "'Bob'"),
        ("[to everyone] x", "'everyone'"),
        ("[to Adaa] x", "'Adaa'"),
        ("[to Ada x", "no end"),
        ("[to Ada\n] x", "no end"),
        ("[to] x", "names nobody"),
        ("[to ,，、] x", "names nobody"),
        ("[私语] x", "names nobody"),
        ("Tom: [to Bob] x", "'Bob'"),
        ("*[to Bob] x*", "'Bob'"),
        ("[to " + "Ada," * 65 + "Ada] x", "more than 64"),
    ],
)
def test_a_whisper_of_which_nobody_can_tell_for_whom_is_refused(text: str, told: str) -> None:
    for role in ("user", "assistant", "system"):
        with pytest.raises(BadRequestError, match=told) as refused:
            read("Hello.", said(text, role))
        assert str(refused.value).startswith("messages[1]: ")


def test_who_there_is_is_told_where_a_whisper_is_for_nobody() -> None:
    with pytest.raises(BadRequestError, match="Ada Byron, Wu Song, Lin Chong, user, Tom"):
        read(said("Hi", name="Tom"), "[to Bob] x")


def test_part_of_a_name_that_two_bear_is_refused() -> None:
    two = Bearers([CastCharacter(name="Ada Byron"), CastCharacter(name="Ada Lovelace")])
    with pytest.raises(BadRequestError, match="Ada Byron or Ada Lovelace"):
        read_lines([said("[to Ada] x")], two)
    assert read_lines([said("[to Ada Byron] x")], two)[0].perceived_by == frozenset({ADA})


def test_an_alias_that_two_bear_is_refused_everywhere() -> None:
    two = Bearers([CastCharacter(name=n, aliases=("The Doctor",)) for n in ("Watson", "Faust")])
    for message in (
        said("[to the doctor] x"),
        said("x", by=["The Doctor"]),
        said("x", "assistant", name="The Doctor"),
        said("The Doctor: x", "assistant"),
    ):
        with pytest.raises(BadRequestError, match="Watson or Faust"):
            read_lines([message], two)
    with pytest.raises(BadRequestError, match="Watson or Faust"):
        known([Secret(fact="x", known_by=("the doctor",))], "Watson", two)


def test_a_person_of_the_same_first_name_makes_the_first_name_doubtful() -> None:
    with pytest.raises(BadRequestError, match="Ada Byron or Ada Wong"):
        read(said("Hi", name="Ada Wong"), "[to Ada] x")


@pytest.mark.parametrize("chat", [[said("Hi", name="Tom")], [said("Tom: Hi")]])
def test_a_character_may_whisper_to_the_person_whose_name_the_chat_gives(
    chat: list[ChatMessage],
) -> None:
    whisper = said("[to Tom] the door is open", "assistant", name=ADA)
    assert heard(ADA, *chat, whisper)[-1] == "the door is open"
    assert len(heard(WU, *chat, whisper)) == 1
    assert len(heard(WU, *chat, said("Ada Byron: [to user] x", "assistant"))) == 1


def test_field_and_text_together_let_only_those_perceive_who_are_in_both() -> None:
    chat = said("[to Ada, Wu] x", by=[WU, LIN])
    assert [heard(who, chat) for who in (ADA, WU, LIN)] == [[], ["x"], []]


def test_a_name_before_a_whisper_is_who_whispers_and_does_not_hide_it() -> None:
    (line,) = read("Tom: [to Ada] psst")  # as SillyTavern sends the person's text
    assert (line.speaker, line.of_cast, line.text) == ("Tom", False, "psst")
    assert line.perceived_by == frozenset({ADA})
    (line,) = read(said("**Wu Song:** [to Ada] psst", "assistant"))
    assert (line.speaker, line.perceived_by) == (WU, frozenset({ADA, WU}))


def test_who_is_only_named_in_a_whisper_does_not_overhear_it() -> None:
    assert heard(WU, "[to Ada] Wu Song: never trust him") == []
    assert heard(ADA, "[to Ada] Wu Song: never trust him") == ["Wu Song: never trust him"]


@pytest.mark.parametrize("second", ["[to Lin] b", "Tom: [to Lin Chong] b", "  *[to Lin] b*"])
@pytest.mark.parametrize("first", ["a", "[to Ada] a", "Tom: a"])
def test_a_whisper_in_the_middle_of_a_message_is_refused(first: str, second: str) -> None:
    with pytest.raises(BadRequestError, match="in the middle of a message"):
        read(f"{first}\n{second}")


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize(
    "text",
    [
        "x [to Ada] y",
        "> [to Ada] x",
        "- [to Ada] x",
        "12:30 [to Ada] x",
        "<b>[to Ada]</b> x",
        "`[to Ada]` x",
        "\\[to Ada] x",
        "[[to Ada]] x",
        "…【私语 武松】x",
        "Tom [to Ada]: x",
        "Tom: Lin Chong: [to Ada] x",
        "[t\u200bo Ada] x",
        "\u00ad[to Ada] x",
        "\ufe0f[to A\u2060da] x",
        "x [to Bob, Ada] y",
        "The scene.\n[to Ada] You know the stranger.",
        "x [to y [to Ada] z",
        "[today] x [to Ada] y",
    ],
)
def test_a_whisper_that_could_be_read_as_open_words_is_refused(text: str, role: str) -> None:
    with pytest.raises(BadRequestError, match="in the middle of a message"):
        read(said(text, role))


def test_what_is_nobodys_name_in_the_middle_of_a_message_is_text() -> None:
    assert read("And so on.\n[to be continued]")[0].text.endswith("[to be continued]")


def test_a_system_message_may_be_for_some_only() -> None:
    chat = (said("[to Lin] You are poisoned.", "system"), said("Night.", "system", by=[ADA]))
    assert heard(LIN, *chat) == ["You are poisoned."]
    assert heard(ADA, *chat) == ["Night."]
    assert heard(WU, *chat) == []


# Who speaks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_characters_name_before_a_text_is_who_says_it(role: str) -> None:
    for text in ("Wu Song: Sit down.", "武松：Sit down.", "**Wu Song:** Sit down."):
        (line,) = read(said(text, role))
        assert (line.speaker, line.of_cast, line.text) == (WU, True, "Sit down.")


def test_a_word_before_a_colon_that_is_no_name_of_the_cast_stays_text() -> None:
    for role in ("user", "assistant"):
        (line,) = read(said("Note: sit down.", role))
        assert (line.speaker, line.text) == (None, "Note: sit down.")


def test_the_field_says_who_speaks_whatever_the_text_begins_with() -> None:
    (line,) = read(said("Wu Song: he said so.", "assistant", name=ADA))
    assert (line.speaker, line.text) == (ADA, "Wu Song: he said so.")
    (line,) = read(said("Ada_Byron: so.", "assistant", name="Ada_Byron"))
    assert (line.speaker, line.text) == (ADA, "so.")
    (line,) = read(said("Tom: so.", name="tom"))
    assert (line.speaker, line.text) == ("tom", "so.")


def test_several_characters_lines_that_were_sent_as_one_message_are_taken_apart() -> None:
    merged = said("Ada Byron: One.\n\nTwo.\n\nWu Song: Three.\n\nNote: four.", "assistant")
    assert turns(LIN, merged) == (
        CastTurn(speaker=ADA, text="One.\n\nTwo."),
        CastTurn(speaker=WU, text="Three.\n\nNote: four."),
    )


def test_an_assistants_message_without_a_name_is_that_of_whoever_answers() -> None:
    chat = (said("Hi"), said("Good evening.", "assistant"))
    for who in (ADA, WU):
        assert turns(who, *chat)[1] == CastTurn(speaker=who, text="Good evening.")


@pytest.mark.parametrize(
    ("message", "who"),
    [
        (said("[to Ada] x", "assistant"), WU),
        (said("[to Ada] x", "assistant"), ADA),  # nobody whispers to itself
        (said("x", "assistant", by=[ADA]), WU),
    ],
)
def test_a_whisper_of_nobody_knows_whom_is_refused(message: ChatMessage, who: str) -> None:
    with pytest.raises(BadRequestError, match=r"messages\[1\].*`name`"):
        heard(who, "Hi", message)


def test_what_a_character_said_to_some_with_the_field_is_its_own_without_a_name() -> None:
    message = said("x", "assistant", by=[ADA, "Tom"])
    assert turns(ADA, message) == (CastTurn(speaker=ADA, text="x"),)


# As turns ----------------------------------------------------------------------------------------


def test_whoever_hears_a_whisper_is_told_that_it_is_one_in_its_language() -> None:
    assert turns(ADA, "[to Ada, Wu] psst, over here")[0].text == (
        "(whispers to Ada Byron, Wu Song) psst, over here"
    )
    assert turns(WU, "[to 武松] 快走")[0].text == "（悄悄对Wu Song说）快走"
    own = said("Wu Song: [to Ada] psst", "assistant")
    told = CastTurn(speaker=WU, text="(whispers to Ada Byron) psst")
    assert turns(WU, own) == turns(ADA, own) == (told,)


def test_a_persons_name_stands_before_what_it_says_where_the_chat_gives_it() -> None:
    found = turns(ADA, said("Hi", name="Tom"), said("Hm", "assistant", name="Mycroft"), "Yes?")
    assert found == (
        CastTurn(text="Tom: Hi"),
        CastTurn(speaker="Mycroft", text="Hm"),
        CastTurn(text="Yes?"),
    )


def test_system_messages_before_the_dialogue_are_one_and_a_later_one_is_a_turn() -> None:
    system, told = as_turns(
        perceived(
            read(
                said("It is dark.", "system"),
                said("You hear rain.", "system", by=[ADA]),
                said("Hi", "system", name="example_user"),
                "Hello?",
                said("[Write the next reply only as Ada.]", "system"),
            ),
            ADA,
        ),
        ADA,
    )
    assert system == "It is dark.\n\nYou hear rain.\n\nexample_user: Hi"
    assert told == (
        CastTurn(text="Hello?"),
        CastTurn(text="[Write the next reply only as Ada.]"),
    )
    assert as_turns((), ADA) == (None, ())


def test_messages_without_words_are_left_out() -> None:
    assert as_turns(read(" ", said("", "system"), "[to Ada] "), ADA) == (None, ())


def test_a_secret_of_a_chat_is_known_to_whom_it_names() -> None:
    secrets = [
        Secret(fact="one", known_by=("ada byron", "Mycroft")),
        Secret(fact="two", known_by=("武松", "Lady Lovelace")),
        Secret(fact="three", known_by=("Ada",)),  # nobody's whole name
        Secret(fact="four", known_by=()),
    ]
    assert [s.fact for s in known(secrets, ADA, CAST)] == ["one", "two"]
    assert [s.fact for s in known(secrets, WU, CAST)] == ["two"]
    assert known(secrets, LIN, CAST) == ()


# Strangers' texts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 100_000,
        " " * 100_000,
        "*" * 100_000,
        "[" * 100_000,
        "a:" + " " * 100_000,
        "[to Ada" + " " * 100_000 + "] x",
        ("x" * 100 + "\n") * 1_000,
        "[\n" * 50_000,
        "a: " * 30_000,
        "[toq] " * 30_000,
        "Ada Byron: a" + "\n\nb" * 100_000,
    ],
)
def test_no_text_makes_the_reader_search_long(text: str) -> None:
    """Each of these takes milliseconds, and minutes where a pattern searches back and forth."""
    for role in ("user", "assistant", "system"):
        read(said(text, role))


def test_no_chat_makes_the_reader_remember_much() -> None:
    crowd = [f"aa{n} bb cc dd ee ff gg hh{n}" for n in range(MOST_PEOPLE)]
    assert heard(ADA, said("x", by=crowd[1:])) == []
    with pytest.raises(BadRequestError, match="more than 2000 people"):
        read(said("x", by=crowd))
    marks = [f"[to {n}]" for n in range(MOST_MARKS + 1)]
    assert read("x " + " ".join(marks[1:]))[0].perceived_by is None
    with pytest.raises(BadRequestError, match="more than 1000 marks"):
        read("x " + " ".join(marks))
