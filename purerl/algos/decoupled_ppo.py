"""Decoupled PPO, PPO for stale rollouts: Hilton et al. 2021 (2110.00641); AReaL, Fu et al. 2025 (2505.24298).

In PPO, the old policy has two functions: it sampled the rows, and the new policy must stay close to it. If the rows are
several updates old, PPO keeps the policy close to an outdated one. Decoupled PPO separates the two. The ratio and its
clip are relative to the policy at the start of the update. An importance weight corrects for the policy that sampled
the rows. Use it for stale rollouts.

    w_it = min(exp(old_logp_it - rollout_logp_it), cap)
    policy_loss = (1 / tokens) sum_it sg(w_it) max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))

The rest is as in `ppo`. sg() stops the gradient. The metrics of the weights are described in `parts.corrections`.

Choices that differ between libraries:

- The weight multiplies the surrogate. It does not multiply the advantage before whitening, and it does not multiply the
  entropy bonus.

Differences from the papers:

1. The proximal policy is the policy at the start of the update, as in AReaL. 2110.00641 uses an average of past
   policies.
2. The weights are capped; neither paper caps them. The default of `cap` is AReaL's (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import ppo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import importance_weight
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["EXEMPTIONS", "Config", "algorithm", "composition"]

EXEMPTIONS = ppo.EXEMPTIONS


@frozen(kw_only=True)
class Config(ppo.Config):
    """Hyperparameters of decoupled PPO: the settings of PPO, and `cap`."""

    cap: float = number("maximum of the importance weight of a token", 5.0, min=1, infinite="no maximum")


def composition(config: Config) -> Composition:
    """Decoupled PPO as PPO with modifiers."""
    return Composition(base_settings(config, ppo.Config), (importance_weight.Config(max_ratio=config.cap),))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build decoupled PPO from `config`."""
    return build_algorithm(composition(config))
