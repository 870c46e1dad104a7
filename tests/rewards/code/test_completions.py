"""Which part of a completion is the program."""

from __future__ import annotations

import time

import pytest

from purerl.rewards.code.completions import Program, find_program, open_block

PYTHON, PLAIN, CPP = "```python\nx = 1\n```\n", "```\ny = 2\n```\n", "```cpp\nint z;\n```\n"


@pytest.mark.parametrize(
    ("completion", "language", "program"),
    [
        ("x = 1", "python", "x = 1"),
        ("    return x\n", "python", "    return x\n"),
        (PYTHON, "python", "x = 1\n"),
        (f"So:\n{PYTHON}Then:\n```py\nx = 3\n```", "python", "x = 3\n"),
        (f"{PYTHON}The output:\n{PLAIN}", "python", "x = 1\n"),
        (f"{PLAIN}The output:\n```text\n3\n```\n", "python", "y = 2\n"),
        (f"{PYTHON}{CPP}", "python", "x = 1\n"),
        (f"{PYTHON}{CPP}", "c++", "int z;\n"),
        (f"{PLAIN}", "c++", "y = 2\n"),
        ("```{.python}\nx\n```", "python", "x\n"),
        ("```Python 3\nx\n```", "python", "x\n"),
        ("~~~python\nx\n~~~", "python", "x\n"),
        ("````python\n```\nx\n````", "python", "```\nx\n"),
        ("1. So:\n   ```python\n   def f():\n       pass\n   ```", "python", "def f():\n    pass\n"),
        ("```python\ndef f():\n    return", "python", "def f():\n    return"),
        ("    return x\n```\n", "python", "    return x\n```\n"),
        (f"<think>First\n{PYTHON}</think>\n{PLAIN}", "python", "y = 2\n"),
        (f"Thinking {PYTHON}</think>z = 3", "python", "z = 3"),
        ("```python\r\nx = 1\r\n```", "python", "x = 1\r\n"),
    ],
)
def test_program_of_a_completion(completion: str, language: str, program: str) -> None:
    found = find_program(completion, language)
    assert found is not None
    assert found.text == program


@pytest.mark.parametrize(
    "completion", ["", " \n", f"<think>{PYTHON}", "```cpp\nint z;\n```", "<think>x</think>", "```python\n\n```"]
)
def test_completion_without_a_program(completion: str) -> None:
    assert find_program(completion, "python") is None


def test_the_label_names_the_language() -> None:
    assert find_program(f"{PYTHON}{CPP}{PLAIN}", None) == Program("int z;\n", "c++")
    assert find_program(PLAIN, None) == Program("y = 2\n", None)
    assert find_program("x = 1", None) == Program("x = 1", None)


def test_a_prompt_may_open_the_block() -> None:
    assert open_block("Complete:\n```python\ndef f(x):\n") == ("python", "def f(x):\n", False)
    assert open_block(PYTHON) is None
    assert find_program("    return x\n```\nIt returns x.\n```python\nf(1)\n```", "python", is_open=True) == Program(
        "    return x\n"
    )


@pytest.mark.parametrize("text", ["```" * 10**6, "```\n" * 10**6, "~" * 10**7, " " * 10**7 + "```", "</think>" * 10**6])
def test_long_completions_take_linear_time(text: str) -> None:
    start = time.process_time()
    find_program(text, "python")
    assert time.process_time() - start < 20
