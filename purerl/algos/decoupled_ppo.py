"""Decoupled PPO: Hilton et al. 2021 (2110.00641), and for language models AReaL, Fu et al. 2025 (2505.24298).

PPO asks one policy for two things: the one that sampled the rows is also the one that the new policy must stay close
to. When rows are some updates old, that holds the policy back where it was. Here they are two: the ratio, and its clip,
are against the policy when the update began, and what the sampling policy owes is made up for by a weight.

    w_t  = min(exp(old_logp_t - rollout_logp_t), cap), without gradient
    loss = token mean of w_t max(-Aw r, -Aw clip(r, 1 - clip_low, 1 + clip_high)),   r = exp(logp - old_logp)

Advantage, critic and the rest are those of `ppo`.

Choices, where libraries differ: the weight multiplies the surrogate, not the advantage before it is whitened, and not
the entropy bonus.

Metrics: those of `parts.policy` and of `parts.corrections`.

Differences from the papers:

1. The policy when the update began is the proximal one, as in AReaL; 2110.00641 averages over past policies.
2. Weights are capped, which neither paper does: `cap` is AReaL's default [unverified].
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import ppo
from purerl.algos.algebra import Algorithm, bind
from purerl.algos.parts.corrections import token_weight, truncated_ratio, with_corrections
from purerl.algos.parts.settings import number

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the batch",
    "reward_shift_invariance": "the baseline is the critic's, and does not see the shift",
}


@frozen(kw_only=True)
class Config(ppo.Config):
    """The hyper-parameters of PPO, and the largest weight."""

    cap: float = number("the largest weight that a token may have", 5.0, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Decoupled PPO as `config` sets it."""
    return with_corrections(ppo.algorithm(config), token_weight(bind(truncated_ratio, ratio_cap=config.cap)))
