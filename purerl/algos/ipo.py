"""IPO, identity preference optimization: Azar et al. 2023 (2310.12036).

DPO takes every preference for certain as soon as it has been seen once, and then nothing holds the policy back. IPO
gives the margin between the two completions of a pair a goal, and pulls it back once it is beyond that.

    D    = sum_t (logp - ref_logp) of the chosen row - sum_t (logp - ref_logp) of the rejected row
    loss = mean over pairs of (D - 1 / (2 * beta))^2

Choices, where libraries differ: log-probabilities are summed over counted tokens, as in the paper (TRL averages them
over tokens, so that its `beta` means another thing). A group that is not one counted chosen row and one counted
rejected row is no pair, and leaves: value, gradient and denominator.

Metrics: `accuracy`, the share of pairs with D above 0, and `margin`, the mean of beta * D, whose goal is 1/2.

Differences from the paper:

1. What is `beta` here, as in DPO, is tau there.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, identity
from purerl.algos.parts.preferences import ipo_loss, preference_objective
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reinforce_gradient_on_policy": "it learns from pairs and has no advantage"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of IPO."""

    beta: float = number("how strongly the policy is held to the reference", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """IPO as `config` sets it."""
    objective = preference_objective(ipo_loss, beta=config.beta, anchor="ref_logp")
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))
