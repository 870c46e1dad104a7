"""PF-PPO, policy filtration for PPO: Shen and Zhang 2024 (2409.06957).

A reward model is most often right where it is most decided. So PPO learns from rows that are drawn again from the
batch, with replacement, those with extreme scores more often than the others.

    weight_i = abs(s_i)^power + 1e-8
    c_i      = how often row i is drawn, when as many rows are drawn as there are, by weight
    critic, policy: those of PPO, over the rows that were drawn

Rows are not copied: the loss of each token is multiplied with c_i * tokens / sum_j(c_j n_j). So a mean over the tokens
of the whole batch is the mean over the tokens of the rows that were drawn.

Choices, where libraries differ: the weights are verl's "pow"; its others, and the drawing, are in
`purerl.algos.parts.resampling`. Advantages are whitened before rows are drawn. The draw is made by `noise`, at the
first action token of each row.

Differences from the paper:

1. The filter is verl's [unverified]; the paper's keeps rows by the rank of their rewards.
2. A batch of several optimizer steps is divided by the tokens of all rows, drawn or not, in each step: a step that has
   more of the rows that were drawn weighs more.
3. As in `ppo`.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, bind, chain, stateless, write_field
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.resampling import power_weight, resample
from purerl.algos.parts.rows import first_counted
from purerl.algos.parts.settings import number, optional
from purerl.algos.parts.transforms import gae_advantage, kl_in_reward, whiten_advantage
from purerl.algos.parts.values import critic_objective
from purerl.kernels.masks import any_true, count_true
from purerl.types import RowFloat, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "drawn_only"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the batch, and rows are drawn from all of it",
    "reward_shift_invariance": "the baseline is the critic's, and rows are drawn by the size of their score",
    "reinforce_gradient_on_policy": "a row weighs as often as it is drawn",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of PF-PPO."""

    power: float = number("how much more often extreme scores are drawn", 2.0, min=0)
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, min=0, max=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, min=0)
    discount: float = number("what a reward loses with each token that comes before it", 1.0, min=0, max=1)
    lambda_: float = number("0 trusts the critic's next estimate, 1 only what happened", 0.95, min=0, max=1)
    value_clip: float = number("how far the critic's estimate may move in one update", 0.5, above=0, unit="reward")
    kl_reward_coef: float = number("weight of the divergence from the reference in the reward", 0.0, min=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """PF-PPO as `config` sets it."""
    kl = config.kl_reward_coef
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    return Algorithm(
        reads=("reward", "old_value", "noise", *optional(kl, "old_logp", "ref_logp")),
        advantage=chain(
            # By the score as it was given: the divergence is no part of what the reward model is sure of.
            stateless(write_field("copies", bind(_power_weighted_copies, power=config.power))),
            *optional(kl, kl_in_reward(kl_reward_coef=kl)),
            gae_advantage(discount=config.discount, lambda_=config.lambda_),
            whiten_advantage,
        ),
        objectives=(drawn_only(critic_objective(value_clip=config.value_clip)), drawn_only(policy)),
    )


def drawn_only(objective: Objective) -> Objective:
    """`objective` with every loss multiplied by `copies`."""
    terms = tuple(term._replace(loss=bind(_times_copies, loss=term.loss)) for term in objective.terms)
    return objective._replace(reads=(*objective.reads, "copies"), terms=terms)


def _times_copies(batch: TensorDict, *, loss: Callable[[TensorDict], TokenFloat]) -> TokenFloat:
    return batch["copies"].unsqueeze(-1) * loss(batch)


def _power_weighted_copies(batch: TensorDict, *, power: float) -> RowFloat:
    action, mask = batch["action"], batch["mask"]
    noise = first_counted(batch["noise"], action)
    copies = resample(power_weight(batch["reward"].sum(-1), power=power), noise, any_true(mask))
    tokens = count_true(mask).to(copies.dtype)
    drawn = (copies * tokens).sum(-1, keepdim=True)
    return copies * tokens.sum(-1, keepdim=True) / drawn.clamp(min=1)
