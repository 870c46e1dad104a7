"""IPO, identity preference optimization: Azar et al. 2023 (2310.12036).

DPO treats a preference that was seen once as certain, and increases the margin between the two completions without
limit. IPO regresses the margin on a finite target, 1 / (2 * beta). A margin beyond the target is reduced again.

    L_i  = sum_t (logp_it - ref_logp_it)
    D_g  = L_chosen - L_rejected
    loss = (1 / pairs) sum_g (D_g - 1 / (2 * beta))^2

L_chosen and L_rejected are the log-ratios of the two rows of pair g. `pairs` is the number of pairs of the optimizer
step. The field `chosen` marks the preferred row. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, as in the paper. TRL averages them, so its `beta` has a different meaning.
- A group that does not have exactly one chosen and one rejected row, each with a counted token, is not a pair. It is
  left out of the value, the gradient and the denominator.

Metrics, means over the pairs:

- `policy/accuracy`: fraction of pairs with D_g > 0.
- `policy/margin`: beta * D_g, whose target is 1/2.

Differences from the paper:

1. `beta` has its name from DPO. The paper calls it tau.
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
    """Hyperparameters of IPO."""

    beta: float = number("a larger beta keeps the policy closer to the reference model", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build IPO from `config`."""
    objective = preference_objective(ipo_loss, beta=config.beta, anchor="ref_logp")
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))
