"""The steps of a completion, and one number for all of their scores."""

from __future__ import annotations

import pytest

from purerl.errors import ConfigError
from purerl.rewards.steps import Steps, aggregate, split_steps


@pytest.mark.parametrize(
    ("completion", "separator", "steps"),
    [
        ("a\n\nb\n\nc", "\n\n", [("a", 3), ("b", 6), ("c", 7)]),
        ("a\n\nb\n\n", "\n\n", [("a", 3), ("b", 6)]),
        ("\n\na", "\n\n", [("a", 3)]),
        ("a\n \nb", "\n", [("a", 4), ("b", 5)]),  # white space is no step
        ("no separator", "\n", [("no separator", 12)]),
        ("", "\n", [("", 0)]),
        ("  ", "\n", [("  ", 2)]),
        ("a<s>b", "<s>", [("a", 4), ("b", 5)]),
    ],
)
def test_steps_end_after_their_separator(completion, separator, steps):
    assert split_steps(completion, separator) == steps


@pytest.mark.parametrize(
    ("how", "expected"), [("last", 0.5), ("min", 0.25), ("mean", 0.5), ("sum", 1.5), ("product", 0.09375)]
)
def test_scores_are_aggregated(how, expected):
    assert aggregate([0.25, 0.75, 0.5], how) == expected


def test_invalid_settings_are_refused():
    with pytest.raises(ConfigError, match="^separator\n  got:  an empty string"):
        Steps(separator="")
    with pytest.raises(ConfigError, match="^marker\n  got:  an empty string"):
        Steps(marker="")
    with pytest.raises(
        ConfigError, match="^aggregate\n  got:  'max'\n  need: one of: none, last, min, mean, sum, prod"
    ):
        Steps(aggregate="max")
