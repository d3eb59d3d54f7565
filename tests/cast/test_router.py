from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from personae.cast.calibrate import instructions
from personae.cast.router import Router
from personae.characters.starter import starter
from personae.errors import InputError, UsageError
from personae.records import Character, Lorebook, LoreEntry
from personae.records.cast import Routed

EIGHT = (
    "sherlock-holmes", "ada-lovelace", "alice", "don-quixote",
    "sun-wukong", "zhuge-liang", "lin-daiyu", "li-qingzhao",
)  # fmt: skip
WATSON = Character(
    name="John Watson", description="John Watson is an army doctor, Holmes's friend."
)
LAMP = (
    "Play {}.",
    "I want you to act like {}.",
    "Can I talk to {}, please?",
    "{}, what did you eat today?",
    "扮演{}。",
    "请用{}的口吻回答。",
)


@cache
def router() -> Router:
    return Router.from_characters({name: starter(name) for name in EIGHT})


def played(text: str, previous: str | None = None) -> tuple[str, str | None]:
    found = router().route(text, previous=previous)
    return found.decision, found.role


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", EIGHT)
@pytest.mark.parametrize("template", LAMP)
def test_whoever_is_named_is_played(role, template):
    found = router().route(template.format(starter(role).name))

    assert found == Routed(
        decision="accept", role=role, confidence=1, weights={role: 1.0}, by="name"
    )


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("Mr Holmes, are you there?", "sherlock-holmes"),
        ("be ada", "ada-lovelace"),
        ("ANSWER AS DON QUIXOTE", "don-quixote"),
        ("Play the Monkey King.", "sun-wukong"),
        ("孔明先生，请教一事。", "zhuge-liang"),
        ("黛玉姐姐，好久不见。", "lin-daiyu"),
        ("请潇湘妃子点评我的诗。", "lin-daiyu"),
        ("躬耕隆中的卧龙", "zhuge-liang"),
        ("你是夏洛克·福尔摩斯。", "sherlock-holmes"),
        ("Play Ｓｈｅｒｌｏｃｋ　Ｈｏｌｍｅｓ", "sherlock-holmes"),
    ],
)
def test_parts_of_names_nicknames_and_what_a_card_says_somebody_is_called_are_names(text, role):
    assert played(text) == ("accept", role)


@pytest.mark.parametrize(
    "text",
    [
        "Play Mycroft Holmes.",
        "Mycroft Holmes, answer me.",
        "Act as Alice Cooper.",
        "Be Sherlock Holmes's landlady.",
        "Play the squire of Don Quixote.",
        "你是迈克罗夫特·福尔摩斯。",
        "扮演孙悟空的师父。",
        "扮演林黛玉的姐姐。",
    ],
)
def test_a_name_inside_a_strangers_name_or_of_his_master_is_not_who_is_wanted(text):
    assert played(text)[0] != "accept"


@pytest.mark.parametrize(
    ("text", "decision", "role"),
    [
        ("Act as Sherlok Holmes.", "accept", "sherlock-holmes"),
        ("Be Don Quixotte.", "accept", "don-quixote"),
        ("Play Zuge Liang.", "accept", "zhuge-liang"),
        ("扮演林黛钰。", "ask", "lin-daiyu"),
        ("扮演孙悟控。", "ask", "sun-wukong"),
    ],
)
def test_a_slip_of_the_pen_is_understood_and_one_that_may_be_another_name_is_asked_about(
    text, decision, role
):
    assert played(text) == (decision, role)


def test_a_brother_whom_a_card_names_is_no_slip_of_the_pen():
    assert played("扮演诸葛瑾。") == ("reject", None)


def test_two_of_one_name_are_asked_about():
    two = Router.from_characters(
        {
            "first": Character(name="Alice", description="Alice likes tea."),
            "second": Character(name="Alice", description="Alice likes chess."),
        }
    )
    found = two.route("Play Alice, the one for chess.")

    assert (found.decision, found.role, found.confidence) == ("ask", "second", 0.5)
    assert found.weights == {"first": 0.5, "second": 0.5}


