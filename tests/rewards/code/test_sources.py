"""A module made of a completion and its prompt."""

from __future__ import annotations

import pytest

from purerl.rewards.code.inside.candidate import choose_sources

HEADER = 'import math\n\ndef half(x):\n    return x / 2\n\ndef f(x):\n    """Return x + 1."""\n'
STRIPPED = HEADER.rstrip("\n")
METHOD = "class Solution:\n    "


def _value(header: str, text: str, name: str = "f") -> object:
    """The value of `f(1)` in the module."""
    names: dict[str, object] = {}
    for source in choose_sources(header, text, name):
        exec(source, names)
    return names["f"](1)  # type: ignore[operator]


@pytest.mark.parametrize(
    "text",
    [
        "    return x + 1\n",
        "    y = x\n    return y + 1",
        "\n\n    # why\n    return x + 1",
        "    return x + 1\n\nprint(f(\n",
        "    return x + 1\n```\nThis adds one.",
        "    return int(half(2 * x)) + 1\n\n\ndef g(:\n",
        "return x + 1",
        "y = x\n    return y + 1",
        "y = x\nreturn y + 1",
        "if x:\n    return 2\nreturn 1",
        "def f(x):\n    return x + 1",
        "def g(x):\n    return 1\n\ndef f(x):\n    return x + g(x)",
        "from __future__ import annotations\n\ndef f(x: Unknown):\n    return x + 1",
        "f = lambda x: x + 1",
        "from math import prod\n\ndef f(x):\n    return prod([2, x])",
        "try:\n    def f(x): return x + 1\nfinally:\n    pass",
        "def f(x):\n    return half(2 * x) + math.ceil(0.5)",
        "    def inner():\n        return 1\n    return x + inner()",
        '    """More."""\n    return x + 1',
    ],
)
@pytest.mark.parametrize("header", [HEADER, STRIPPED])
def test_body_or_module_adds_one(text: str, header: str) -> None:
    assert _value(header, text) == 2


def test_a_header_may_end_within_a_line_or_in_a_method() -> None:
    assert _value("def f(x): ", "return x + 1") == 2
    assert _value("def f(x):\n    if x:\n        ", "return 2\n    return 1") == 2
    sources = choose_sources(f"{METHOD}def f(self, x):\n", "return x + 1", "f")
    assert sources == [f"{METHOD}def f(self, x):\n\n        return x + 1"]


def test_a_class_with_the_method_is_a_module() -> None:
    text = f"{METHOD}def f(self, x): return x"
    assert choose_sources("", text, "f") == ["", text]
    assert choose_sources(HEADER, text, "f") == [HEADER, text]


@pytest.mark.parametrize("text", ["I think so.", "(" * 1000, "x = \0", "\udc80", "return", "```"])
def test_what_is_no_program_stays_as_it_is(text: str) -> None:
    assert choose_sources("Write f.", text, "f") == ["Write f.", text]


def test_a_text_after_the_header_is_no_body() -> None:
    for text in ("The answer is 3.", "Sure! Here is it:\n\n    return x + 1"):
        assert choose_sources(HEADER, text, "f") == [HEADER, text]
