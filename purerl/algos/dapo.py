"""DAPO, decoupled clip and dynamic sampling policy optimization: Yu et al. 2025 (2503.14476).

GRPO with three changes. Rare tokens may become likelier by more than others may become rarer (clip-higher), which keeps
entropy up. Groups whose completions are all equally good are dropped, and others drawn in their place (dynamic
sampling), so that no part of a batch is without gradient. And every token weighs the same.

    keep g where the scores of g differ
    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss = sum over rows and tokens of l_it / tokens

Choices, where libraries differ: the standard deviation divides by N_g - 1; "tokens" are those of the optimizer step, as
in the authors' code (the paper's formula divides within each group); a group is dropped when its scores are all equal,
whatever they are (the paper: all right or all wrong).

Differences from the paper:

1. Overlong reward shaping is a setting of the run, `rollout.overlong`, or `parts.shaping.overlong_in_reward`.
2. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added; the paper has neither.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import groups_with_variance
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of DAPO."""

    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.28, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """DAPO as `config` sets it."""
    policy = clipped_policy(
        per_token,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(
        ("reward",),
        outcome_advantage(group_normalized_advantage),
        (policy,),
        select=groups_with_variance,
        min_group_size=2,
    )
