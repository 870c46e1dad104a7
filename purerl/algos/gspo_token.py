"""GSPO-token, the token form of GSPO: Zheng et al. 2025 (2507.18071, section 4.3).

A row is weighed and clipped as a whole, as in GSPO, but each token has an advantage of its own: for rewards that come
on the way, as of the turns of a conversation.

    G_it   = reward_it + discount * G_{i,t+1}                             t + 1: the next action token
    A      = (G - mean) / (std + 1e-8)                                  over the counted tokens of the whole batch
    dbar_i = (1 / n_i) sum_t (logp_it - old_logp_it)                    n_i: counted tokens
    r_it   = exp(sg(dbar_i) + logp_it - sg(logp_it))
    l_it   = max(-A_it r_it, -A_it clip(r_it, 1 - clip_low, 1 + clip_high))
    loss   = mean over rows of the mean over tokens of l_it

Where all tokens of a row have one advantage, value and gradient are GSPO's.

Choices, where libraries differ: the paper leaves open where the advantage of a token comes from. Here it is the reward
to go, whitened, as in REINFORCE++; any other chain that writes `advantage` can take its place.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
2. The mean is over all rows of an optimizer step, not first over the rows of each group: the same where groups are of
   one size.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, chain
from purerl.algos.parts.policy import clipped_policy, per_sequence
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import return_advantage, whitened

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the ratio is the row's in value and the token's in gradient, on purpose: "
    "the two agree where all tokens of a row have one advantage",
    "group_independence": "advantages are whitened over the batch",
    "reward_shift_invariance": "returns have no baseline but the mean of the batch",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of GSPO-token."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 3e-4, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 4e-4, least=0)
    discount: float = number("what a reward loses with each token that comes before it", 1.0, least=0, most=1)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GSPO-token as `config` sets it."""
    policy = clipped_policy(
        per_sequence,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(("reward",), chain(return_advantage(discount=config.discount), whitened), (policy,))
