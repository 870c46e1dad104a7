"""Pass@k training: Chen et al. 2025, for Adaptively Balancing Exploration and Exploitation (2508.10751).

A policy that is rewarded for the mean of its attempts soon makes the same attempt again and again. Here a set of k
attempts is rewarded: with 1 if any of them is right. The advantage of a row is its mean over all sets of k rows of its
group, in closed form, so that no set is drawn.

    w    = C(n, k) / C(N, k)                  N rows in the group, n of them wrong: their score is not above 0
    A_i  = w / sqrt(w (1 - w))                                            where row i is right
    A_i  = (w - C(n - 1, k - 1) / C(N - 1, k - 1)) / sqrt(w (1 - w))      where it is wrong
    loss = mean over rows of the mean over tokens of max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))

A prompt that the policy solves more often than not gets next to nothing: some set of k is nearly always right.

Choices, where libraries differ: a group of one, and a group in which all or no sets of k are right, has advantage 0; so
has a group of fewer than k rows. Any score above 0 is right.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
2. `k` is 4 unless it is set; the loss around the advantage is GRPO's [unverified].
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.pass_k import pass_k_advantage
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number, whole
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "no_reward_lost": "a set of k, of which one is right already, gains nothing from a second right one",
    "reward_shift_invariance": "a row is right if its score is above 0",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of pass@k training."""

    k: int = whole("how many attempts are rewarded together", 4, least=1, unit="rows")
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Pass@k training as `config` sets it."""
    policy = clipped_policy(
        per_token,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(
        ("reward",), outcome_advantage(bind(pass_k_advantage, k=config.k)), (policy,), min_group_size=config.k + 1
    )
