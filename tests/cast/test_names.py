from functools import cache

import pytest

from personae.cast.names import (
    NameBook,
    clean,
    described_in,
    names_of,
    others_in,
    target_of,
    tokens,
)
from personae.cast.router import Router
from personae.characters.starter import starter
from personae.records import Character

ENGLISH = """Is {} there?|How would {} answer this?|{}?|{}|Good morning, {}!|hi {}|yo {}, what's up
I would like {} to explain it.|Could {} come over?|What does {} think about love?|You will be {} today.
Tell me a story in the style of {}.|Speak with {}'s voice.|Is it possible to talk with {}?|Your role: {}
Role: {}. Stay in character.|Character: {}|As {}, describe the sea.|Act exactly as {} would act.
Bring {} here.|Who are you? Are you {}?|I choose {}.|Let's talk, {}.|Do your best {} impression.
Write like {}.|Next is {}.|Turn into {}.|My dear {}, how are you?|Tell me, {}, what is truth?
In the person of {}, greet me.|Answer the way {} would.|Assume the identity of {}.|Have {} tell the tale.
Ask {} about the weather.|Might I have a word with {}?|Simulate {}.|Pose as {} for an hour."""
CHINESE = """{}在不在？|{}你好|叫{}|问问{}怎么看|请问{}，何为爱？|用{}的话说说看|{}|角色：{}|你的角色是{}。
今天你是{}。|请进入{}的角色。|我选{}。|把{}叫来。|请{}讲个故事|像{}一样说话|模拟{}|学{}的腔调|代入{}
以{}的视角写日记|我想听{}讲故事|假如你是{}，你会怎么做？|请{}给我一点建议|亲爱的{}：|你能扮演{}吗？
可以让{}来吗？|接下来由{}发言|换{}|请用{}的方式安慰我|按{}的性格回答"""


def forms(text: str) -> list[str]:
    return [form for line in text.splitlines() for form in line.split("|")]


@cache
def router(roles: tuple[str, ...]) -> Router:
    return Router.from_characters({role: starter(role) for role in roles})


@pytest.mark.parametrize("form", [*forms(ENGLISH), *forms(CHINESE)])
def test_a_name_is_found_whatever_words_stand_around_it(form):
    roles = (
        ("sherlock-holmes", "alice", "don-quixote")
        if form in forms(ENGLISH)
        else ("sun-wukong", "zhuge-liang", "li-qingzhao")
    )
    for role in roles:
        found = router(roles).route(form.format(starter(role).name))
        assert (found.decision, found.role, found.by) == ("accept", role, "name")


@pytest.mark.parametrize(
    ("text", "phrase", "head", "bare", "proper"),
    [
        ("Play the Belgian detective with a moustache.", "Belgian detective with a moustache",
         ("detective",), False, False),
        ("Be Hercule Poirot, please.", "Hercule Poirot", ("poirot",), True, True),
        ("Act as the Queen of Hearts.", "Queen of Hearts", ("hearts",), False, True),
        ("Be Lord Byron's mathematical daughter.", "Lord Byron's mathematical daughter",
         ("daughter",), False, False),
        ("Play the cold, brilliant detective.", "cold, brilliant detective", ("detective",),
         False, False),
        ("Go on.", "", (), False, False),
    ],
)  # fmt: skip
def test_english_says_by_article_and_capital_whether_it_names_or_describes(
    text, phrase, head, bare, proper
):
    found = target_of(text, tokens(text), "en")

    assert (found.text, found.head, found.bare, found.proper) == (phrase, head, bare, proper)


@pytest.mark.parametrize(
    ("text", "phrase", "head", "bare", "proper"),
    [
        ("扮演大闹天宫的那只猴子。", "大闹天宫的那只猴子", ("猴子",), False, False),
        ("请你演周瑜。", "周瑜", ("周瑜",), True, True),
        ("请以三国里最聪明的谋士的身份回答。", "三国里最聪明的谋士", ("谋士",), False, False),
        ("我想和欧阳修说话。", "欧阳修", ("阳修",), True, True),
        ("然后呢？", "", (), False, False),
    ],
)
def test_chinese_says_by_surname_and_particle_whether_it_names_or_describes(
    text, phrase, head, bare, proper
):
    plain = clean(text)
    found = target_of(plain, tokens(plain), "zh")

    assert (found.text, found.head, found.bare, found.proper) == (phrase, head, bare, proper)


def test_who_is_spoken_of_is_found_behind_words_that_no_list_has():
    text = "Kindly conjure up the pirate with one leg."
    assert described_in(text, tokens(text), "en").text == "pirate with one leg"
    text = "今天你是独腿的海盗。"
    assert described_in(clean(text), tokens(clean(text)), "zh").text == "独腿的海盗"


def test_a_cards_own_words_give_more_names():
    card = Character(
        name="Alonso Quijano",
        description="He named himself Don Quixote. Neighbours know him as Alonso the Good.",
    )

    assert names_of(card, ("The Don",)) == (
        "Alonso Quijano", "The Don", "Don Quixote", "Alonso the Good",
    )  # fmt: skip
    assert "卧龙" in names_of(starter("zhuge-liang"))
    assert "潇湘妃子" in names_of(starter("lin-daiyu"))
    assert "Mycroft Holmes" in others_in(starter("sherlock-holmes"))


@pytest.mark.parametrize(
    ("spelt", "found"),
    [
        ("Sherlock Holmes", ("holmes", True)),
        ("Shrelock Holmes", ("holmes", True)),  # a swap is one slip
        ("Sherlock Homes", ("holmes", True)),
        ("Sheldon Homes", None),
        ("Sherlock", None),
        ("诸葛靓", ("zhuge", False)),
        ("诸葛", None),
        ("", None),
    ],
)
def test_a_misspelt_name_differs_in_a_letter_or_two(spelt, found):
    book = NameBook({"holmes": ["Sherlock Holmes"], "zhuge": ["诸葛亮"]})

    assert book.nearest(spelt) == found
