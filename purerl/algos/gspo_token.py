"""GSPO-token, the token form of GSPO: Zheng et al. 2025 (2507.18071, section 4.3).

GSPO-token weights and clips a row as a whole, like GSPO, but each token has its own advantage. Use it if rewards arrive
within a row, for example after each turn of a conversation.

    G_it   = reward_it + discount * G_{i,t+1}
    Aw_it  = (G_it - mean(G)) / (std(G) + 1e-8)
    dbar_i = (1 / n_i) sum_t (logp_it - old_logp_it)
    r_it   = exp(sg(dbar_i) + logp_it - sg(logp_it))
    l_it   = max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))
    loss   = (1 / rows) sum_i (1 / n_i) sum_t l_it

t + 1 is the next action token of the row. mean(G) and std(G) are over the tokens of the whole batch. n_i is the number
of tokens of row i. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

If all tokens of a row have the same advantage, value and gradient are equal to GSPO's.

Choices that differ between libraries:

- The paper does not define the advantage of a token. Here it is the whitened return, as in REINFORCE++. Any other
  transform that writes `advantage` can replace it.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio of the row.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The loss is a mean over all rows of the optimizer step. The paper first averages within each group. Both are equal if
   all groups have the same size.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.policy import clipped_policy, sequence_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import return_advantage, whiten_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the ratio has the value of its row but the gradient of its token; "
    "the two agree only if all tokens of a row have the same advantage",
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the only baseline of the returns is the mean of the batch",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GSPO-token."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 3e-4, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 4e-4, min=0)
    discount: float = number("discount factor of rewards, per token", 1.0, min=0, max=1)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GSPO-token from `config`."""
    policy = clipped_policy(
        sequence_level_ratio,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    return Algorithm(("reward",), chain(return_advantage(discount=config.discount), whiten_advantage), (policy,))
