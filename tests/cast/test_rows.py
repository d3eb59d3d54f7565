"""Training rows out of whatever there is: read, checked, counted, written, split."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import personae
from personae.cast.encode import encode_all
from personae.cast.rows import (
    MAX_CHARS,
    MAX_TURNS,
    Refused,
    data_sources,
    read_data,
    read_rows,
    split,
    summary,
    write_rows,
)
from personae.characters.card import card_of
from personae.characters.png import Png
from personae.errors import InputError, UsageError
from personae.records import (
    CastRow,
    CastTurn,
    Character,
    DataSource,
    DialogueTurn,
    Persona,
    PersonaeExtension,
    Question,
    ResultRow,
    Task,
)
from personae.records.benchmark import Benchmark
from tests.records.cast_strategies import row as any_row

AI = "As an AI language model, I cannot pretend to be Ada."


def talk(*texts: str, name: str = "Ada", **more: Any) -> dict[str, Any]:
    """A dialogue of person and character by turns."""
    messages = [
        {"role": "assistant", "name": name, "content": t}
        if n % 2
        else {"role": "user", "content": t}
        for n, t in enumerate(texts)
    ]
    return {"messages": messages, **more}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def made(number: int, *names: str, source: str = "") -> CastRow:
    return CastRow(
        characters=names,
        turns=tuple(CastTurn(speaker=name, text=f"line {number}") for name in names),
        source=source or f"talk.jsonl, line {number}",
    )


# What is read


def test_a_row_knows_its_file_its_line_its_licence_and_its_language(tmp_path: Path) -> None:
    file = write(
        tmp_path / "talk.jsonl",
        talk("Well?", "Quite.", licence="MIT"),
        talk("你好。", "请坐，今天天气很好。", name="文君"),
    )
    (english, chinese), refused = read_rows([file], licence="CC-BY-4.0")
    assert refused == []
    assert english.source == f"{file}, line 1"
    assert english.licence == "MIT"
    assert (chinese.licence, chinese.language) == ("CC-BY-4.0", "zh")
    assert english.characters == ("Ada",)
    assert english.turns == (CastTurn(text="Well?"), CastTurn(speaker="Ada", text="Quite."))


def test_a_licence_file_beside_the_data_says_nothing_about_a_row(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("Apache License", "utf-8")
    ((row,), _) = read_rows([write(tmp_path / "talk.jsonl", talk("Well?", "Quite."))])
    assert row.licence is None


@pytest.mark.parametrize("name", ["data", "data.png", "data.txt", "results.jsonl"])
def test_the_content_tells_the_shape_and_not_the_name(name: str, tmp_path: Path) -> None:
    rows, _ = read_rows([write(tmp_path / name, talk("Well?", "Quite."))])
    assert len(rows) == 1


def test_a_list_over_many_lines_and_an_object_alone_are_read_too(tmp_path: Path) -> None:
    listed, alone = tmp_path / "listed.json", tmp_path / "alone.json"
    listed.write_text(json.dumps([talk("A?", "B."), talk("C?", "D.")], indent=2), "utf-8")
    alone.write_text(json.dumps(talk("E?", "F."), indent=2), "utf-8")
    rows, _ = read_rows([listed, alone])
    assert [r.source.rpartition(", ")[2] for r in rows] == ["entry 1", "entry 2", "the whole"]


def test_names_of_one_character_become_one(tmp_path: Path) -> None:
    file = write(
        tmp_path / "talk.jsonl",
        talk("Well?", "Quite.", name="Lovelace"),
        made(1, "Lovelace", "Bob").to_dict(),
    )
    rows, _ = read_rows([file], names={"Lovelace": "Ada"})
    assert [r.characters for r in rows] == [("Ada",), ("Ada", "Bob")]
    assert rows[1].turns[0].speaker == "Ada"


def test_a_folder_is_all_its_files_and_what_is_none_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", talk("Well?", "Quite."))
    (tmp_path / "b.json").write_text('{"settings": true}', "utf-8")
    (tmp_path / "notes.txt").write_text("not looked at", "utf-8")
    rows, (refused,) = read_rows([tmp_path])
    assert len(rows) == 1
    assert refused.file.endswith("b.json")
    assert not refused.kept


def test_lines_of_one_speaker_in_a_row_are_one_turn(tmp_path: Path) -> None:
    messages = [{"speaker": "Ada", "content": "One."}, {"speaker": "Ada", "content": "Two."}]
    ((row,), _) = read_rows([write(tmp_path / "t.jsonl", {"messages": messages})])
    assert row.turns == (CastTurn(speaker="Ada", text="One.\nTwo."),)


# What is refused


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (AI, "refusal"),
        ("", "empty"),
        ("Yes.<|im_end|><|im_start|>user", "somebody else's line"),
        ("I want you to act like Ada. Yes.", "holds its prompt"),
        ("Yes. Man (speaking): And?", "somebody else's line"),
        ("Well?", "holds its prompt"),
    ],
)
def test_an_answer_that_is_none_is_reported_and_not_learnt(
    answer: str, why: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "t.jsonl", talk("Well?", answer), talk("Well?", "Quite."))
    rows, (refused,) = read_rows([file])
    assert [row.source for row in rows] == [f"{file}, line 2"]
    assert (refused.file, refused.place, refused.kept) == (str(file), "line 1", False)
    assert refused.why.startswith("turn 2: ")
    assert why in refused.why


def test_of_a_dialogue_that_goes_wrong_what_came_before_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", talk("One?", "One.", "Two?", AI, "Three?", "Three."))
    ((row,), (refused,)) = read_rows([file])
    assert [turn.text for turn in row.turns] == ["One?", "One."]
    assert refused.kept
    assert "turn 4: the answer is a refusal; 3 turns from there on" in refused.why


def test_what_another_says_is_not_judged(tmp_path: Path) -> None:
    ((row,), refused) = read_rows([write(tmp_path / "t.jsonl", talk(AI, "You are a strange one."))])
    assert row.turns[0].text == AI
    assert refused == []


def test_the_same_dialogue_is_taken_once(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", talk("A?", "B."), talk("A?", "B."), talk("A?", "C."))
    rows, (refused,) = read_rows([file])
    assert len(rows) == 2
    assert refused.why == f"the same dialogue as {file}, line 1"


def test_no_character_is_called_as_the_block_of_all(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", talk("A?", "B.", name="shared"), made(1, "shared").to_dict())
    rows, refused = read_rows([file])
    assert rows == []
    assert [r.place for r in refused] == ["line 1", "line 2"]


def test_what_is_too_much_for_a_dialogue_is_refused(tmp_path: Path) -> None:
    file = write(
        tmp_path / "t.jsonl",
        talk("A?", "B" * (MAX_CHARS + 1)),
        talk(*(["A?", "B."] * (MAX_TURNS // 2 + 1))),
    )
    rows, refused = read_rows([file])
    assert rows == []
    assert "no utterance" in refused[0].why
    assert "are allowed" in refused[1].why


def test_a_row_of_another_shape_among_others_is_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", talk("A?", "B."), {"id": 3}, {"messages": []})
    rows, refused = read_rows([file])
    assert len(rows) == 1
    assert [(r.place, r.why) for r in refused] == [
        ("line 2", "of no known shape"),
        ("line 3", "no list of messages"),
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"[]", "is empty"),
        (b"hello", "neither rows nor a card"),
        (b"\x00\x01", "neither rows nor a card"),
        (b"\x89PNG\r\n\x1a\n", "neither rows nor a card"),
        (b'{"id": 1}\n{"id": 2}', "nothing in it is of a known shape"),
        (b'{"id": 1}', "neither rows nor a card"),
        (b'[{"id": 1}]', "nothing in it is of a known shape"),
        (b"[1, 2]", "nothing in it is of a known shape"),
        (b'{"messages": [}', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": "\xff"}', "not UTF-8"),
    ],
)
def test_a_file_that_holds_no_rows_is_an_error_that_names_it(
    content: bytes, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=complaint) as caught:
        read_rows([file])
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("levels", [200, 490, 900, 5_000])
def test_a_row_that_is_nested_deeply_breaks_nothing(levels: int, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    inner = "[" * levels + "]" * levels
    file.write_text('{"messages": [], "more": ' + inner + "}\n" + json.dumps(talk("A?", "B.")))
    try:
        rows, refused = read_rows([file])
    except InputError as error:
        assert error.what == "not JSON (nested too deeply)"  # noqa: PT017  (or it is read)
        return
    assert (len(rows), len(refused)) == (1, 1)


def test_half_of_a_surrogate_pair_is_no_text_and_breaks_nothing(tmp_path: Path) -> None:
    half = "\ud800"
    good = talk("Well?" + half, "Quite." + half, name="A" + half, system=half, licence=half)
    bad = talk("Well?", AI + half, name="A" + half)
    file = write(tmp_path / "t\udcff.jsonl", good, bad, {"messages": [{"role": half}]})
    ((row,), refused) = read_rows([file])
    assert row.turns[1] == CastTurn(speaker="A\ufffd", text="Quite.\ufffd")
    assert (row.system, row.licence) == ("\ufffd", "\ufffd")
    assert "t\ufffd.jsonl, line 1" in row.source
    assert [r.place for r in refused] == ["line 2", "line 3"]
    write_rows([row], tmp_path / "rows.jsonl")
    assert read_rows([tmp_path / "rows.jsonl"])[0] == [row]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60)
    | st.tuples(
        st.sampled_from([b"", b"[", b"\n", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04", b"\xef\xbb\xbf"]),
        st.sampled_from([b'{"messages": [', b'{"prompt": "', b'{"spec": "chara_card_v2"']),
        st.binary(max_size=40),
    ).map(b"".join)
)
def test_no_file_whatever_it_holds_does_worse_than_an_input_error(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(content)
    try:
        rows, refused = read_rows([tmp_path / "x"])
    except InputError:
        return
    assert rows or refused


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_rows([tmp_path / "nothing.jsonl"])
    with pytest.raises(InputError, match=r"holds no \.jsonl"):
        read_rows([tmp_path])
    (tmp_path / "b.json").write_text('{"settings": true}', "utf-8")
    with pytest.raises(InputError, match=r"no file in it can be read .*b\.json"):
        read_rows([tmp_path])


# Cards


CARD = Character(
    name="Ada",
    nickname="Countess",
    mes_example="<START>\n{{user}}: Who are you?\n{{char}}: The {{char}}, {{user}}.\n"
    "<START>\n{{char}}: " + AI,
    first_mes="Never learnt.",
    alternate_greetings=("Nor this.",),
    extensions={
        "personae": PersonaeExtension(
            dialogue=(DialogueTurn(user="And now?", character="Now I count."),)
        ).to_dict()
    },
)


@pytest.mark.parametrize("container", ["json", "png"])
def test_a_card_teaches_its_examples_and_its_dialogue(container: str, tmp_path: Path) -> None:
    file = tmp_path / "card"
    card = card_of(CARD)
    if container == "png":
        from dataclasses import replace

        picture = (
            b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00"
            b"\x00\x1f\x15\xc4\x89\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4"
            b"\x00\x00\x00\x00IEND\xaeB`\x82"
        )
        card = replace(card, png=_png(picture), raw=None)
    file.write_bytes(card.to_bytes())
    rows, refused = read_rows([file], licence="MIT")
    assert refused == []
    assert [[(t.speaker, t.text) for t in row.turns] for row in rows] == [
        [(None, "Who are you?"), ("Ada", "The Countess, someone.")],
        [("Ada", AI)],  # its author meant it: perhaps Ada is a machine
        [(None, "And now?"), ("Ada", "Now I count.")],
    ]
    assert {row.licence for row in rows} == {"MIT"}
    assert rows[0].source == f"{file}, example 1"


def _png(picture: bytes) -> Png:
    from personae.characters.png import read_png

    return read_png(picture, path="x.png")


def test_a_card_without_a_line_of_its_character_is_told(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(card_of(Character(name="Ada")).to_bytes())
    rows, (refused,) = read_rows([file])
    assert rows == []
    assert "shows no line" in refused.why


def test_every_starter_card_teaches_something() -> None:
    from personae.characters.starter import starter_cast

    rows, _ = read_rows([Path(personae.__file__).parent / "data" / "cast"])
    assert {row.characters[0] for row in rows} == {c.name for c in starter_cast().values()}


def test_characters_already_read_and_starters_teach_as_their_cards_do() -> None:
    found = read_data([CARD, "starter:ada-lovelace"])
    assert list(found.cards) == ["Ada", "Ada Lovelace"]
    assert [row.source for row in found.rows][:1] == ["card of Ada, example 1"]
    starters = [row for row in found.rows if row.characters == ("Ada Lovelace",)]
    assert len(starters) >= 40
    assert {row.licence for row in starters} == {"Apache-2.0"}
    assert read_rows([CARD], names={"Ada": "Lovelace"})[0][0].characters == ("Lovelace",)


def test_cards_among_the_files_are_handed_out_by_the_names_that_rows_use(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(card_of(CARD).to_bytes())
    cards = read_data([file], names={"Ada": "Lovelace"}).cards
    assert {name: card.ours for name, card in cards.items()} == {"Lovelace": CARD.ours}


# Runs


def run_of_eval(folder: Path) -> Path:
    from personae.interview.benchmark_file import write_benchmark

    person = Persona(id="smith", description="A smith from York")
    questions = tuple(
        Question(id=f"q{n}", persona_id="smith", task=Task.EXPECTED_ACTION, text=f"Question {n}?")
        for n in range(4)
    )
    write_benchmark(Benchmark(personas=(person,), questions=questions), folder / "benchmark.jsonl")
    answers = ["I strike.", "I quench.", AI, None]
    rows = [
        ResultRow(
            unit_id=f"q{n}@m",
            model="m",
            persona="smith",
            task=Task.EXPECTED_ACTION,
            question_id=f"q{n}",
            question=f"Question {n}?",
            answer=answer,
            judge=judge,
            score=score,
            failure=None if score else {"cause": "x"},
        )
        for n, answer in enumerate(answers)
        for judge, score in (("one", None if answer is None else 5 - n), ("two", 3))
    ]
    write(folder / "results.jsonl", *(row.to_dict() for row in rows))
    return folder


def test_a_run_of_eval_teaches_its_answers_once_under_their_persona(tmp_path: Path) -> None:
    folder = run_of_eval(tmp_path)
    for path in (folder, folder / "results.jsonl"):
        rows, refused = read_rows([path])
        assert [row.turns[-1].text for row in rows] == ["I strike.", "I quench."]
        assert rows[0].characters == ("smith",)
        assert "a smith from York" in rows[0].system
        assert rows[0].source == f"{folder / 'results.jsonl'}, unit q0@m"
        assert [(r.place, r.why) for r in refused] == [
            ("unit q2@m", "the answer is a refusal"),
            ("unit q3@m", "there is no answer"),
        ]


def test_a_least_score_is_the_mean_of_all_judges(tmp_path: Path) -> None:
    rows, refused = read_rows([run_of_eval(tmp_path)], least_score=4)
    assert [row.turns[-1].text for row in rows] == ["I strike."]  # (5 + 3) / 2
    assert "a mean score of 3.50, at least 4 is asked for" in [r.why for r in refused]


def test_results_without_their_benchmark_are_an_error(tmp_path: Path) -> None:
    folder = run_of_eval(tmp_path)
    (folder / "benchmark.jsonl").unlink()
    with pytest.raises(InputError, match="who the characters are"):
        read_rows([folder])


# Writing


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(any_row, min_size=1, max_size=4))
def test_rows_come_back_as_they_were_written(rows: list[CastRow], tmp_path: Path) -> None:
    write_rows(rows, tmp_path / "rows.jsonl")
    assert read_rows([tmp_path / "rows.jsonl"]) == (rows, [])


def test_a_row_of_ours_without_a_licence_takes_the_callers_word(tmp_path: Path) -> None:
    write_rows([made(1, "Ada")], tmp_path / "rows.jsonl")
    ((row,), _) = read_rows([tmp_path / "rows.jsonl"], licence="MIT")
    assert row.licence == "MIT"


# Splitting


def test_a_split_takes_its_share_of_every_character_and_is_the_same_again() -> None:
    rows = [made(n, name) for name in ("Ada", "Bob") for n in range(20 if name == "Ada" else 10)]
    rows = [r.model_copy(update={"source": f"f, {n}"}) for n, r in enumerate(rows)]
    train, tuned = split(rows, 0.2, seed=1)
    assert Counter(r.characters[0] for r in tuned) == {"Ada": 4, "Bob": 2}
    assert sorted(r.source for r in (*train, *tuned)) == sorted(r.source for r in rows)
    again = split(rows[::-1], 0.2, seed=1)
    assert {r.source for r in again[1]} == {r.source for r in tuned}
    assert {r.source for r in split(rows, 0.2, seed=2)[1]} != {r.source for r in tuned}


@given(rows=st.lists(any_row, max_size=8), share=st.floats(0, 0.99), seed=st.integers(0, 9))
def test_a_split_loses_no_row_and_leaves_something_to_train_on(
    rows: list[CastRow], share: float, seed: int
) -> None:
    train, tuned = split(rows, share, seed)
    assert sorted(r.to_json() for r in (*train, *tuned)) == sorted(r.to_json() for r in rows)
    assert train or not rows
    if share == 0:
        assert tuned == []


def test_a_play_as_its_characters_saw_it_stays_on_one_side() -> None:
    rows = [
        made(n, name, source=f"plays.jsonl, line {n}") for n in range(10) for name in ("Ada", "Bob")
    ]
    train, tuned = split(rows, 0.3)
    assert len(tuned) == 6
    assert {r.source for r in train}.isdisjoint(r.source for r in tuned)


def test_rows_that_cannot_tell_where_they_stand_are_still_dialogues_of_their_own() -> None:
    rows = [made(n, "Ada", source="my notes") for n in range(10)]
    train, tuned = split(rows, 0.3)
    assert (len(train), len(tuned)) == (7, 3)


def test_one_dialogue_is_trained_on_and_of_two_one_is_tuned_on() -> None:
    assert split([made(1, "Ada")], 0.5)[1] == []
    assert len(split([made(1, "Ada"), made(2, "Ada")], 0.01)[1]) == 1


@pytest.mark.parametrize("share", [-0.1, 1, float("nan")])
def test_a_share_outside_its_range_is_an_error(share: float) -> None:
    with pytest.raises(UsageError, match="share"):
        split([], share)


# Counting


def test_a_summary_counts_rows_turns_tokens_and_licences(tiny_base: Path) -> None:
    from transformers import AutoTokenizer

    rows = [
        made(1, "Ada", "Bob").model_copy(update={"licence": "MIT"}),
        made(2, "Ada", source="other.jsonl, line 1"),
    ]
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    for mode, each in (("full", 7), ("speaker", 8)):  # "line 1", its end, and a space before it
        encoded, _ = encode_all(rows, tokenizer, mode, 2000)  # type: ignore[arg-type]  # a mode
        found = summary(rows, encoded)
        assert (found.rows, found.turns) == (2, 3)
        assert found.licences == {"MIT": 1, "": 1}
        assert found.characters["Ada"].tokens == 2 * each
        assert found.characters["Bob"].tokens == each
        assert found.characters["Ada"].licences == {"MIT": 1, "": 1}
        assert (found.characters["Ada"].rows, found.characters["Ada"].turns) == (2, 2)
    assert summary(rows).characters["Ada"].tokens is None
    assert summary(rows).sources == (
        DataSource(source="talk.jsonl", licence="MIT", rows=1),
        DataSource(source="other.jsonl", licence=None, rows=1),
    )
    assert data_sources(rows, "Bob") == (DataSource(source="talk.jsonl", licence="MIT", rows=1),)


# The public data

SIX = {"Beethoven", "Caesar", "Cleopatra", "Newton", "Socrates", "Spartacus"}


def test_the_published_dialogues_are_read_and_what_is_wrong_in_them_is_told(
    shared_data: Callable[..., Path],
) -> None:
    folder = shared_data("neeko", "gen_results", "interview_multi", "chatgpt")
    rows, refused = read_rows([folder], licence="CC-BY-NC-4.0")
    assert Counter(row.characters[0] for row in rows) == dict.fromkeys(SIX, 50)
    assert {row.licence for row in rows} == {"CC-BY-NC-4.0"}
    assert all(len(row.turns) % 2 == 0 for row in rows)
    ran_on = [r for r in refused if "runs on into another's line" in r.why]
    texts = [file.read_text("utf-8") for file in folder.iterdir()]
    dialogues = [json.loads(line) for text in texts for line in text.split("\n") if line]
    said = [[p["role"] for p in t["turn_content"]] for d in dialogues for t in d["content"]]
    assert len(ran_on) == sum(len(set(roles)) > 1 for roles in said) > 20
    assert all(r.kept for r in refused)


def test_the_published_answers_are_read(shared_data: Callable[..., Path]) -> None:
    for who in (("icl_interview_single", "chatgpt"), ("interview_single", "Neeko-7B")):
        rows, refused = read_rows([shared_data("neeko", "gen_results", *who)])
        assert len(rows) + len(refused) == 555  # 82 + 92 + 98 + 95 + 94 + 94
        assert {row.characters[0] for row in rows} == SIX
        assert not any("I want you to act" in row.turns[1].text for row in rows)


def test_published_thoughts_are_told_and_left_out(shared_data: Callable[..., Path]) -> None:
    folder = shared_data("neeko", "gen_results", "interview_multi", "character-llm-sft")
    rows, refused = read_rows([folder])
    thoughts = [r for r in refused if "thought" in r.why]
    assert sum(int(r.why.split()[0]) for r in thoughts) == 31  # 3 + 2 + 26, by its mark
    kept, _ = read_rows([folder], thoughts="keep")
    assert sum("(thinking)" in t.text for row in kept for t in row.turns) > 20
    assert not any("(thinking)" in t.text for row in rows for t in row.turns)


def test_published_dialogues_of_many_characters_keep_them_all(
    shared_data: Callable[..., Path],
) -> None:
    rows, _ = read_rows([shared_data("neeko", "trans_dialogues.jsonl")])
    assert len(rows) == 60
    assert {name for row in rows for name in row.characters} > SIX
    assert all(len(row.turns) == 10 for row in rows)


def test_a_refusal_record_is_a_line_of_json() -> None:
    one = Refused(file="f", place="line 1", why="empty")
    assert Refused.from_dict(json.loads(one.to_json())) == one
