"""Tests in the formats of data sets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from purerl.errors import InputError
from purerl.rewards.code.examples import header_of, language_of, read_function_tests, read_stdin_tests
from purerl.rewards.code.functions import FunctionTests
from purerl.rewards.code.stdin import StdinTests

from .problems import ADD

PAIRS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLS = {"inputs": ['[1, 2]\n"a"', "[]\nnull"], "outputs": ['{"x": [1]}', "true"], "fn_name": "f"}
CASES = [{"input": a, "output": b} for a, b in zip(PAIRS["inputs"], PAIRS["outputs"], strict=True)]
TYPED = [{**case, "type": "stdin_stdout", "fn_name": None} for case in CASES]


@pytest.mark.parametrize(
    "example",
    [
        PAIRS,
        {"reward_model": {"ground_truth": json.dumps(PAIRS), "style": "rule"}},
        {"input_output": json.dumps(PAIRS)},
        {"input_output": PAIRS},
        {"verification_info": {"language": "python", "test_cases": TYPED}},
        {"verification_info": json.dumps({"test_cases": TYPED})},
        {"tests": json.dumps(CASES)},
        {"test_cases": CASES},
        {
            "public_test_cases": json.dumps([{**CASES[0], "testtype": "stdin"}]),
            "private_test_cases": json.dumps([{**CASES[1], "testtype": "stdin"}]),
            "metadata": "{}",
        },
        {
            "public_tests": {"input": PAIRS["inputs"], "output": PAIRS["outputs"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": None,
        },
    ],
)
def test_inputs_and_outputs_are_found(example: dict[str, Any]) -> None:
    assert read_stdin_tests(example) == StdinTests(inputs=PAIRS["inputs"], outputs=PAIRS["outputs"])


def test_lists_of_lines_are_joined() -> None:
    tests = read_stdin_tests({"inputs": [["1", "2"]], "outputs": [["3", 4]]})
    assert tests == StdinTests(inputs=["1\n2"], outputs=["3\n4"])


@pytest.mark.parametrize("read", [read_function_tests, read_stdin_tests])
@pytest.mark.parametrize(
    "example",
    [
        CALLS,
        {"reward_model": {"ground_truth": json.dumps(CALLS)}},
        {"input_output": {"inputs": [[[1, 2], "a"], [[], None]], "outputs": [[{"x": [1]}], [True]], "fn_name": "f"}},
        {
            "public_test_cases": json.dumps(
                [{"input": a, "output": b} for a, b in zip(CALLS["inputs"], CALLS["outputs"], strict=True)]
            ),
            "metadata": '{"func_name": "f"}',
        },
        {
            "verification_info": {
                "test_cases": [
                    {"fn_name": "f", "input": [[1, 2], "a"], "output": {"x": [1]}},
                    {"fn_name": "f", "input": [[], None], "output": True},
                ]
            }
        },
    ],
)
def test_calls_are_found(example: dict[str, Any], read: Any) -> None:
    tests = read({**example, "prompt": "Write f."})
    assert tests == FunctionTests(
        kind="calls",
        entry_point="f",
        header="Write f.",
        inputs=[[[1, 2], "a"], [[], None]],
        outputs=[{"x": [1]}, True],
    )


def test_columns_of_humaneval() -> None:
    tests = read_function_tests({**ADD, "canonical_solution": "    return a + b\n"})
    assert tests == FunctionTests(kind="check", entry_point="add", header=ADD["prompt"], test=ADD["test"])
    nested = {"prompt": ADD["prompt"], "reward_model": {"ground_truth": json.dumps(ADD)}}
    assert read_function_tests(nested) == tests


def test_columns_of_mbpp() -> None:
    example = {"text": "Add.", "test_list": ["assert add(1, 2) == 3"], "test_setup_code": "import math", "code": "..."}
    assert read_function_tests({**example, "test_imports": ["import re"]}) == FunctionTests(
        kind="asserts", tests=["assert add(1, 2) == 3"], setup="import re\nimport math"
    )


def test_a_list_of_statements_may_be_json() -> None:
    assert read_function_tests({"test_list": '["assert f(1)", "assert f(2)"]'}).tests == ["assert f(1)", "assert f(2)"]


def test_only_the_first_tests_can_be_used() -> None:
    assert read_stdin_tests(PAIRS).first(1) == StdinTests(inputs=["1 2\n"], outputs=["3\n"])
    assert read_function_tests(CALLS).first(1).outputs == [{"x": [1]}]
    assert read_function_tests(ADD).first(1) == read_function_tests(ADD)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({}, "no test"),
        ({"inputs": [], "outputs": []}, "no test"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": ["1"]}, "KeyError: 'outputs'"),
        ({"tests": ["assert f(1)"]}, "TypeError"),
        ({"test_cases": [{"input": "1"}]}, "KeyError: 'output'"),
        ({"private_test_cases": "eJx1kcFqwzAMhl"}, "other encodings, such as pickles, are not read"),
        ({"reward_model": {"ground_truth": "{"}}, "'{': Expecting property name"),
        ({**CALLS, "inputs": ["1, 2", "3"]}, "'1, 2': Extra data"),
        ({"test": "def check(f): pass"}, "test without entry_point"),
        ({"inputs": [1], "outputs": [2]}, "text, or a list of lines, for each input and output"),
        ({"inputs": [1], "outputs": [2], "fn_name": "f"}, "a list of arguments for each input"),
        ({"test_list": "assert f(1) == 2"}, "'assert f(1) == 2': Expecting value"),
        ({"test_list": {"a": 1}}, "test_list: a list of statements"),
        ({"test_list": ["assert f(1)"], "test_imports": 5}, "test_imports: a list of statements"),
    ],
)
def test_tests_that_cannot_be_read_are_an_error(example: dict[str, Any], message: str) -> None:
    read = read_function_tests if {"test", "test_list"} & {*example} else read_stdin_tests
    with pytest.raises(InputError, match="the tests of an example cannot be read") as caught:
        read(example)
    assert message in str(caught.value)


def test_inputs_without_a_function_are_no_function_tests() -> None:
    with pytest.raises(InputError, match="need: fn_name, test_list, or test with entry_point"):
        read_function_tests(PAIRS)


@pytest.mark.parametrize(
    ("prompt", "header", "is_open"),
    [
        ("def f(x):\n", "def f(x):\n", False),
        (None, "", False),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "Do it."}], "Do it.", False),
        ([{"role": "user", "content": "Complete:\n```python\ndef f(x):\n```\nNow."}], "def f(x):\n", False),
        ([{"role": "user", "content": "```text\n1\n```"}], "```text\n1\n```", False),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "", False),
        ("Complete:\n```python\ndef f(x):\n", "def f(x):\n", True),
        ([{"role": "user", "content": "Do."}, {"role": "assistant", "content": "```py\ndef f"}], "def f", True),
    ],
)
def test_header_is_the_source_in_the_prompt(prompt: Any, header: str, is_open: bool) -> None:
    assert header_of({"prompt": prompt}) == (header, is_open)


def test_language_is_a_column() -> None:
    assert language_of({"language": "CPP"}) == "c++"
    assert language_of({"language": None}) is None
    assert language_of({"verification_info": {"language": "python3"}}) == "python"
    with pytest.raises(InputError, match="got:  'cobol'"):
        language_of({"language": "cobol"})
