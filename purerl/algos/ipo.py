"""IPO, identity preference optimization: Azar et al. 2023 (2310.12036).

DPO treats a preference that was seen once as certain, and increases the margin between the two completions without
limit. IPO regresses the margin on a finite target, 1 / (2 * beta). A margin beyond the target is reduced again.

    L_i  = sum_t (logp_it - ref_logp_it)
    D_g  = L_chosen - L_rejected
    loss = (1 / pairs) sum_g (D_g - 1 / (2 * beta))^2

The rest is as in `dpo`. The target of the metric `policy/margin`, beta * D_g, is 1/2.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, as in the paper. TRL averages them, so its `beta` has a different meaning.

Differences from the paper:

1. `beta` has its name from DPO. The paper calls it tau.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import dpo
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.preferences import ipo_loss, preference_objective

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = dpo.EXEMPTIONS


@frozen(kw_only=True)
class Config(dpo.Config):
    """Hyperparameters of IPO: the setting of DPO."""


def algorithm(config: Config = Config()) -> Algorithm:
    """Build IPO from `config`."""
    objective = preference_objective(ipo_loss, beta=config.beta, anchor="ref_logp")
    return dpo.algorithm(config)._replace(objectives=(objective,))
