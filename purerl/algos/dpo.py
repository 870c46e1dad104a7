"""DPO, direct preference optimization: Rafailov et al. 2023 (2305.18290).

Learns from pairs of completions of one prompt, one of them preferred. The two are rows of one group; `chosen` tells
which is which. Nothing is sampled and nothing is rewarded: the log-ratio of policy and reference is the reward.

    D    = sum_t (logp - ref_logp) of the chosen row - sum_t (logp - ref_logp) of the rejected row
    loss = mean over pairs of -log sigmoid(beta * D)

Choices, where libraries differ: log-probabilities are summed over counted tokens, not averaged; labels are not
smoothed. A group that is not one counted chosen row and one counted rejected row is no pair, and leaves: value,
gradient and denominator.

Metrics: `accuracy`, the share of pairs with D above 0, and `margin`, the mean of beta * D.

Differences from the paper: none.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, identity
from purerl.algos.parts.preferences import dpo_loss, preference_objective
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "it learns from pairs and has no advantage"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of DPO."""

    beta: float = number("how strongly the policy is held to the reference", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """DPO as `config` sets it."""
    objective = preference_objective(dpo_loss, beta=config.beta, anchor="ref_logp")
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))
