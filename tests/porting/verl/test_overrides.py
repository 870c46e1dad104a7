"""Overrides of hydra, and interpolations."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.errors import ConfigError
from purerl.porting.outcomes import Unknown
from purerl.porting.verl.interpolation import resolve
from purerl.porting.verl.overrides import parse_override, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-6", 1e-6),
        ("1_000", 1000),
        ("True", True),
        ("null", None),
        ("None", None),
        ("", ""),
        ("'1'", "1"),
        ("token-mean", "token-mean"),
        ('[console, "wandb"]', ["console", "wandb"]),
        ("[]", []),
        ("[[1, 2], {a: b}]", [[1, 2], {"a": "b"}]),
        ("{a: 1, 'b': [x]}", {"a": 1, "b": ["x"]}),
        ("/a/b c.parquet", "/a/b c.parquet"),
        ("${a.b}", "${a.b}"),
        ("[a", "[a"),
        ("{a}", "{a}"),
        ("'it", "'it"),
    ],
)
def test_value(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("word", "key", "value", "deletes"),
    [
        ("+a.b=1", "a.b", 1, False),
        ("++a.b=x=y", "a.b", "x=y", False),
        ("~a.b", "a.b", "", True),
        ("a@b.c=d", "a", "d", False),
    ],
)
def test_override(word: str, key: str, value: Any, deletes: bool) -> None:
    assert parse_override(word) == (key, value, deletes)


def test_interpolations() -> None:
    values = {
        "a.n": 4,
        "a.m": "${.n}",
        "a.b.up": "${..n}",
        "same": "${a.m}",
        "text": "n${a.n}_${same}",
        "select": "${oc.select:a.x,${a.n}}",
        "null": "${oc.select:a.x,null}",
        "list": ["${a.n}"],
        "table": "${a.b}",
        "unknown": Unknown("$X", "f:1"),
        "of_unknown": "${unknown}",
    }
    found = resolve(values)
    assert found["a.m"] == found["a.b.up"] == found["same"] == found["select"] == 4
    assert (found["text"], found["null"], found["list"]) == ("n4_4", None, [4])
    assert found["of_unknown"] == Unknown("$X", "f:1")


def test_an_interpolation_that_cannot_be_resolved_is_an_error_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    values = {"a": "${b.c}", "d": "${oc.env:NO_SUCH_VARIABLE}", "e": "${now:%Y}", "f": "${f}", "g": 1}
    with pytest.raises(ConfigError) as error:
        resolve(values)
    need = "  need: a setting that is there, or a value in place of the interpolation"
    assert str(error.value).splitlines() == [
        *("a", "  got:  ${b.c}, and there is no b.c", need),
        *("d", "  got:  ${oc.env:NO_SUCH_VARIABLE}, and the environment variable NO_SUCH_VARIABLE is not set", need),
        *("e", "  got:  ${now:%Y}, and now is not known before a run", need),
        *("f", "  got:  ${f}, and it refers to itself", need),
    ]