def test_an_alias_is_as_good_as_a_name():
    plain = {name: starter(name) for name in EIGHT}
    with_alias = Router.from_characters(plain, {"sun-wukong": ["Goku"]})

    assert played("Play Goku.") == ("reject", None)
    assert with_alias.route("Play Goku.").role == "sun-wukong"


def test_an_alias_of_nobody_is_an_error():
    with pytest.raises(UsageError, match="'bob'"):
        Router.from_characters({"alice": starter("alice")}, {"bob": ["Bob"]})


def test_a_name_without_a_letter_or_of_a_page_is_an_error_that_says_what_to_do():
    for name in ("…", "名" * 40):
        with pytest.raises(InputError, match="Give an alias"):
            Router.from_characters({"dots": Character(name=name)})
    found = Router.from_characters({"dots": Character(name="…")}, {"dots": ["Dots"]})

    assert found.route("Play Dots.").role == "dots"


# Descriptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("Play the consulting detective of Baker Street.", "sherlock-holmes"),
        ("Be the mad hidalgo of La Mancha.", "don-quixote"),
        ("扮演大闹天宫的那只猴子。", "sun-wukong"),
        ("请写《词论》的那位点评苏轼。", "li-qingzhao"),
    ],
)
def test_whoever_is_described_is_played_and_that_is_less_than_certain(text, role):
    found = router().route(text)

    assert (found.decision, found.role, found.by) == ("accept", role, "profile")
    assert 0.5 < found.confidence < 1
    assert next(iter(found.weights)) == role
    assert len(found.weights) <= 3
    assert sum(found.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "text",
    [
        "Play Dr. Watson.",
        "Be the White Rabbit who is always late.",
        "Play Charles Babbage.",
        "be hercule poirot",
        "扮演猪八戒。",
        "请你演薛宝钗。",
        "Play Lewis Carroll, who wrote about Alice.",
        "Mycroft Holmes, where is your brother?",
    ],
)
def test_a_stranger_is_rejected_even_one_of_whom_a_card_tells(text):
    assert played(text) == ("reject", None)


@pytest.mark.parametrize(
    "text",
    [
        "What is the boiling point of water?",
        "Who wrote about the Analytical Engine?",
        "昨夜雨疏风骤",
    ],
)
def test_what_asks_for_nobody_is_at_most_asked_about(text):
    assert played(text)[0] != "accept"


def test_a_text_of_which_no_profile_has_a_word_gives_no_weights():
    found = router().route("Zzyzx qwrtp")

    assert (found.decision, found.confidence, found.weights) == ("reject", 0, {})


def test_neighbours_of_a_new_profile_are_the_characters_most_like_it():
    near = router().neighbours("A private detective in London who plays the violin.", 2)

    assert len(near) == 2
    assert next(iter(near)) == "sherlock-holmes"
    assert sum(near.values()) == pytest.approx(1)


def test_secrets_do_not_route():
    secret = "The fee that he asked for in the King of Bohemia's case"
    assert not any(secret in str(piece) for piece in router().to_dict()["roles"].values())


def test_lore_of_others_says_who_is_not_meant():
    lodger = Character(
        name="Tom Bell",
        tags=("lodger",),
        description="Tom Bell is a lodger. Mrs Gray, the landlady, keeps his keys.",
        character_book=Lorebook(entries=(LoreEntry(keys=("Gray",), content="Mrs Gray has keys."),)),
    )
    found = Router.from_characters({"tom": lodger, "alice": starter("alice")})

    own = found.evidence("Be the lodger with the keys.")
    other = found.evidence("Be the landlady with the keys.")
    assert own.role == other.role == "tom"
    assert found.calibration.score(own.features) > found.calibration.score(other.features)


