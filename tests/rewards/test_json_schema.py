"""The kind `json_schema`: a reward for completions that are JSON and valid under the schema of their row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from purerl.errors import ConfigError
from purerl.plugins import find
from purerl.rewards.kinds import json_schema
from purerl.rewards.kinds.json_schema import Config, build, check, columns, read_strict_json, row_check

pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[dev]'")

RIVER = {
    "type": "object",
    "properties": {
        "kilometers": {"type": "integer", "minimum": 10, "maximum": 6000},
        "towns": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
    },
    "required": ["kilometers", "towns"],
    "additionalProperties": False,
}


def score(completion: str, schema: Any = RIVER, partial: float = 0.0) -> float:
    return build(Config(partial=partial))(completion, {"schema": json.dumps(schema)})


@pytest.mark.parametrize(
    ("completion", "strict", "partial"),
    [
        ('{"kilometers": 740, "towns": ["A", "B"]}', 1.0, 1.0),
        (' \n{"towns":["A","B"],"kilometers":10}\n', 1.0, 1.0),
        ('{"kilometers": 9, "towns": ["A", "B"]}', 0.0, 0.25),  # below the minimum
        ('{"kilometers": "740", "towns": ["A", "B"]}', 0.0, 0.25),
        ('{"kilometers": 740, "towns": ["A"]}', 0.0, 0.25),
        ('{"kilometers": 740, "towns": ["A", 2]}', 0.0, 0.25),
        ('{"kilometers": 740}', 0.0, 0.25),
        ('{"kilometers": 740, "towns": ["A", "B"], "depth": 3}', 0.0, 1 / 3),
        ('{"depth": 3}', 0.0, 0.0),
        ("{}", 0.0, 0.0),
        ("[740]", 0.0, 0.0),
        ("null", 0.0, 0.0),
        ('```json\n{"kilometers": 740, "towns": ["A", "B"]}\n```', 0.0, 0.0),
        ('The answer is {"kilometers": 740, "towns": ["A", "B"]}', 0.0, 0.0),
        ('{"kilometers": 740, "towns": ["A", "B"]', 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_reward_is_1_for_valid_answers_and_a_share_for_others(completion: str, strict: float, partial: float) -> None:
    assert score(completion) == strict
    assert score(completion, partial=0.5) == pytest.approx(partial)


@pytest.mark.parametrize(
    "completion",
    [
        '{"n": 1, "n": 2}',
        '{"n": NaN}',
        '{"n": Infinity}',
        '{"n": 1e999}',
        '{"n": ' + "9" * 400 + "}",
        '{"n": ' + "9" * 5000 + "}",
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_text_that_python_reads_and_that_is_no_portable_json_has_no_reward(completion: str) -> None:
    assert score(completion, {}) == 0.0
    assert score('{"n": 1}', {}) == 1.0


def test_a_value_that_is_no_object_can_be_valid() -> None:
    assert score("[1, 2]", {"type": "array", "items": {"type": "integer"}}, partial=0.5) == 1.0
    assert score("null", {"type": "null"}) == 1.0
    assert score("3", True) == 1.0
    assert score('{"a": 1}', False, partial=0.5) == 0.0


def test_references_within_the_schema_are_followed() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/word"}, "b": {}}, "$defs": {"word": {"type": "string"}}}
    assert score('{"a": "x"}', schema) == 1.0
    assert score('{"a": 1, "b": 2}', schema, partial=0.5) == 0.25


def test_other_files_are_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib import request

    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(request, "urlopen", no_network)
    with pytest.raises(Exception, match=r"https://example\.org/schema\.json"):
        score("{}", {"$ref": "https://example.org/schema.json"})


def test_schema_names_its_draft() -> None:
    fourth = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}
    assert [score(text, fourth) for text in ("3", "4")] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({}, "'schema'"),
        ({"schema": {"type": "object"}}, "the column schema has dict, and not the JSON text of a schema"),
        ({"schema": "[1]"}, "the column schema has '[1]', which is no JSON Schema"),
        ({"schema": '{"type": "text"}'}, "the column schema has no JSON Schema: 'text' is not valid under any of the"),
        ({"schema": "{"}, "Expecting property name"),
    ],
)
def test_rows_without_a_usable_schema_are_refused(row: dict[str, Any], error: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)) as raised:
        row_check(Config())(row)
    assert error in str(raised.value)


def test_a_partial_reward_of_1_is_refused() -> None:
    for value in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="at least 0 and below 1"):
            Config(partial=value)


def test_the_package_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    check(Config())
    monkeypatch.setattr(json_schema, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        check(Config())
    assert "need the package jsonschema" in str(raised.value).replace(":", "")
    assert "[json]" in str(raised.value)


def test_it_is_a_kind_that_reads_the_column() -> None:
    assert find("reward", "json_schema") is json_schema
    assert columns(Config()) == ["schema"]
    assert read_strict_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
