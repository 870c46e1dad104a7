"""docs/explanation/asynchronous.md: valid settings, the message of the check, and a table of all algorithms."""

from __future__ import annotations

import re
import tomllib

import pytest

from purerl.algos.parts.behavior import has_rollout_ratio, is_policy_gradient, weights_rollouts
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.plugins import find, names
from purerl.recipes import resolve
from purerl.rollouts.settings import Rollout

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "explanation" / "asynchronous.md").read_text(encoding="utf-8")


def test_settings_on_the_page_are_the_defaults_except_for_the_staleness() -> None:
    [section] = [tomllib.loads(text)["rollout"] for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
    shared = {"samples_per_prompt": 8, "max_tokens": 4}
    assert Rollout(**shared, **section) == Rollout(**shared, max_staleness=2)


def test_message_on_the_page_is_that_of_the_check() -> None:
    with pytest.raises(ConfigError) as raised:
        check(resolve("addition", ["rollout.max_staleness=1"]))
    assert f"```text\nerror: {raised.value}\n```" in PAGE


def test_algorithms_that_account_for_staleness_are_listed() -> None:
    algorithms = {name: find("algorithm", name).algorithm() for name in names("algorithm")}
    policies = {name: algorithm for name, algorithm in algorithms.items() if is_policy_gradient(algorithm)}
    weighted = {name for name, algorithm in policies.items() if weights_rollouts(algorithm)}
    relative = {name for name, algorithm in policies.items() if has_rollout_ratio(algorithm)} - weighted
    lists = re.findall(r"^\| (`\w+`(?:, `\w+`)+) \|", PAGE, re.MULTILINE)
    rows = [set(re.findall(r"\w+", names_of_row)) for names_of_row in lists]
    assert rows == [weighted, relative]
