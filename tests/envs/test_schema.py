"""Schemas of Python functions, and the arguments of calls."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.envs.schema import convert_arguments, tool_schema
from purerl.errors import ConfigError


class Unit(enum.Enum):
    METER = "m"
    MILE = "mi"


class Service:
    def move(self, x: int, y: int = 0) -> None:
        """Move.

        Args:
            x: to the right
        """

    @staticmethod
    def rest() -> None:
        """Rest."""


def _one(hint: Any) -> Callable[..., Any]:
    """A function whose parameter `x` has this type hint."""

    def tool(x):
        """Do it."""

    tool.__annotations__ = {"x": hint}
    return tool


# --- schemas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (dict, {"type": "object"}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1, True], {"type": ["string", "integer", "boolean"], "enum": ["a", 1, True]}),
        (Unit, {"type": "string", "enum": ["m", "mi"]}),
        (int | None, {"type": ["integer", "null"]}),
        (Optional[str], {"type": ["string", "null"]}),  # noqa: UP045
        (int | list[int], {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}),
        (Annotated[int, "in meters"], {"type": "integer", "description": "in meters"}),
    ],
)
def test_schema_of_a_type(hint: Any, schema: dict[str, Any]) -> None:
    parameters = tool_schema(_one(hint))["function"]["parameters"]
    assert parameters == {"type": "object", "properties": {"x": schema}, "required": ["x"]}


def _google(expression: str, digits: int = 2) -> str:
    """Evaluate an expression.

    Exact for integers.

    Args:
        expression: with + and *,
            and parentheses
        digits (int, optional): after the point: 0 to 9

    Returns:
        The result: a number.
    """
    return ""


def _numpy(expression: str, digits: int = 2) -> str:
    """
    Evaluate an expression.

    Exact for integers.

    Parameters
    ----------
    expression : str
        with + and *,
        and parentheses
    digits : int, optional
        after the point: 0 to 9

    Returns
    -------
    str
        The result: a number.
    """
    return ""


def _sphinx(expression: str, digits: int = 2) -> str:
    """Evaluate an expression.

    Exact for integers.

    :param expression: with + and *,
        and parentheses
    :param int digits: after the point: 0 to 9
    :returns: the result: a number
    """
    return ""


@pytest.mark.parametrize("function", [_google, _numpy, _sphinx])
def test_descriptions_in_the_docstring(function: Callable[..., Any]) -> None:
    schema = tool_schema(function)
    assert schema == {
        "type": "function",
        "function": {
            "name": function.__name__,
            "description": "Evaluate an expression. Exact for integers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "expression": {"type": "string", "description": "with + and *, and parentheses"},
                    "digits": {"type": "integer", "description": "after the point: 0 to 9"},
                },
                "required": ["expression"],
            },
        },
    }


def test_methods() -> None:
    parameters = tool_schema(Service().move)["function"]["parameters"]
    assert parameters["properties"] == {
        "x": {"type": "integer", "description": "to the right"},
        "y": {"type": "integer"},
    }
    assert tool_schema(Service.rest)["function"]["parameters"]["properties"] == {}


def _no_docstring(x: int) -> None: ...


def _no_hint(x) -> None:
    """Do it."""


def _star(*values: int) -> None:
    """Do it."""


def _positional(x: int, /) -> None:
    """Do it."""


def _unknown_name(x: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do it."""


