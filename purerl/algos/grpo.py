"""GRPO, group relative policy optimization: Shao et al. 2024, DeepSeekMath (2402.03300).

GRPO samples several completions per prompt. The advantage of a completion is its reward relative to the other
completions of the prompt, in standard deviations. Every token of the completion has this advantage in PPO's clipped
loss. No critic is needed.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss = (1 / rows) sum_i (1 / n_i) sum_t l_it

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- The standard deviation divides by N_g - 1.
- In a group of one row, and in a group whose rewards are all equal, every advantage is 0.
- The loss is averaged within each row first, then over rows.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped. `policy/clip_fraction_low` and
  `policy/clip_fraction_high` are its parts, below and above the clip range.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The KL penalty of the paper, with the coefficient 0.04, is the modifier `kl_loss`. Without it there is no reference
   model.
2. The loss is a mean over all rows of the optimizer step. The paper first averages within each group. Both are equal if
   all groups have the same size.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GRPO."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0, infinite="not clipped"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GRPO from `config`."""
    policy = clipped_policy(
        token_level_ratio, sequence_mean_of_token_mean, clip_low=config.clip_low, clip_high=config.clip_high
    )
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
