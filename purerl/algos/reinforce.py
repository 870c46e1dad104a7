"""REINFORCE, the plain policy gradient: Williams 1992, Simple Statistical Gradient-Following Algorithms.

REINFORCE is the plain policy gradient: the log-probability of each token is weighted by the return that follows it. It
needs no baseline, no group and no critic. It is unbiased. Its variance is high, and the other algorithms reduce it.

    G_it = reward_it + discount * G_{i,t+1}
    loss = -(1 / rows) sum_it G_it logp_it

t + 1 is the next action token of the row. `rows` is the number of rows of the optimizer step. Losses, means and counts
cover only tokens where `mask` is 1.

Choices that differ between libraries:

- There is no ratio and no clipping, so the rows must come from the current policy. Further optimizer steps with the
  rows of a batch are biased: a run with several mini-batches or passes, or with stale rollouts, is refused. A ratio can
  be added with the modifier `clipped_surrogate`.

Metrics, means over the tokens where `mask` is 1:

- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. There is no baseline. The paper allows any.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain, of_fields
from purerl.algos.parts.policy import policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import policy_gradient
from purerl.algos.parts.transforms import return_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"reward_shift_invariance": "there is no baseline"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of REINFORCE."""

    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build REINFORCE from `config`."""
    policy = policy_objective(
        of_fields(policy_gradient, "logp", "advantage"), sequence_mean_of_token_sum, reads=("advantage",), metrics={}
    )
    return Algorithm(
        reads=("reward",), advantage=chain(return_advantage(discount=config.discount)), objectives=(policy,)
    )
