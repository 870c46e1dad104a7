"""The log-probabilities of the rollout policy instead of those of the old policy.

    old_logp_it <- rollout_logp_it

The ratio is then exp(logp - rollout_logp). One clip bounds both the staleness of a row and the size of the update, and
no forward pass is needed for `old_logp`. Use it if the generator and the trainer compute nearly the same
log-probabilities. The modifier changes everything that the algorithm computes from `old_logp` so far, including a KL
penalty in the reward and metrics such as `approx_kl`.

Modifiers that come later in the list still read the true `old_logp`, which then needs its forward pass. An algorithm
that compares the two policies is refused, because they would be equal.

verl calls it `bypass_mode`, with the loss type ppo_clip.

Source: rollout correction of verl.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound, reads_of
from purerl.algos.parts.bypass import bypass_old_logp
from purerl.algos.parts.editing import contains
from purerl.errors import ConfigError

__all__ = ["Config", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `bypass`: none."""


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with `rollout_logp` instead of `old_logp`.

    Raises: ConfigError for an algorithm that does not read `old_logp`, that learns from data, or that compares the old
        policy with the rollout policy.
    """
    reads = reads_of(algorithm)
    if "old_logp" not in reads:
        raise ConfigError(
            "has no effect", got="an algorithm that does not read old_logp", need="one with a ratio to it"
        )
    if "chosen" in reads:
        got, need = "an algorithm that learns from pairs", "completions of the policy: others have no rollout_logp"
        raise ConfigError("has no effect", got=got, need=need)
    if "rejected" in reads or contains(algorithm, _compares_policies):
        got = "an algorithm that compares old_logp with rollout_logp, which would be equal"
        do = "apply bypass before importance_weight and rejection, or leave it out"
        raise ConfigError("has no effect", got=got, need="an algorithm without this comparison", do=do)
    return bypass_old_logp(algorithm)


def _compares_policies(bound: Bound) -> bool:
    """Whether a function reads both fields; corrections do so too, and write `rejected`."""
    return {"old_logp", "rollout_logp"} <= {*dict(bound.keywords).get("fields", ())}
