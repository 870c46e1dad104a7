"""GiGPO, group-in-group policy optimization: Feng et al. 2025 (2505.10978).

GRPO for agents that act in many steps. Rows of one prompt often come to the same state of the environment; the steps
that they take from there form groups within the group, and say which step was good, where the score of the whole row
cannot. No further sampling is needed for that.

    E_i  = (s_i - mean_g) / (std_g + 1e-6)                       of the whole row
    R_ik = sum_{j >= k} discount^(j - k) (reward of step j)
    S_ik = (R_ik - mean) / (std + 1e-6)                          over the group's steps from the same state
    A_it = E_i + step_coef * S_ik                                at the tokens of step k
    loss = mean over rows of the mean over tokens of max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

A step is a run of action tokens with the same `turn`; `anchor` labels the state in which it began, at its first token.
Both are fields that the environment has to supply.

Choices, where libraries differ: standard deviations divide by one less; a state that is met once, and a group of one,
gives 0; two states are the same if their labels are.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) is off unless it is set, and an entropy bonus may be added.
2. The mean is over all rows of an optimizer step, not first over the rows of each group.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind, stateless, write_field
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.estimators.steps import step_relative_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number
from purerl.kernels.masks import any_true
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "reward_shift_invariance": "returns of steps are discounted: an outcome counts for more in a later step",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of GiGPO."""

    step_coef: float = number("weight of a step's advantage beside the row's", 1.0, min=0)
    discount: float = number("what a reward loses with each step that comes before it", 0.95, min=0, max=1)
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, min=0, max=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, min=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, min=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GiGPO as `config` sets it."""
    policy = clipped_policy(
        token_level_ratio,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    advantage = bind(_group_in_group_advantage, step_coef=config.step_coef, discount=config.discount)
    return Algorithm(("reward", "turn", "anchor"), stateless(write_field("advantage", advantage)), (policy,))


def _group_in_group_advantage(batch: TensorDict, *, step_coef: float, discount: float) -> TokenFloat:
    reward, group, mask = batch["reward"], batch["group"], batch["mask"]
    episode = broadcast_to_tokens(group_normalized_advantage(reward.sum(-1), group, any_true(mask)), mask)
    steps = step_relative_advantage(
        reward, batch["turn"], batch["anchor"], group, batch["action"], mask, discount=discount
    )
    return episode + step_coef * steps
