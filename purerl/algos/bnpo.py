"""BNPO, beta normalization policy optimization: Xiao et al. 2025 (2506.02864).

GRPO divides the advantages of each prompt by their standard deviation, a function of the success rate of the prompt.
BNPO divides by the density of a beta distribution at the success rate. Its parameters are those with the least variance
of the gradient, if the success rates of the prompts have a beta distribution. It is fitted to each batch, so that the
normalization follows the policy while it improves.

    p_g   = mean_g(s)
    c     = mean(p) (1 - mean(p)) / var(p) - 1
    alpha = max(1, 1 + c mean(p) / 3)
    beta  = max(1, 1 + c (1 - mean(p)) / 3)
    A_i   = (s_i - p_g) / f(p_g)

s_i is the sum of all rewards of row i, 0 or 1. f is the density of the beta distribution with the parameters alpha and
beta. mean(p) and var(p) are over the prompts of the batch. 1 / f(p_g) is at most 1e6. The loss is that of `grpo`,
summed over the tokens of a row, with a mean over rows.

Choices that differ between libraries:

- The algorithm has nothing in common with the loss that TRL calls bnpo, a mean over the tokens of a micro-batch.
- Rewards between 0 and 1 are possible too. For other ranges, set `min_reward` and `max_reward`.
- var(p) divides by the number of prompts minus 1. If it is 0, or if there is one prompt, alpha and beta are 1, and
  advantages are not normalized.

Differences from the paper:

1. The clip range, the reduction, the bounds of alpha and beta, and that of 1 / f are from the authors' code.
2. The code of the authors bounds the ratio at 10 if the advantage is negative. The modifier `dual_clip` does so.
3. In a group of one row, the advantage is 0, and the row counts as a prompt. The authors' code sets its success
   rate to 0.
4. The authors can normalize several rewards separately, and add the advantages (advantage decomposition). Here there
   is one reward.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.beta_normalization import beta_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_sum
from purerl.algos.parts.settings import number, require_below
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "the beta distribution is fitted to the whole batch",
    "reward_scale_equivariance": "the range of rewards is fixed",
    "reward_shift_invariance": "the range of rewards is fixed",
}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of BNPO: the settings of GRPO, and the range of rewards."""

    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.28, min=0, infinite="not clipped"
    )
    min_reward: float = number("the smallest reward of a row", 0.0)
    max_reward: float = number("the largest reward of a row", 1.0)

    def __attrs_post_init__(self) -> None:
        require_below(self, "min_reward", "max_reward")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build BNPO from `config`."""
    clip = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    policy = clipped_policy(token_level_ratio, sequence_mean_of_token_sum, **clip)
    limits = {"low": config.min_reward, "high": config.max_reward}
    advantage = outcome_advantage(bind(beta_normalized_advantage, **limits))
    return Algorithm(reads=("reward",), advantage=advantage, objectives=(policy,), min_group_size=2)
