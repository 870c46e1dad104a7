"""DPO, direct preference optimization: Rafailov et al. 2023 (2305.18290).

DPO learns from pairs of completions of one prompt. One completion of each pair is preferred. It needs neither rollouts
nor rewards: the log-ratio of policy and reference model is an implicit reward. The two completions of a pair are rows
of one group. The field `chosen` marks the preferred one.

    L_i  = sum_t (logp_it - ref_logp_it)
    D_g  = L_chosen - L_rejected
    loss = -(1 / pairs) sum_g log sigmoid(beta * D_g)

L_chosen and L_rejected are the log-ratios of the two rows of pair g. `pairs` is the number of pairs of the optimizer
step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, not averaged.
- Labels are not smoothed.
- A group that does not have exactly one chosen and one rejected row, each with a counted token, is not a pair. It is
  left out of the value, the gradient and the denominator.

Metrics, means over the pairs:

- `policy/accuracy`: fraction of pairs with D_g > 0.
- `policy/margin`: beta * D_g.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, identity
from purerl.algos.parts.preferences import dpo_loss, preference_objective
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "a pair consists of two rows",
    "reinforce_gradient_on_policy": "it learns from pairs and has no advantage",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of DPO."""

    beta: float = number("a larger beta keeps the policy closer to the reference model", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DPO from `config`."""
    objective = preference_objective(dpo_loss, beta=config.beta, anchor="ref_logp")
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))
