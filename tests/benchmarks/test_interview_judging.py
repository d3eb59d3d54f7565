"""The benchmark of judging counts prefixes as one can by hand, and reads the paper's prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from personae.judging.interview_metrics import METRICS
from personae.records.interview import InterviewProfile
from tests.benchmarks.loading import load
from tests.judging.interviews import an_interview

judging = load("interview_judging")


def letters(texts: Sequence[str]) -> list[NDArray[np.uint32]]:
    """A token is a letter."""
    return [np.array([ord(c) for c in text], dtype=np.uint32) for text in texts]


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [(["abc"], 0), (["abc", "abd"], 2), (["abc", "abc"], 3), (["b", "ab", "a"], 1),
     (["abcd", "abxy", "abxz", "q"], 2 + 3), (["a\u0100", "a\u00ff", "b"], 1)],
)  # fmt: skip
def test_a_prefix_that_another_prompt_has_is_reused_once(texts: list[str], tokens: int) -> None:
    assert judging.reused(letters(texts)) == tokens
    assert judging.reused(letters(texts[::-1])) == tokens


def test_a_cost_is_of_all_messages_by_dialogue_and_by_character() -> None:
    one, two = an_interview("Yes."), an_interview("No.", script="s2")
    other = an_interview("No.", script="s3", characters=("Bede",))

    def prompts(interview: object) -> dict[str, tuple[str, ...]]:
        name = {id(one): "x", id(two): "y", id(other): "y"}[id(interview)]
        return {"CB": ("ab", name + "1"), "CU": ("ab", name + "2")}

    found = judging.cost([one, two, other], prompts, letters)
    assert (found.dialogues, found.calls, found.tokens) == (3, 6, 24)
    assert found.within == 3 + 3 + 3
    assert found.over == (3 + 2 + 3) + 3  # Ada's two dialogues share "ab", Bede's has no other
    assert found.shared == 3


def paper(keys: Sequence[str]) -> str:
    lines = ["B.3 Prompts for LLMs as Evaluator"]
    for key in keys:
        lines += [
            f"| Prompt for Evaluation of Something ({key}) |",
            f"| You will be given responses of {{agent_name}}: {{agent_context}} {key} |",
        ]
    return "\n".join(lines)


def test_the_papers_prompts_are_found_by_their_metrics() -> None:
    printed = ["Stab." if key == "Stab" else key for key in METRICS]
    found = judging.paper_prompts(paper(printed))
    assert set(found) == set(METRICS)
    assert found["Stab"].endswith("{agent_context} Stab.")


def test_a_paper_without_one_of_the_prompts_is_an_error() -> None:
    with pytest.raises(ValueError, match="only"):
        judging.paper_prompts(paper(METRICS[1:]))


def test_a_template_is_filled_once_and_with_every_turn() -> None:
    interview = an_interview("{status}", "I hum.", status="Calm.")
    template = "{agent_name}|{agent_context}|{loc_time}|{status}|{interactions}"
    assert judging.filled(template, interview, {"Ada": "A ferrywoman."}) == (
        "Ada|A ferrywoman.|On the ferry|Calm.|"
        "Man: Question 1?\nAda: {status}\nMan: Question 2?\nAda: I hum."
    )


def test_the_first_paragraph_follows_the_title() -> None:
    text = "# Ada of Orle\n\nA ferrywoman.\n\nShe hums."
    assert judging.first_paragraph(text) == ("Ada of Orle", "A ferrywoman.")


def test_the_arms_ask_the_same_metrics_of_the_same_interview() -> None:
    profiles = {"Ada": InterviewProfile(name="Ada", text="All of her.")}
    templates = {key: f"AI assistant mimicking {key} {{interactions}}" for key in METRICS}
    interview = an_interview("Yes.", "No.")
    arms = list(judging.arms(templates, profiles, {"Ada": "A line of her."}))
    asked = {name: prompts(interview) for name, prompts in arms}
    assert {tuple(found) for found in asked.values()} == {METRICS[:7]}
    released, printed, short, whole = (list(found.values()) for found in asked.values())
    assert [a == b for a, b in zip(released, printed, strict=True)].count(False) == 1
    assert "A line of her." in short[0][1]
    assert "All of her." in whole[0][1]
