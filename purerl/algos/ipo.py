"""IPO, identity preference optimization: Azar et al. 2023 (2310.12036).

DPO treats a preference that was seen once as certain, and increases the margin between the two completions without
limit. IPO regresses the margin on a finite target, 1 / (2 * beta). A margin beyond the target is reduced again.

    L_i  = sum_t (logp_it - ref_logp_it)
    D_g  = L_chosen - L_rejected
    loss = (1 / pairs) sum_g (D_g - 1 / (2 * beta))^2

The rest is as in `dpo`. The target of the metric `policy/margin`, beta * D_g, is 1/2.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, as in the paper. TRL averages them, as the modifier `length_normalization`
  does, so its `beta` has a different meaning.

Differences from the paper:

1. `beta` has its name from DPO. The paper calls it tau.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import dpo
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = dpo.EXEMPTIONS


@frozen(kw_only=True)
class Config:
    """Hyperparameters of IPO."""

    beta: float = number("a larger beta keeps the policy closer to the reference model", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build IPO from `config`."""
    return dpo.algorithm(dpo.Config(beta=config.beta, losses=("ipo",)))
