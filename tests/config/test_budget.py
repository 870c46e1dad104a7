"""A micro-batch must have room for the longest row that a run may sample."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from purerl.backends.training import Budget
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.recipes.addition import addition
from purerl.runs import run_config

TOKENS = addition().rollout.max_tokens
BUDGET = "trainer.max_tokens_per_microbatch"
LIMIT = addition().trainer.max_tokens_per_microbatch - TOKENS
"""The longest prompt that leaves room for the completion in a micro-batch of the recipe."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            [f"{BUDGET}={TOKENS}"],
            rf"(?s)^{BUDGET}\n.*got: +{TOKENS} tokens.*need: {TOKENS + 1} .* at least 1 of its pr",
        ),
        (
            [f"data.max_prompt_tokens={LIMIT + 1}"],
            rf"(?s)^{BUDGET}.*need: {LIMIT + 1 + TOKENS} .*: {LIMIT + 1} of .*or data.max_prompt_tokens",
        ),
        (
            ["algorithm.kind=ppo", "roles.critic.trainer.kind=hf", "roles.critic.trainer.max_tokens_per_microbatch=3"],
            r"^roles\.critic\.trainer\.max_tokens_per_microbatch\n",
        ),
    ],
    ids=["policy", "prompts", "critic"],
)
def test_budgets_below_the_longest_row_are_refused(settings: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(run_config("addition", settings))


@pytest.mark.parametrize(
    "settings",
    [
        [f"{BUDGET}={TOKENS + 1}"],
        [f"data.max_prompt_tokens={LIMIT}"],
        [f"data.max_prompt_tokens={LIMIT + 1}", "trainer.max_rows_per_microbatch=1"],
    ],
)
def test_budgets_of_the_longest_row_are_accepted(settings: Sequence[str]) -> None:
    check(run_config("addition", settings))


def test_budget_counts_tokens_or_rows() -> None:
    assert run_config("addition", ["trainer.max_rows_per_microbatch=4"]).trainer.budget == Budget(4, "rows")
    assert run_config("addition", [f"{BUDGET}=64"]).trainer.budget == Budget(64)
    assert run_config("addition", [f"{BUDGET}="]).trainer.budget == Budget(2048)
    with pytest.raises(ConfigError, match="max_tokens_per_microbatch = 64, max_rows_per_microbatch = 4"):
        run_config("addition", [f"{BUDGET}=64", "trainer.max_rows_per_microbatch=4"])
