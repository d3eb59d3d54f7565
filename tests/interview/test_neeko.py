"""Published interviews come in whole, and go out as they came in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import InputError
from personae.interview.neeko import (
    LOCATION,
    MAX_DEPTH,
    STATUS,
    Imported,
    export_dialogues,
    import_dialogues,
)
from personae.interview.people import interviewee
from personae.interview.questions import MAX_CHARS, MAX_TURNS, read_scripts
from personae.judging.answers import read_answer_file
from personae.records import (
    Character,
    Exchange,
    Failure,
    Interview,
    InterviewProfile,
    InterviewScript,
    ScriptTurn,
)
from personae.records.base import canonical_json
from personae.records.files import write_records


def said(content: str | None, role: str = "Ada", action: str = "(speaking)") -> dict[str, Any]:
    return {"role": role, "action": action, "content": content}


def single(
    folder: Path, *replies: Any, system: str = "a-model", asked: str = "Question {}?"
) -> Path:
    path = folder / "gen_results" / "single" / system / "Ada_single.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        {"topic_id": "topic-4", "question": asked.format(i), "reply": r}
        for i, r in enumerate(replies)
    ]
    path.write_text(json.dumps(entries), "utf-8")
    return path


def dialogue(
    *turns: tuple[str, str] | tuple[str, str, str], topic: str = "Why a ferry?", **more: Any
) -> dict[str, Any]:
    """A dialogue of (question, answer[, who answers])."""
    content: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        who = turn[2] if len(turn) > 2 else "Ada"
        for role, text in (
            ("interviewer", said(turn[0], "Man")),
            ("character", said(turn[1], who)),
        ):
            content.append({"turn_id": number, "turn_role": role, "turn_content": [text]})
    return {
        "character": "Ada Byrne",
        "model": "gpt-3.5-turbo",
        "topic": topic,
        "qid": 0,
        "max_turns": 5,
        "finished": True,
        "content": content,
        **more,
    }


def multi(
    folder: Path, *lines: Any, system: str = "a-model", name: str = "Ada_multi.jsonl"
) -> Path:
    path = folder / "gen_results" / "multi" / system / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def causes(found: Imported) -> list[str]:
    return [left.cause for left in found.left_out]


def bare(interviews: tuple[Interview, ...]) -> list[Interview]:
    """In order of id, and without where each was found."""
    some = [one.model_copy(update={"source": ""}) for one in interviews]
    return sorted(some, key=lambda one: one.id)


def content(path: Path) -> Any:
    text = path.read_text("utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return json.loads(text)


def there_and_back(paths: list[Path], out: Path) -> dict[str, Any]:
    """What export writes of what was imported, by the path below `out`."""
    found = import_dialogues(paths)
    return {
        str(path.relative_to(out)): content(path)
        for path in export_dialogues(found.interviews, out)
    }


# Reading -----------------------------------------------------------------------------------------


def test_a_single_answer_is_an_interview_of_one_turn(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep the ferry."))
    found = import_dialogues([path])
    (one,) = found.interviews
    assert (one.kind, one.mode, one.method) == ("single", "single", "imported")
    assert one.model == "single/a-model"
    assert one.exchanges == (
        Exchange(character="Ada", asked="Question 0?", answer="I keep the ferry."),
    )
    assert (one.topic_id, one.topic, one.tempting) == (
        "topic-4",
        "difficult to answer without breaking character",
        True,
    )
    assert (one.location, one.status) == (LOCATION["en"], STATUS["en"])
    assert one.source == f"{path}, entry 1"
    assert one.id == f"{one.script_id}@single/a-model#imported"
    assert [script.id for script in found.scripts] == [one.script_id]
    assert found.left_out == ()


def test_in_chinese_place_and_topic_are_told_in_chinese(tmp_path: Path) -> None:
    found = import_dialogues([single(tmp_path, said("我摆渡。", role="艾达"))], language="zh")
    (one,) = found.interviews
    assert (one.language, one.location, one.status) == ("zh", LOCATION["zh"], STATUS["zh"])
    assert one.topic == "不跳出角色就很难回答"
    assert one.characters == ("艾达",)
    assert found.scripts[0].language == "zh"


def test_many_places_are_counted_and_some_are_named(tmp_path: Path) -> None:
    path = single(tmp_path, said("Yes."), *[said("")] * 12)
    places = "; ".join(f"entry {n}" for n in range(2, 12))
    assert f"{path}: 12 not scored (empty): {places}; and 2 more" in import_dialogues([path]).notes


def test_a_reply_may_be_a_list_and_what_is_thought_is_not_the_answer(tmp_path: Path) -> None:
    path = single(
        tmp_path, [said("Hm.", action="(thinking)"), said("Fourpence,"), said("both ways.")]
    )
    (one,) = import_dialogues([path]).interviews
    assert one.exchanges[0].answer == "Fourpence,\nboth ways."
    assert there_and_back([path], tmp_path / "out") == {
        "single/a-model/Ada_single.json": content(path)
    }


@pytest.mark.parametrize(
    ("reply", "cause", "answer"),
    [
        (said(""), "empty", None),
        (said(None), "empty", None),
        ({"role": "Ada", "action": "(speaking)"}, "empty", None),
        ([], "empty", None),
        (said("  \n "), "empty", None),
        (said("Who is he?", action="(thinking)"), "not_spoken", "Who is he?"),
        (
            said("<s> I want you to act like Ada. Ada (speaking): Hello."),
            "contaminated",
            "<s> I want you to act like Ada. Ada (speaking): Hello.",
        ),
        (said("Hello.\nMan (speaking): So?"), "contaminated", "Hello.\nMan (speaking): So?"),
        (
            [said("Hello."), said("So?", role="Man")],
            "contaminated",
            "Hello.\nMan (speaking): So?",
        ),
        (said("question 0?"), "contaminated", "question 0?"),
        (said("Bye.<|NONSTOP|>"), "contaminated", "Bye.<|NONSTOP|>"),
        (said("x" * (MAX_CHARS + 1)), "too_long", "x" * (MAX_CHARS + 1)),
    ],
)
def test_an_unfit_reply_is_kept_with_its_cause_and_told(
    tmp_path: Path, reply: Any, cause: str, answer: str | None
) -> None:
    path = single(tmp_path, said("I keep the ferry."), reply, asked="Question 0?")
    found = import_dialogues([path])
    good, bad = found.interviews
    assert good.failure is None
    assert bad.failure is not None
    assert bad.failure.cause == cause
    assert bad.exchanges[0].answer == answer
    assert [(x.path, x.place, x.cause) for x in found.left_out] == [(str(path), "entry 2", cause)]
    assert f"{path}: 1 not scored ({cause}): entry 2" in found.notes
    assert there_and_back([path], tmp_path / "out") == {
        "single/a-model/Ada_single.json": content(path)
    }


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    found = import_dialogues([single(tmp_path, said("As an AI language model, I have no past."))])
    assert found.interviews[0].failure is None
    assert found.left_out == ()


def test_a_dialogue_is_read_with_all_of_its_turns(tmp_path: Path) -> None:
    path = multi(tmp_path, dialogue(("Who are you?", "Ada."), ("Since when?", "Always.")))
    (one,) = import_dialogues([path]).interviews
    assert (one.kind, one.mode, one.model) == ("multi", "unknown", "multi/a-model")
    assert [(e.character, e.asked, e.answer) for e in one.exchanges] == [
        ("Ada Byrne", "Who are you?", "Ada."),
        ("Ada Byrne", "Since when?", "Always."),
    ]
    assert one.topic == "Why a ferry?"


def test_the_field_model_is_not_believed_and_kept(tmp_path: Path) -> None:
    path = multi(tmp_path, dialogue(("Who?", "Ada."), ("Why?", "So.")), system="other")
    (one,) = import_dialogues([path]).interviews
    assert one.model == "multi/other"
    assert one.extra["neeko"]["entry"]["model"] == "gpt-3.5-turbo"
    assert one.extra["neeko"]["entry"]["qid"] == 0


def test_a_dialogue_that_fails_in_a_later_turn_says_in_which(tmp_path: Path) -> None:
    path = multi(tmp_path, dialogue(("Who?", "Ada."), ("Why?", "")))
    found = import_dialogues([path])
    assert [(x.place, x.cause) for x in found.left_out] == [("line 1, turn 2", "empty")]
    assert found.interviews[0].exchanges[0].failure is None
    assert found.interviews[0].failure == Failure(cause="empty", detail="nothing was answered")


def test_a_last_question_without_a_reply_is_an_empty_answer(tmp_path: Path) -> None:
    line = dialogue(("Who?", "Ada."), ("Why?", "So."))
    del line["content"][-1]
    path = multi(tmp_path, line)
    found = import_dialogues([path])
    assert [(e.asked, e.answer) for e in found.interviews[0].exchanges] == [
        ("Who?", "Ada."),
        ("Why?", None),
    ]
    assert causes(found) == ["empty"]
    assert there_and_back([path], tmp_path / "out")["multi/a-model/Ada_multi.jsonl"] == [line]


def test_where_the_character_changes_it_is_a_transfer_dialogue(tmp_path: Path) -> None:
    path = multi(
        tmp_path,
        dialogue(("Who?", "Ada."), ("And you?", "Ben.", "Ben")),
        dialogue(("Who?", "Ada."), ("Why?", "Still Ada.")),
        name="trans_dialogues.jsonl",
    )
    found = import_dialogues([path])
    changing, same = found.interviews
    assert changing.kind == same.kind == "transfer"
    assert changing.characters == ("Ada Byrne", "Ben")
    assert changing.failure is None
    assert same.failure is not None
    assert same.failure.cause == "one_role"
    assert [(x.place, x.cause) for x in found.left_out] == [("line 2", "one_role")]


def test_a_short_and_a_full_name_in_one_dialogue_are_one_character(tmp_path: Path) -> None:
    path = multi(tmp_path, dialogue(("Who?", "Ada.", "Ada"), ("Why?", "Still Ada.", "Ada Byrne")))
    (one,) = import_dialogues([path]).interviews
    assert (one.kind, one.characters) == ("multi", ("Ada Byrne",))
    assert one.failure is None


def test_a_character_has_one_name_in_all_files(tmp_path: Path) -> None:
    found = import_dialogues(
        [
            single(tmp_path, said("I keep the ferry.")),
            multi(tmp_path, dialogue(("Who?", "Ada."), ("Why?", "So."))),
        ]
    )
    assert {one.characters for one in found.interviews} == {("Ada Byrne",)}
    assert found.unknown == ("Ada Byrne",)
    assert "no profile of Ada Byrne" in found.notes


def test_a_given_character_lends_its_name_and_profile(tmp_path: Path) -> None:
    ada = interviewee(Character(name="Dame Ada Byrne", description="She keeps the ferry."), "en")
    found = import_dialogues([multi(tmp_path, dialogue(("Who?", "Ada."), ("Why?", "So.")))], [ada])
    assert found.interviews[0].characters == ("Dame Ada Byrne",)
    assert [(p.name, p.text) for p in found.profiles] == [("Dame Ada Byrne", ada.profile)]
    assert found.unknown == ()


def test_profiles_beside_the_files_are_found(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep the ferry."))
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "wiki_Ada.txt").write_text("# Ada Byrne\n\nA ferrywoman.", "utf-8")
    found = import_dialogues([path])
    assert found.interviews[0].characters == ("Ada Byrne",)
    assert "A ferrywoman." in found.profiles[0].text
    assert found.profiles[0].source.endswith("wiki_Ada.txt")


def test_the_same_words_of_two_systems_were_replayed(tmp_path: Path) -> None:
    ours = [("Who?", "Ada."), ("Why?", "So.")]
    theirs = [("Who?", "I am Ada."), ("Why?", "Because.")]
    led = [("Who?", "I am Ada."), ("But why?", "Because.")]
    found = import_dialogues(
        [
            multi(tmp_path, dialogue(*ours), system="one"),
            multi(tmp_path, dialogue(*theirs), system="two"),
            multi(tmp_path, dialogue(*led), system="three"),
        ]
    )
    assert [(one.model, one.mode) for one in found.interviews] == [
        ("multi/one", "replayed"),
        ("multi/two", "replayed"),
        ("multi/three", "unknown"),
    ]
    one, two, three = found.interviews
    assert one.script_id == two.script_id != three.script_id


def test_the_same_words_on_another_topic_prove_nothing(tmp_path: Path) -> None:
    turns = [("Who?", "Ada."), ("Why?", "So.")]
    found = import_dialogues(
        [
            multi(tmp_path, dialogue(*turns, topic="The sea"), system="one"),
            multi(tmp_path, dialogue(*turns, topic="The land"), system="two"),
        ]
    )
    assert {one.mode for one in found.interviews} == {"unknown"}


def test_a_reply_with_parts_of_another_systems_is_nobodys(tmp_path: Path) -> None:
    line = dialogue(("Who?", "Ada."), ("Why?", "So."))
    line["content"][3]["turn_content"].append(said("And so on."))
    other = json.loads(json.dumps(line))
    other["content"][1]["turn_content"][0]["content"] = "I am Ada."
    other["content"][3]["turn_content"][0]["content"] = "Because."
    alone = import_dialogues([multi(tmp_path, line, system="one")])
    assert alone.interviews[0].exchanges[1].answer == "So.\nAnd so on."
    assert alone.left_out == ()
    both = import_dialogues(
        [multi(tmp_path, line, system="one"), multi(tmp_path, other, system="two")]
    )
    assert [(x.place, x.cause) for x in both.left_out] == [("line 1, turn 2", "contaminated")] * 2


def test_what_a_model_puts_around_its_answer_is_cut_and_told(tmp_path: Path) -> None:
    path = single(
        tmp_path,
        said("\nDame Ada (speaking): Hello.</s>"),
        said("Ada: Hello."),
        said("Hello.<\\s> </s>"),
        said("</s>"),
        said("Hello.</s> Goodbye."),
    )
    found = import_dialogues([path])
    assert [one.exchanges[0].answer for one in found.interviews] == [
        "Hello.",
        "Hello.",
        "Hello.",
        None,
        "Hello.</s> Goodbye.",
    ]
    assert causes(found) == ["empty", "contaminated"]
    assert found.cut == {str(path): 4}
    assert f"{path}: an end of sequence or the speaker's name is cut from 4 answers" in found.notes
    assert there_and_back([path], tmp_path / "out") == {
        "single/a-model/Ada_single.json": content(path)
    }


def test_lines_in_a_file_called_json_are_lines(tmp_path: Path) -> None:
    lines = [dialogue(("Who?", "Ada."), ("Why?", "So.")) for _ in range(2)]
    lines[1]["topic"] = "Another"
    path = multi(tmp_path, *lines, name="Ada_multi.json")
    found = import_dialogues([path])
    assert [one.source for one in found.interviews] == [f"{path}, line 1", f"{path}, line 2"]
    (written,) = export_dialogues(found.interviews, tmp_path / "out")
    assert written.name == "Ada_multi.json"
    assert [json.loads(line) for line in written.read_text("utf-8").splitlines()] == lines
    assert len(read_answer_file(path).answers) == 2
    listed = tmp_path / "listed.json"
    listed.write_text(json.dumps(lines), "utf-8")
    assert len(import_dialogues([listed]).interviews) == 2


def test_the_repositorys_own_folders_are_one_system(tmp_path: Path) -> None:
    for folder, name in (
        ("Ada_llama-2-7b-chat_result", "Ada_single.json"),
        ("Adda_llama-2-7b-chat_result", "Ada_single_mix.json"),
        ("llama-2-7b-chat_result", "transfer.json"),
    ):
        path = tmp_path / "gen_results" / "icl_interview_single" / folder / name
        path.parent.mkdir(parents=True)
        entry = {"question": f"{folder}?", "reply": said("Yes.")}
        path.write_text(json.dumps([entry]), "utf-8")
    found = import_dialogues([tmp_path])
    assert {one.model for one in found.interviews} == {"icl_interview_single/llama-2-7b-chat"}
    written = export_dialogues(found.interviews, tmp_path / "out")
    assert len(written) == 3
    assert written[0].parent.name == "Ada_llama-2-7b-chat_result"


def test_two_runs_in_one_file_are_told_apart(tmp_path: Path) -> None:
    path = single(tmp_path, said("First."), said("Second."), asked="Who are you?")
    found = import_dialogues([path])
    assert [one.model for one in found.interviews] == ["single/a-model", "single/a-model#run-2"]
    assert len({one.id for one in found.interviews}) == 2
    assert len(found.scripts) == 1
    assert found.appended == {str(path): 2}
    assert any(f"{path}: holds 2 runs" in note for note in found.notes)
    assert there_and_back([path], tmp_path / "out") == {
        "single/a-model/Ada_single.json": content(path)
    }


def test_question_files_give_dialogues_their_topic_numbers(tmp_path: Path) -> None:
    asked = tmp_path / "generated_agent_interview_for_multiturn_Ada.json"
    asked.write_text('[{"topic_id": "topic-3", "topic": "values", "question": "Why a  ferry?"}]')
    path = multi(tmp_path, dialogue(("Who?", "Ada."), ("Why?", "So.")))
    assert import_dialogues([path, asked]).interviews[0].topic_id == "topic-3"
    assert import_dialogues([path]).interviews[0].topic_id == ""


def test_a_folder_is_read_with_all_below_it(tmp_path: Path) -> None:
    single(tmp_path, said("I keep the ferry."))
    multi(tmp_path, dialogue(("Who?", "Ada."), ("Why?", "So.")))
    (tmp_path / "gen_results" / "notes.txt").write_text("not read")
    assert len(import_dialogues([tmp_path]).interviews) == 2


# What cannot be read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"question": "a"}', "the whole"),
        ('["a"]', "entry 1"),
        ('[{"reply": {"content": "a"}}]', "entry 1"),
        ('[{"question": "a", "reply": "b"}]', "entry 1"),
        ('[{"question": "a", "reply": {"content": "b"}}, {"question": "c"}]', "entry 2"),
        ('[{"question": "a", "reply": {"role": "A", "content": "b"}, "x": NaN}]', "entry 1"),
        ("[]", "no answers"),
        ("[" * 100_000, "nested too deeply"),
        ("\x89PNG\x00", "binary"),
    ],
)
def test_what_holds_no_answers_names_file_and_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=place) as error:
        import_dialogues([path])
    assert str(path) in str(error.value)


def test_an_entry_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    path = multi(tmp_path, dialogue(("Who?", "Ada."), deep=deep))
    with pytest.raises(InputError, match="line 1: nested too deeply"):
        import_dialogues([path])


@pytest.mark.parametrize("order", [(0, 1, 3), (0, 1, 2, 2), (0, 1, 1)])
def test_turns_out_of_order_are_refused_with_their_place(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    line = dialogue(("Who?", "Ada."), ("Why?", "So."))
    line["content"] = [line["content"][i] for i in order]
    with pytest.raises(InputError, match=r"line 1, turn 3.*do not take turns"):
        import_dialogues([multi(tmp_path, line)])


def test_an_empty_later_question_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1, turn 3.*the question is empty"):
        import_dialogues([multi(tmp_path, dialogue(("Who?", "Ada."), ("", "So.")))])


def test_a_dialogue_without_end_is_refused(tmp_path: Path) -> None:
    line = dialogue(*[(f"Question {n}?", "Yes.") for n in range(MAX_TURNS + 1)])
    with pytest.raises(InputError, match="line 1: a dialogue of 1,001 turns"):
        import_dialogues([multi(tmp_path, line)])


def test_a_name_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="entry 1, turn 1: a name of 500 characters"):
        import_dialogues([single(tmp_path, said("Yes.", role="x" * 500))])


def test_a_file_given_twice_is_refused_under_whatever_name(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep the ferry."))
    (tmp_path / "link.json").symlink_to(path)
    for again in (path, tmp_path / "gen_results", tmp_path / "link.json"):
        with pytest.raises(InputError, match="given twice"):
            import_dialogues([path, again])


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \.json"):
        import_dialogues([tmp_path])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["question", "reply", "role", "content", "personae", "exchanges", "turn_role"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_at_all_breaks_the_import(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value), "utf-8")
    with suppress(InputError):
        assert import_dialogues([path]).interviews


def test_half_a_surrogate_pair_does_no_harm(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep \ud83d the ferry."))
    (one,) = import_dialogues([path]).interviews
    assert one.exchanges[0].answer == "I keep \ufffd the ferry."
    assert Interview.from_dict(json.loads(one.to_json())) == one
    written = there_and_back([path], tmp_path / "out")
    assert written["single/a-model/Ada_single.json"] == content(path)


# Writing -----------------------------------------------------------------------------------------


def ours(**more: Any) -> Interview:
    return Interview.from_dict(
        {
            "id": "s1@cast:x#cast",
            "script_id": "s1",
            "kind": "single",
            "mode": "single",
            "method": "cast",
            "model": "cast:x",
            "language": "en",
            "topic": "the sea",
            "topic_id": "topic-1",
            "exchanges": [{"character": "Ada Byrne", "asked": "Who?", "answer": " Ada. "}],
            **more,
        }
    )


def exchange(asked: str | None, answer: str | None, who: str = "Ada Byrne") -> dict[str, Any]:
    failed = asked is None or answer is None
    failure = {"cause": "timeout", "detail": "no answer"} if failed else None
    return {
        "character": who,
        "asked": asked,
        "answer": answer,
        "failure": failure,
        "passages": ["She is 61."],
    }


OURS = (
    ours(),
    ours(id="s2@m#rag", script_id="s2", method="rag", model="m", location="A pier", status="Busy"),
    ours(
        id="s3@m#prompt",
        script_id="s3",
        kind="multi",
        mode="live",
        interviewer="n",
        method="prompt",
        exchanges=[exchange("Who?", "Ada."), exchange("Why?", None), exchange(None, None)],
    ),
    ours(
        id="s4@m#prompt",
        script_id="s4",
        kind="transfer",
        mode="replayed",
        method="prompt",
        exchanges=[exchange("Who?", "艾达。"), exchange("And you?", "Ben.", "Ben")],
    ),
    ours(id="s5@m#rag", script_id="s5", exchanges=[exchange("Who?", None)], model="a/b", extra={"a": 1}),
    ours(id="s6@m#rag", script_id="s6", model="a-b", language="zh", tempting=True),
)  # fmt: skip


def test_what_is_exported_comes_back_as_it_was(tmp_path: Path) -> None:
    files = export_dialogues(OURS, tmp_path)
    assert all(path.is_file() and tmp_path in path.parents for path in files)
    back = import_dialogues([tmp_path])
    assert sorted(back.interviews, key=lambda one: one.id) == sorted(OURS, key=lambda one: one.id)
    assert [(x.place, x.cause) for x in back.left_out] == [
        ("entry 1, turn 1", "failed"),
        ("line 1, turn 2", "failed"),
        ("line 1, turn 3", "failed"),
    ]


@pytest.mark.parametrize("one", OURS, ids=lambda one: one.id)
def test_what_is_exported_can_be_asked_again(tmp_path: Path, one: Interview) -> None:
    people = [
        interviewee(Character(name=name, description="A person."), "en")
        for name in ("Ada Byrne", "Ben")
    ]
    (path,) = export_dialogues([one], tmp_path)
    if any(e.asked is None for e in one.exchanges):
        with pytest.raises(InputError, match="line 1: cannot be asked"):
            read_scripts([path], people)
        return
    (script,) = read_scripts([path], people)
    assert script.id == one.script_id
    assert [(t.character, t.asked) for t in script.turns] == [
        (e.character, e.asked) for e in one.exchanges
    ]


def test_two_models_never_share_a_folder(tmp_path: Path) -> None:
    files = export_dialogues([OURS[4], OURS[5]], tmp_path)
    assert len({path.parent for path in files}) == 2


def test_scripts_come_back_and_give_question_files(tmp_path: Path) -> None:
    asked = (
        InterviewScript(
            id="s1",
            kind="single",
            topic="the sea",
            topic_id="topic-1",
            turns=(ScriptTurn(character="Ada Byrne", asked="Who?"),),
            source="written by n",
        ),
        InterviewScript(
            id="s3",
            kind="multi",
            topic="the sea",
            turns=(ScriptTurn(character="Ada Byrne"),) * 3,
        ),
    )
    files = export_dialogues(OURS[:1] + OURS[2:3], tmp_path, scripts=asked)
    back = import_dialogues([tmp_path])
    assert set(map(canonical, back.scripts)) == set(map(canonical, asked))
    questions = {path.name: content(path) for path in files if path.parent.name == "questions"}
    assert questions == {
        "generated_agent_interview_ada-byrne.json": [
            {
                "topic_id": "topic-1",
                "topic": "personal information and past experiences",
                "question": "Who?",
            }
        ],
        "generated_agent_interview_for_multiturn_ada-byrne.json": [
            {"topic_id": "", "topic": "", "question": "the sea"}
        ],
    }


def canonical(script: InterviewScript) -> str:
    return canonical_json(script.to_dict())


def test_another_reader_of_these_shapes_finds_question_and_reply(tmp_path: Path) -> None:
    files = {path.name: content(path) for path in export_dialogues(OURS[:1] + OURS[3:4], tmp_path)}
    (entry,) = files["ada-byrne_single.json"]
    assert entry["question"] == "Who?"
    assert entry["reply"] == {"role": "Ada Byrne", "action": "(speaking)", "content": " Ada. "}
    (line,) = files["trans_dialogues.jsonl"]
    assert [turn["turn_role"] for turn in line["content"]] == ["interviewer", "character"] * 2
    assert [turn["turn_content"][0]["role"] for turn in line["content"]] == [
        "Man",
        "Ada Byrne",
        "Man",
        "Ben",
    ]


def test_a_place_from_a_file_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    path = single(tmp_path / "in", said("I keep the ferry."))
    (one,) = import_dialogues([path]).interviews
    for name in ("../../../x.json", "/etc/a/x.json", "a/../x.json", "a/b/c/x.json", "x.json"):
        kept = {**one.extra["neeko"], "file": name}
        (written,) = export_dialogues(
            [one.model_copy(update={"extra": {"neeko": kept}})], tmp_path / "out"
        )
        assert (tmp_path / "out").resolve() in written.resolve().parents


@pytest.mark.parametrize(
    "frame",
    [None, {}, {"question": True}, {"reply": 7}, {"content": [{"turn_content": True}]}],
)
def test_a_frame_that_somebody_changed_is_not_used(tmp_path: Path, frame: Any) -> None:
    (one,) = import_dialogues([single(tmp_path / "in", said("I keep the ferry."))]).interviews
    changed = one.model_copy(update={"extra": {"neeko": {**one.extra["neeko"], "entry": frame}}})
    (written,) = export_dialogues([changed], tmp_path / "out")
    assert content(written)[0]["reply"]["content"] == "I keep the ferry."


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e["personae"].pop("exchanges"),
        lambda e: e["personae"]["exchanges"].append({"character": "Ada"}),
        lambda e: e["personae"].update(interview=7),
        lambda e: e["personae"]["interview"].update(kind="none"),
        lambda e: e.update(personae=[]),
        lambda e: e.update(reply=[]),
    ],
)
def test_an_exported_entry_that_does_not_fit_is_refused_with_its_place(
    tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    (path,) = export_dialogues(OURS[:1], tmp_path)
    entries = content(path)
    change(entries[0])
    path.write_text(json.dumps(entries), "utf-8")
    with pytest.raises(InputError, match="entry 1"):
        import_dialogues([path])


def test_the_interviews_of_a_run_can_be_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "interviews.jsonl"
    path.write_text("".join(one.to_json() + "\n" for one in OURS), "utf-8")
    assert import_dialogues([path]).interviews == OURS
    again = tmp_path / "again.jsonl"
    again.write_text(path.read_text("utf-8"), "utf-8")
    with pytest.raises(InputError, match="stands twice"):
        import_dialogues([path, again])


def test_of_a_run_the_interviews_are_read_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "interviews.jsonl").write_text("".join(one.to_json() + "\n" for one in OURS), "utf-8")
    (run / "manifest.json").write_text('{"kind": "interview"}', "utf-8")
    (run / "results.jsonl").write_text('{"interview_id": "x"}\n', "utf-8")
    assert import_dialogues([run]).interviews == OURS
    assert import_dialogues([run.parent]).interviews == OURS


ADA = "Ada Byrne"


def run_of(folder: Path, interviews: Sequence[Interview], told: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    write_records(interviews, folder / "interviews.jsonl")
    kept = [InterviewProfile(name=name, text=text, source="a.json") for name, text in told.items()]
    write_records(kept, folder / "profiles.jsonl")
    return folder


def test_judges_of_an_imported_run_are_told_what_its_own_were_told(tmp_path: Path) -> None:
    run = run_of(tmp_path / "one", [ours()], {ADA: "She writes notes.", "Ben": "Unasked."})
    found = import_dialogues([run])
    assert [(p.name, p.text) for p in found.profiles] == [(ADA, "She writes notes.")]
    assert found.unknown == ()
    ada = interviewee(Character(name=ADA, description="A card."), "en", source="ada.json")
    (given,) = import_dialogues([run], [ada]).profiles
    assert given.text == ada.profile, "a card that is given comes first"


def test_two_runs_that_tell_other_things_of_a_character_are_not_taken_for_one(
    tmp_path: Path,
) -> None:
    other = ours(id="another")
    one = run_of(tmp_path / "one", [ours()], {ADA: "She writes notes."})
    two = run_of(tmp_path / "two", [other], {ADA: "She breeds horses."})
    with pytest.raises(
        InputError, match=r"two/profiles\.jsonl: says something else of 'Ada Byrne'"
    ):
        import_dialogues([one, two])


# The published files -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(shared_data: Callable[..., Path]) -> tuple[Path, Imported]:
    neeko = shared_data("neeko", "gen_results").parent
    return neeko, import_dialogues(
        [neeko / "gen_results", neeko / "trans_dialogues.jsonl", neeko / "questions"]
    )


def test_every_published_interview_is_imported(published: tuple[Path, Imported]) -> None:
    _, found = published
    assert Counter((one.model.split("/")[-1], one.kind) for one in found.interviews) == {
        ("chatgpt", "single"): 555,
        ("Neeko-7B", "single"): 555,
        ("character-llm-sft", "multi"): 300,
        ("chatgpt", "multi"): 300,
        ("neeko", "transfer"): 60,
    }
    # Six characters with five tempting questions each, answered by two systems.
    assert sum(one.tempting for one in found.interviews) == 60
    assert {p.name for p in found.profiles} == {
        "Ludwig van Beethoven",
        "Julius Caesar",
        "Cleopatra",
        "Isaac Newton",
        "Socrates",
        "Spartacus",
    }
    assert found.unknown == ("Hermione", "Lord Voldemort", "Martin")
    assert found.appended == {}
    assert len({one.id for one in found.interviews}) == len(found.interviews)


def test_what_cannot_be_scored_of_them_is_told(published: tuple[Path, Imported]) -> None:
    _, found = published
    assert Counter(causes(found)) == {"contaminated": 39, "not_spoken": 31, "one_role": 4}
    assert sum(one.failure is not None for one in found.interviews) == 53
    # Dialogues of one role are what the released script made of "Caesar" and "Julius Caesar".
    one_role = [x.place for x in found.left_out if x.cause == "one_role"]
    assert one_role == ["line 8", "line 23", "line 40", "line 55"]


def test_their_multi_turn_dialogues_were_each_led_in_their_own_words(
    published: tuple[Path, Imported],
) -> None:
    _, found = published
    assert {one.mode for one in found.interviews if one.kind == "multi"} == {"unknown"}


def test_a_second_system_with_their_interviewers_words_is_seen_to_replay(
    published: tuple[Path, Imported], tmp_path: Path
) -> None:
    neeko, _ = published
    path = neeko / "gen_results" / "interview_multi" / "chatgpt" / "Caesar_multi.jsonl"
    lines = content(path)
    for line in lines:
        for turn in line["content"]:
            if turn["turn_role"] == "character":
                turn["turn_content"][0]["content"] = "I came."
    again = multi(tmp_path, *lines, system="replayer")
    found = import_dialogues([path, again])
    assert Counter(one.mode for one in found.interviews) == {"replayed": 100}


def test_every_published_file_is_written_as_it_was(
    published: tuple[Path, Imported], tmp_path: Path
) -> None:
    neeko, found = published
    written = export_dialogues(found.interviews, tmp_path)
    assert len(written) == 25
    for path in written:
        relative = path.relative_to(tmp_path)
        original = neeko / "gen_results" / relative
        if relative.name == "trans_dialogues.jsonl":
            original = neeko / relative.name
        else:
            assert path.read_bytes() == original.read_bytes(), relative
        assert content(path) == content(original), relative


def test_what_was_written_of_them_is_read_as_the_same(
    published: tuple[Path, Imported], tmp_path: Path
) -> None:
    neeko, found = published
    some = tuple(
        one for one in found.interviews if "Caesar" in one.source or one.kind == "transfer"
    )
    export_dialogues(some, tmp_path / "data")
    (tmp_path / "data" / "profiles").symlink_to(neeko / "profiles")
    again = import_dialogues([tmp_path / "data", neeko / "questions"])
    assert len(some) == 92 * 2 + 50 * 2 + 60
    assert bare(again.interviews) == bare(some)
