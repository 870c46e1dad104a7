"""Pass@k training: Chen et al. 2025, for Adaptively Balancing Exploration and Exploitation (2508.10751).

A policy that is trained on the mean reward of its completions soon repeats the same attempt. Pass@k training rewards
sets of k completions: the reward of a set is 1 if any of its completions is correct. The advantage of a row is its mean
over all sets of k rows of the group. It is computed in closed form, so no sets are drawn.

    w_g  = C(m_g, k) / C(N_g, k)
    A_i  = w_g / sqrt(w_g (1 - w_g))                                              if row i is correct
           (w_g - C(m_g - 1, k - 1) / C(N_g - 1, k - 1)) / sqrt(w_g (1 - w_g))    else

g is the group of row i: the N_g rows of one prompt. m_g of these rows are incorrect. C() is the binomial coefficient.
w_g is the probability that a set of k rows contains no correct row. The rest is as in `grpo`.

If the policy solves a prompt more often than not, its advantages are close to 0, because nearly every set of k contains
a correct row.

Choices that differ between libraries:

- A row is correct if its total reward is above 0.
- In a group of k rows or fewer, every advantage is 0. Set `rollout.samples_per_prompt` to more than `k`.
- In a group in which every set of k rows, or none, contains a correct row, every advantage is 0.

Differences from the paper:

1. `k` is 4 by default, and the loss is GRPO's (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.pass_k import pass_k_advantage
from purerl.algos.parts.settings import integer
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "no_reward_lost": "a second correct row does not change the reward of a set that has one",
    "reward_shift_invariance": "a row is correct if its score is above 0",
}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of pass@k training: the settings of GRPO, and k."""

    k: int = integer("number of completions of a set that is rewarded together", 4, min=1, unit="rows")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build pass@k training from `config`."""
    advantage = outcome_advantage(bind(pass_k_advantage, k=config.k))
    return grpo.algorithm(config)._replace(advantage=advantage, min_group_size=config.k + 1)