# Dialogues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("previous", "text", "role"),
    [
        ("alice", "What do you think of Sherlock Holmes?", "alice"),
        ("sherlock-holmes", "Have you ever met Ada Lovelace?", "sherlock-holmes"),
        ("alice", "Be quiet!", "alice"),
        ("alice", "You are very kind.", "alice"),
        ("ada-lovelace", "Play us something on the harp!", "ada-lovelace"),
        ("sun-wukong", "你觉得诸葛亮怎么样？", "sun-wukong"),
        ("alice", "And you, Ada, what do you say?", "ada-lovelace"),
        ("alice", "Thank you, Alice. Mr Holmes, your turn.", "sherlock-holmes"),
        ("sherlock-holmes", "Now play the girl who fell down the rabbit hole.", "alice"),
        ("sun-wukong", "谢谢你，悟空。黛玉，轮到你了。", "lin-daiyu"),
    ],
)
def test_who_is_mentioned_does_not_take_over_and_who_is_addressed_does(previous, text, role):
    assert played(text, previous) == ("accept", role)


@pytest.mark.parametrize(
    "text", ["Now be Napoleon.", "Switch to Hercule Poirot.", "换成周瑜来说。"]
)
def test_a_switch_to_a_stranger_is_noticed(text):
    assert played(text, "zhuge-liang") == ("reject", None)


def test_a_previous_role_that_is_not_of_the_cast_is_an_error():
    with pytest.raises(UsageError, match="'watson'"):
        router().route("Go on.", previous="watson")


# Files and growth --------------------------------------------------------------------------------


def test_a_router_read_from_its_file_routes_the_same():
    again = Router.from_dict(router().to_dict())

    assert again.to_dict() == router().to_dict()
    for one in instructions("dev", "en")[:60]:
        assert again.route(one.text, previous=one.previous) == router().route(
            one.text, previous=one.previous
        )


@pytest.mark.parametrize(
    "change",
    [
        {"format": "personae-router/9"},
        {"roles": {}},
        {"roles": {"x": {"names": []}}},
        {"calibration": {}},
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(change):
    with pytest.raises(InputError, match=r"router\.json"):
        Router.from_dict({**router().to_dict(), **change}, path="router.json")


def test_a_calibration_for_other_features_is_an_error():
    file = router().to_dict()
    file["calibration"]["features"] = file["calibration"]["features"][:-1]

    with pytest.raises(InputError, match="other features"):
        Router.from_dict(file)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_new_character_changes_no_route_by_name_of_an_old_one(language):
    before, after = router(), router().with_role("watson", WATSON)

    for one in instructions("dev", language):
        if one.kind == "named":
            assert after.route(one.text) == before.route(one.text)
    assert after.route("Play Dr. Watson.").role == "watson"


def test_a_role_is_added_once():
    with pytest.raises(UsageError, match="already"):
        router().with_role("alice", WATSON)


# Any text ----------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["play", "be", "the", "Holmes", "alice", "'s", "of", "的", "扮演", "孙悟空", "，", ".", "·", "那位",
     "Mycroft", "\ud800", "İ", "\u0000", "“", "detective", "丞相", "?", "\n", "squire"]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(WORDS).map(" ".join), st.lists(WORDS).map("".join)))
@example("\rAda")
@example("İ" * 5_000)
@example("的" * 5_000)
@example("扮演" * 3_000)
@example("play " * 3_000)
@settings(max_examples=200, deadline=None)
def test_any_text_is_routed_without_an_error(text):
    for previous in (None, "alice"):
        found = router().route(text, previous=previous)
        assert (found.role is None) == (found.decision == "reject")
        assert 0 <= found.confidence <= 1
        assert all(0 < weight <= 1 for weight in found.weights.values())


ENGLISH = [role for role in EIGHT if starter(role).name.isascii()]


@given(
    st.sampled_from(ENGLISH),
    st.sampled_from(LAMP[:3]),
    st.lists(st.sampled_from(["Thank you.", "It rains today.", "快一点。", "I like tea."])),
)
@settings(max_examples=60, deadline=None)
def test_who_is_named_wins_whatever_else_is_said(role, template, more):
    text = " ".join([template.format(starter(role).name), *more])

    assert router().route(text).role == role
    assert router().route(text).decision == "accept"
