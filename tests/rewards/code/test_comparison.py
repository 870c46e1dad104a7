"""Whether the output of a program is as expected."""

from __future__ import annotations

import pytest

from purerl.rewards.code.comparison import same_output


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1 2\n3", "1 2 3", ("tokens",)),
        ("1 2 \n3\n\n", "1 2\n3", ("tokens", "lines")),
        ("1  2", "1 2", ("tokens",)),
        ("1 2\r\n3\r\n", "1 2\n3\n", ("tokens", "lines")),
        ("1 2\n\n", "1 2", ("tokens", "lines", "exact")),
        ("", "", ("tokens", "lines", "exact")),
        ("yes", "YES", ()),
        ("1", "1 2", ()),
        ("", "1", ()),
        ("1.0000001", "1.0", ("tokens", "lines")),
        ("1", "1.0", ("tokens", "lines")),
        ("1.0", "1", ()),
        ("1000000000000001", "1000000000000000", ()),
        ("1000000000000001.5", "1000000000000000.5", ("tokens", "lines")),
        ("1e-7", "0.0", ("tokens", "lines")),
        ("1.1", "1.0", ()),
        ("nan", "1.0", ()),
        ("inf", "1e400", ()),
        ("0x1.0", "1.0", ()),
        ("1_0.0", "10.0", ()),
        ("\u0661.0", "1.0", ()),
        ("-0.0", "0.0", ("tokens", "lines")),
        ("a0.3e", "a0.3f", ()),
    ],
)
def test_outputs_are_compared_by_three_rules(output: str, expected: str, same: tuple[str, ...]) -> None:
    for comparison in ("tokens", "lines", "exact"):
        assert same_output(output, expected, comparison, 1e-6) is (comparison in same), comparison


def test_without_tolerance_words_are_text() -> None:
    assert not same_output("0.50", "0.5", "tokens", 0.0)
    assert same_output("0.50", "0.5", "tokens", 1e-12)
