"""Decoupled PPO, PPO for stale rollouts: Hilton et al. 2021 (2110.00641); AReaL, Fu et al. 2025 (2505.24298).

In PPO, the old policy has two functions: it sampled the rows, and the new policy must stay close to it. If the rows are
several updates old, PPO keeps the policy close to an outdated one. Decoupled PPO separates the two. The ratio and its
clip are relative to the policy at the start of the update. An importance weight corrects for the policy that sampled
the rows. Use it for stale rollouts.

    r_it = exp(logp_it - old_logp_it)
    w_it = min(exp(old_logp_it - rollout_logp_it), cap)
    l_it = sg(w_it) max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))
    policy_loss = (1 / tokens) sum_it l_it

The whitened advantage Aw_it, the critic and the optional terms are as in `ppo`. `tokens` is the number of tokens of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops the gradient.

Choices that differ between libraries:

- The weight multiplies the surrogate. It does not multiply the advantage before whitening, and it does not multiply the
  entropy bonus.

Metrics, means over the tokens where `mask` is 1:

- `critic/value_error`: squared error of the critic's estimate, reward^2.
- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.
- `policy/weight`: weight w_it.
- `policy/weight_square`: square of w_it. weight^2 / weight_square is the effective sample size, as a fraction of the
  tokens.
- `policy/chi2`: exp(2 (old_logp_it - rollout_logp_it)) - 1, the variance of the ratio without a bound.
- `policy/log_perplexity_gap`: rollout_logp_it - old_logp_it, nats.
- `policy/rejected_fraction`: fraction of tokens that a correction removed from `mask`.

Differences from the papers:

1. The proximal policy is the policy at the start of the update, as in AReaL. 2110.00641 uses an average of past
   policies.
2. The weights are capped; neither paper caps them. The default of `cap` is AReaL's (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import ppo
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.parts.corrections import token_weight, truncated_ratio, with_corrections
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the critic's estimate does not depend on the shift",
}


@frozen(kw_only=True)
class Config(ppo.Config):
    """Hyperparameters of decoupled PPO: the settings of PPO, and `cap`."""

    cap: float = number("maximum of the importance weight of a token", 5.0, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build decoupled PPO from `config`."""
    return with_corrections(ppo.algorithm(config), token_weight(bind(truncated_ratio, ratio_cap=config.cap)))
