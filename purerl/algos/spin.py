"""SPIN, self-play fine-tuning: Chen et al. 2024 (2401.01335).

The policy learns from demonstrations: it learns to distinguish them from completions of its own that were sampled at
the start of the iteration. In each pair, the demonstration is `chosen` and the completion of the policy is rejected.
Once the two cannot be distinguished, there is nothing more to learn.

    L_i  = sum_t (logp_it - old_logp_it)
    D_g  = L_chosen - L_rejected
    loss = -(1 / pairs) sum_g log sigmoid(beta * D_g)

The rest is as in `dpo`.

Choices that differ between libraries:

- The opponent is the policy at the start of the update: `old_logp` replaces the reference model of DPO. An update is an
  iteration of the paper.

Differences from the paper:

1. `beta` has its name from DPO. The paper calls it lambda.
2. The paper allows several losses. This is the logistic one, which the paper uses.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind, identity
from purerl.algos.parts.pair_losses import sigmoid
from purerl.algos.parts.preferences import pair_objective, relative_to
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "a pair consists of two rows",
    "reinforce_gradient_on_policy": "it learns from pairs and has no advantage",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of SPIN."""

    beta: float = number("a larger beta keeps the policy closer to the old policy", 0.1, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build SPIN from `config`."""
    loss = ("preference", bind(sigmoid, beta=config.beta), 1.0)
    objective = pair_objective(relative_to("old_logp"), loss, reads=("old_logp",), beta=config.beta)
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))
