"""DAPO, decoupled clip and dynamic sampling policy optimization: Yu et al. 2025 (2503.14476).

DAPO is GRPO with three changes:

- Clip-higher: the upper clip offset is larger than the lower one. Rare tokens can gain more probability, which keeps
  the entropy up.
- Dynamic sampling: groups whose scores are all equal have no gradient. They are dropped. If
  `rollout.max_resample_rounds` is above 0, other groups are sampled instead.
- Token mean: every token has the same weight in the loss.

The loss is

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss = (1 / tokens) sum_it l_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- The loss is divided by the tokens of the whole optimizer step, as in the authors' code. The formula of the paper
  divides within each group.
- A group is dropped if all its scores are equal. The paper drops groups that are all correct or all incorrect.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. Overlong reward shaping is not part of the algorithm. It is the setting `rollout.overlong`, or the transform
   `parts.shaping.overlong_in_reward`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import groups_with_variance
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of DAPO."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.28, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DAPO from `config`."""
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    return Algorithm(
        ("reward",),
        outcome_advantage(group_normalized_advantage),
        (policy,),
        select=groups_with_variance,
        min_group_size=2,
    )
