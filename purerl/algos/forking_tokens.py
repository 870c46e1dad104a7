"""DAPO on forking tokens: Wang et al. 2025, Beyond the 80/20 Rule (2506.01939).

Most tokens of a chain of thought follow from the tokens before them. A minority of tokens with high entropy decides how
the text continues, and reinforcement learning acts mainly through these. This variant of DAPO computes the policy loss
only at the tokens with the highest entropy.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    r_it = exp(logp_it - old_logp_it)
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))    if token (i, t) is in F
           0                                                               else
    loss = (1 / tokens) sum_it l_it

F is the set of the max(1, floor(top_fraction * tokens)) tokens with the largest entropy. A group is kept only if its
scores differ, as in `dapo`.

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `tokens` is the number of tokens of
the optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- `tokens` counts all tokens of the optimizer step, not only the tokens of F, as in TRL (paper: unverified).
- All other choices are as in `dapo`.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.
- `policy/dropped_fraction`: fraction of tokens that are not in F.
- `policy/ref_kl`: k3 estimate of KL(policy || reference model), nats; only if `kl_loss_coef` is above 0.

Differences from the paper:

1. The entropies are computed at the start of the update (`old_entropy`), and F is chosen over the whole optimizer step.
   The choice then does not depend on the micro-batches. The paper chooses F per micro-batch (unverified).
2. Tokens with the same entropy as the last token of F are in F too.
3. Overlong reward shaping is not part of the algorithm.
4. A KL penalty against a reference model (`kl_loss_coef`) and an entropy bonus (`entropy_coef`) can be added. They
   apply to every token.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, of_fields
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, drop_tokens, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import groups_with_variance, low_entropy_tokens
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "tokens are chosen over the whole optimizer step",
    "reinforce_gradient_on_policy": "most tokens have no policy loss, even on-policy",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of DAPO on forking tokens."""

    top_fraction: float = number("fraction of tokens that have a policy loss", 0.2, above=0, max=1)
    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.28, min=0)
    kl_loss_coef: float = number("coefficient of the KL penalty in the loss (0: no reference model)", 0.0, min=0)
    entropy_coef: float = number("coefficient of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DAPO on forking tokens from `config`."""
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    choice = of_fields(low_entropy_tokens, "old_entropy", "mask", top_fraction=config.top_fraction)
    return Algorithm(
        ("reward",),
        outcome_advantage(group_normalized_advantage),
        (drop_tokens(policy, choice, "old_entropy"),),
        select=groups_with_variance,
        min_group_size=2,
    )
