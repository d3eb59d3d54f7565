"""Files call one character by several names, and two of them by one."""

import pytest

from personae.interview.names import Names, alike, names_of
from personae.interview.people import interviewee
from personae.records import Character


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Caesar", "Julius Caesar"),
        ("Julius Caesar", "caesar"),
        ("Julius_Caesar", "Julius Caesar"),
        ("van Beethoven", "Ludwig van Beethoven"),
        ("黛玉", "林黛玉"),
        ("Ｃａｅｓａｒ", "Caesar"),
    ],
)
def test_a_name_and_whole_words_of_it_are_alike(one: str, other: str) -> None:
    assert alike(one, other)
    assert alike(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Mark", "Bismarck"),
        ("Julius Caesar", "Augustus Caesar"),
        ("", "Caesar"),
        ("…", "Caesar"),
        ("王", "王熙凤"),
        ("林黛玉", "薛宝钗"),
    ],
)
def test_parts_of_words_and_shared_words_are_not_alike(one: str, other: str) -> None:
    assert not alike(one, other)
    assert not alike(other, one)


def test_a_short_name_means_the_only_one_who_bears_it() -> None:
    names = Names({"Julius Caesar": "Julius Caesar", "Isaac Newton": "Isaac Newton"})
    assert names.of("Caesar") == "Julius Caesar"
    assert names.of("isaac newton") == "Isaac Newton"
    assert names.find("Hermione") is None
    assert names.of("Hermione") == "Hermione"


def test_a_short_name_of_two_is_nobodys_unless_the_file_says_more() -> None:
    names = Names({name: name for name in ("Isaac Newton", "Helmut Newton")})
    assert names.find("Newton") is None
    assert names.find("Newton", "Sir Isaac Newton") == "Isaac Newton"
    assert names.find("Newton", "Julius Caesar") is None


def test_whom_a_dialogue_is_filed_under_is_not_who_speaks_in_it() -> None:
    names = Names({"Julius Caesar": "Julius Caesar"})
    assert names.find("Hermione", "Julius Caesar") is None


def test_given_characters_come_before_those_that_files_state() -> None:
    names = Names({"Caesar": "Caesar"}, {"Julius Caesar": "Julius Caesar"})
    assert names.of("Julius Caesar") == "Caesar"


def nicknamed(*both: tuple[str, str]) -> Names:
    return Names(
        names_of(
            interviewee(Character(name=name, nickname=nickname, description="A person."), "en")
            for name, nickname in both
        )
    )


def test_a_nickname_is_a_name_and_never_takes_anothers() -> None:
    names = nicknamed(("Ann Lee", "Bob"), ("Bob", "Caz"))
    assert (names.of("Bob"), names.of("Caz"), names.of("Ann")) == ("Bob", "Bob", "Ann Lee")


def test_a_nickname_of_two_is_nobodys() -> None:
    names = nicknamed(("Elizabeth Bennet", "Lizzy"), ("Elizabeth Woodville", "lizzy"))
    assert names.find("Lizzy") is None
    assert names.find("Bennet") == "Elizabeth Bennet"
