from __future__ import annotations

import json

import pytest

from personae.reports import report_document

from .sample import make_data

ESTIMATE = {"mean", "low", "high", "n", "missing"}


def test_the_document_has_the_keys_of_the_contract():
    document = report_document(make_data())
    assert {"models", "judges", "agreement", "calls", "cost"} <= set(document)
    for model in document["models"]:
        assert {
            "model", "persona_score", "tasks", "n_answers", "refusal_rate", "lift",
        } <= set(model)  # fmt: skip
        assert set(model["persona_score"]) == ESTIMATE
        assert len(model["tasks"]) == 5
        assert all(set(task) == ESTIMATE for task in model["tasks"].values())
        assert set(model["lift"]) == ESTIMATE
    assert {"alpha", "low", "high"} <= set(document["agreement"])
    assert {"made", "reused", "failed"} <= set(document["calls"])
    assert {"usd", "tokens_in", "tokens_out"} <= set(document["cost"])


def test_the_document_is_json_and_holds_no_nan():
    text = json.dumps(report_document(make_data(lost=1.0)), allow_nan=False)
    assert json.loads(text)["models"][0]["persona_score"]["mean"] is None


@pytest.mark.parametrize("state", ["passed", "failed", "none"])
def test_each_judge_has_the_state_of_its_audit(state):
    document = report_document(make_data(judges=("j",), states=(state,), models=("m",)))
    (judge,) = document["judges"]
    assert (judge["model"], judge["audit"]) == ("j", state)


def test_where_no_lift_was_measured_lift_is_null():
    document = report_document(make_data(judges=("j",), states=("none",)))
    assert [model["lift"] for model in document["models"]] == [None, None]


def test_where_there_is_no_agreement_it_is_null_with_its_reason():
    document = report_document(make_data(judges=("j", "j")))
    assert document["agreement"] is None
    assert document["agreement_reason"]


def test_an_unknown_cost_is_null():
    assert report_document(make_data())["cost"]["usd"] is None


def test_below_two_personas_the_interval_is_null():
    score = report_document(make_data(people=1, lost=0))["models"][0]["persona_score"]
    assert score["n"] == 1
    assert score["mean"] is not None
    assert (score["low"], score["high"]) == (None, None)
