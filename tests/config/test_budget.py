"""A micro-batch must have room for the longest row that a run may sample."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.recipes.addition import addition
from purerl.runs import run_config

TOKENS = addition().rollout.max_tokens
BUDGET = "trainer.max_tokens_per_microbatch"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            [f"{BUDGET}={TOKENS}"],
            rf"(?s)^{BUDGET}\n.*got: +{TOKENS} tokens.*need: {TOKENS + 1} .* at least 1 of its pr",
        ),
        (
            ["data.max_prompt_tokens=1021"],
            rf"(?s)^{BUDGET}.*need: {1021 + TOKENS} .*: 1021 of .*or data.max_prompt_tokens",
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


@pytest.mark.parametrize("settings", [[f"{BUDGET}={TOKENS + 1}"], [f"data.max_prompt_tokens={1024 - TOKENS}"]])
def test_budgets_of_the_longest_row_are_accepted(settings: Sequence[str]) -> None:
    check(run_config("addition", settings))
