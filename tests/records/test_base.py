"""What all records promise: frozen, closed, JSON there and back, one hash per content."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import personae.records
from personae.errors import InputError
from personae.records import Estimate, Manifest, Persona, Record, canonical_json, content_hash
from tests.records.strategies import ALL, json_value

every = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


def test_every_public_record_is_tested_here() -> None:
    public = {
        value
        for value in vars(personae.records).values()
        if isinstance(value, type) and issubclass(value, Record) and value is not Record
    }
    assert set(ALL) == public


@every
@settings(max_examples=30)
@given(data=st.data())
def test_every_record_comes_back_from_one_line_of_json(
    kind: type[Record], data: st.DataObject
) -> None:
    record = data.draw(ALL[kind])
    line = record.to_json()
    line.encode()
    assert "\n" not in line
    assert "\r" not in line
    again = kind.from_dict(json.loads(line))
    assert again == record
    assert kind.model_validate_json(line) == record
    assert content_hash(again.to_dict()) == content_hash(record.to_dict())


@every
@settings(max_examples=2)
@given(data=st.data())
def test_a_record_takes_no_unknown_field(kind: type[Record], data: st.DataObject) -> None:
    value = data.draw(ALL[kind]).to_dict()
    with pytest.raises(InputError, match="Extra inputs are not permitted"):
        kind.from_dict({**value, "surprise": 1})


@every
@settings(max_examples=2)
@given(data=st.data())
def test_a_record_cannot_be_changed(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(ALL[kind])
    name = next(iter(kind.model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, name, getattr(record, name))


@pytest.mark.parametrize("value", [None, 1, "x", [], [["id", "x"]], b"{}"])
def test_what_is_no_object_is_an_input_error(value: Any) -> None:
    with pytest.raises(InputError, match="not a valid Persona"):
        Persona.from_dict(value)


def test_an_input_error_names_file_place_field_and_fault() -> None:
    with pytest.raises(InputError) as caught:
        Persona.from_dict({"id": "", "description": 7}, path="x.jsonl", place="line 3")
    assert str(caught.value).startswith("x.jsonl, line 3: not a valid Persona: id: String should")
    assert "description: Input should be a valid string" in str(caught.value)


def test_only_the_first_three_faults_are_told() -> None:
    with pytest.raises(InputError, match=r"\(and 3 more\)$"):
        Manifest.from_dict({"surprise": 1, "another": 2})


@given(json_value, st.randoms())
def test_the_order_of_keys_does_not_change_the_hash(value: Any, random: Any) -> None:
    def shuffled(node: Any) -> Any:
        if isinstance(node, dict):
            keys = list(node)
            random.shuffle(keys)
            return {key: shuffled(node[key]) for key in keys}
        return [shuffled(n) for n in node] if isinstance(node, list) else node

    assert content_hash(shuffled(value)) == content_hash(value)


@given(json_value)
def test_canonical_json_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


def test_the_spelling_under_the_hash_is_fixed() -> None:
    # Hashes stand in files: another spelling would orphan every journal and benchmark.
    assert canonical_json({"b": [1, 2.5, None, True], "a": "é文"}) == (
        '{"a":"é文","b":[1,2.5,null,true]}'
    )
    assert content_hash({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": number})
    with pytest.raises(InputError, match="finite"):
        Estimate.from_dict({"mean": number, "low": None, "high": None, "n": 1, "missing": 0})