def _other_name(number: int) -> None:
    """Do it.

    Args:
        numbr: a number
    """


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_no_docstring, "the tool '_no_docstring' has no description\n  need: a docstring that says what it does"),
        (_no_hint, "the parameter 'x' of the tool '_no_hint'\n  need: a type hint, such as str"),
        (_star, "the tool '_star'\n  got:  the parameter *values: 'int'\n  need: parameters with a name"),
        (_positional, "the tool '_positional'\n  got:  the parameter x: 'int'\n  need: parameters with a name"),
        (_unknown_name, "the type hints of the tool '_unknown_name' cannot be read\n  got:  name 'Missing' is not"),
        (
            _other_name,
            "the docstring of the tool '_other_name'\n  got:  a description of 'numbr', which is no parameter\n",
        ),
        (lambda x: x, "a tool without a name\n  got:  <function"),
        (_one(set[int]), "the parameter 'x' of the tool 'tool'\n  got:  the type set\n  need: str, int, float, bool,"),
        (_one(list[Service]), "the parameter 'x' of the tool 'tool'\n  got:  the type Service\n"),
        (_one(enum.Enum("Pair", {"A": (1, 2)})), "the parameter 'x' of the tool 'tool'\n  got:  the type tuple\n"),
    ],
)
def test_functions_without_a_schema(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tool_schema(function)
    assert str(caught.value).startswith(message)


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (str, "a", "a"),
        (int, 3.0, 3),
        (float, 3, 3.0),
        (float, 2**53 + 1, float(2**53)),
        (bool, True, True),
        (None, None, None),
        (Any, {"a": [1]}, {"a": [1]}),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (dict[str, int], {"a": 1.0}, {"a": 1}),
        (Literal["a", 1], 1, 1),
        (Unit, "mi", Unit.MILE),
        (int | str, "1", "1"),
        (float | int, 1, 1),
        (list[Unit] | None, ["m"], [Unit.METER]),
        (Annotated[int | None, "a number"], None, None),
    ],
)
def test_conversion(hint: Any, value: Any, converted: Any) -> None:
    result = convert_arguments(_one(hint), {"x": value})
    assert result == ({"x": converted}, None)
    assert type(result.values["x"]) is type(converted)


@pytest.mark.parametrize(
    ("hint", "value", "error"),
    [
        (str, 1, "is 1, not string"),
        (int, "3", "is '3', not integer"),
        (int, 2.5, "is 2.5, not integer"),
        (int, True, "is True, not integer"),
        (float, False, "is False, not number"),
        (float, 10**400, f"is {str(10**400)[:57]}..., not number"),
        (bool, 1, "is 1, not boolean"),
        (list[int], ["a"], "is ['a'], not array"),
        (tuple[int, str], [1], "is [1], not array"),
        (dict[str, int], [], "is [], not object"),
        (Literal["a", 1], True, "is True, not one of 'a', 1"),
        (Unit, "km", "is 'km', not one of 'm', 'mi'"),
        (int | None, "x", "is 'x', not integer or null"),
        (str, None, "is None, not string"),
    ],
)
def test_wrong_types(hint: Any, value: Any, error: str) -> None:
    assert convert_arguments(_one(hint), {"x": value}) == ({}, f"tool: argument 'x' {error}")


def test_missing_and_unknown_arguments() -> None:
    def tool(expression: str, digits: int = 2) -> None:
        """Do it."""

    assert convert_arguments(tool, {"expression": "1"}) == ({"expression": "1"}, None)
    assert convert_arguments(tool, {}).error == "tool: missing argument 'expression' (string)"
    assert convert_arguments(tool, {"expresion": "1", "digits": "x"}).error == (
        "tool: unknown argument 'expresion', did you mean 'expression'?; missing argument 'expression' (string); "
        "argument 'digits' is 'x', not integer"
    )
    assert convert_arguments(Service.rest, {"x": 1}).error == "rest: unknown argument 'x', there are no arguments"


def test_a_default_of_none_is_allowed() -> None:
    def tool(x: int = None, y: int = 3) -> None:  # type: ignore[assignment]  # noqa: RUF013
        """Do it."""

    assert convert_arguments(tool, {"x": None}) == ({"x": None}, None)
    assert convert_arguments(tool, {"y": None}).error == "tool: argument 'y' is None, not integer"


HINTS: Any = st.sampled_from(
    [str, int, float, bool, None, list[int], dict[str, float], tuple[int, str], Unit, int | str]
)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(hint=HINTS, value=VALUES)
def test_no_value_raises_an_exception(hint: Any, value: Any) -> None:
    values, error = convert_arguments(_one(hint), {"x": value})
    assert (error is None) == bool(values)


def test_the_example_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "tools.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    function = tool_schema(names["convert"])["function"]
    assert function["parameters"]["properties"]["unit"] == {
        "type": "string", "enum": ["m", "mi"], "description": "of the length"
    }  # fmt: skip
    error = convert_arguments(names["convert"], {"value": "3 m"}).error
    assert error is not None
    assert f"`{error}`" in page
