"""GSPO, group sequence policy optimization: Zheng et al. 2025 (2507.18071).

GSPO is GRPO with one importance ratio per row. The reward belongs to the whole row, so the row is weighted and clipped
as a whole: its ratio is the geometric mean of the ratios of its tokens. This reduces the noise of single tokens, which
is large for long rows and for mixture-of-experts models.

    A_i    = (s_i - mean_g) / (std_g + 1e-6)
    dbar_i = (1 / n_i) sum_t (logp_it - old_logp_it)
    r_it   = exp(sg(dbar_i) + logp_it - sg(logp_it))
    l_it   = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss   = (1 / rows) sum_i (1 / n_i) sum_t l_it

The ratio of a row is much closer to 1 than the ratio of a token, so the clip offsets are much smaller than in GRPO.

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops
the gradient.

Choices that differ between libraries:

- The ratio has the form of GSPO-token, as in verl: it has the value of the row, and its gradient is that of the
  token's own `logp`. TRL, OpenRLHF and NeMo-RL differentiate the mean of the row instead. Both have the same
  gradient if all tokens of a row have the same advantage and weight, but not with advantages of tokens: `gspo_token`.
- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio of the row.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped. `policy/clip_fraction_low` and
  `policy/clip_fraction_high` are its parts, below and above the clip range.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The loss is a mean over all rows of the optimizer step. The paper first averages within each group. Both are equal if
   all groups have the same size.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, sequence_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"episode_invariance": "the ratio is that of a row, which need not be the whole episode"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GSPO."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 3e-4, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 4e-4, min=0, infinite="not clipped"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GSPO from `config`."""
    policy = clipped_policy(
        sequence_level_ratio, sequence_mean_of_token_mean, clip_low=config.clip_low, clip_high=config.clip_high
    )
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy,),
        min_group_size=2,
    )
