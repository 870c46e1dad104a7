"""SPIN, self-play fine-tuning: Chen et al. 2024 (2401.01335).

The policy learns from demonstrations by telling them from its own completions, as it was when the iteration began. Of
each pair the demonstration is `chosen`, and the policy's completion is not. There is nothing left to learn once the two
cannot be told apart.

    D    = sum_t (logp - old_logp) of the demonstration - sum_t (logp - old_logp) of the policy's own completion
    loss = mean over pairs of -log sigmoid(beta * D)

Choices, where libraries differ: the opponent is the policy when the update began, so `old_logp` stands where DPO has
the reference, and an update is what the paper calls an iteration. A group that is not one counted chosen row and one
counted rejected row is no pair, and leaves: value, gradient and denominator.

Metrics: `accuracy`, the share of pairs with D above 0, and `margin`, the mean of beta * D.

Differences from the paper:

1. What is `beta` here, as in DPO, is lambda there.
2. Of the losses that the paper allows, this is the logistic one, which it uses.
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
    """The hyper-parameter of SPIN."""

    beta: float = number("how strongly the policy is held to what it was", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """SPIN as `config` sets it."""
    objective = preference_objective(dpo_loss, beta=config.beta, anchor="old_logp")
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))
