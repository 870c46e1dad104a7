"""PRIME, process reinforcement through implicit rewards: Cui et al. 2025 (2502.01456).

A reward model is learned online, from outcomes alone, and yet it rewards every token: it is a language model, and what
it rewards is by how much it finds a token likelier than a reference does. It is updated first, on the rows that the
policy has just sampled; then it scores them, and then the policy is updated. Only prompts of which some completions are
right and some wrong are learned from. Where all are wrong, the outcome is silent, and the policy would run to what the
reward model likes best: whatever it has not seen yet.

    keep g where the scores of g differ
    p_t  = beta * (reward_model_logp_t - ref_logp_t)                    the implicit process reward
    reward model:   mean over rows of the cross-entropy of sigmoid(sum_t p_t) and the row's score

    q_t  = process_coef * (p_t N_g / (N_g - 1) - sum_g (mean_t p) / (N_g - 1))
         + outcome_coef * (s_i - mean of the others), at the row's last action token
    A    = (G - mean) / (std + 1e-8), with G_t = q_t + G_{t+1}          over the counted tokens of the whole batch
    policy:   token mean of max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

Choices, where libraries differ: process rewards less a leave-one-out baseline, the outcome likewise, and one sum of
both is whitened, as in the authors' code. In a group of one there is neither.

Metrics of the reward model: `accuracy`, the share of rows that it puts on the right side of a score of 1/2; of the
policy: those of `parts.policy`.

Differences from the paper:

1. The paper keeps prompts of which between a fifth and four fifths of the completions are right.
2. An entropy bonus may be added.
3. Scores lie between 0 and 1. The reward model takes them from `score`, for rewards may lie on tokens that do not
   count, which an objective never sees.
"""

from __future__ import annotations

import torch
from attrs import frozen
from tensordict import TensorDict
from torch.nn.functional import softplus

from purerl.algos.algebra import Algorithm, Objective, Term, Weighted, bind, chain, stateless, writes
from purerl.algos.estimators.group_relative import leave_one_out_advantage
from purerl.algos.estimators.returns import discounted_returns
from purerl.algos.parts.groups import group_size, group_sum
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, token_mean
from purerl.algos.parts.rows import at_last_action, broadcast_to_tokens, row_mean
from purerl.algos.parts.selection import groups_with_variance
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.algos.parts.transforms import whitened
from purerl.kernels.masks import any_true
from purerl.types import RowFloat, RowInt, TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "implicit_reward_loss", "leave_one_out_process"]

EXEMPTIONS = {"group_independence": "advantages are whitened over the batch"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of PRIME."""

    beta: float = number("reward per nat by which the reward model finds a token likelier", 0.05, above=0)
    process_coef: float = number("weight of the implicit process rewards", 5.0, above=0)
    outcome_coef: float = number("weight of the outcome", 5.0, above=0)
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def implicit_reward_loss(log_ratio: RowFloat, score: RowFloat, *, beta: float) -> RowFloat:
    """The cross-entropy of sigmoid(beta * L) and a score in [0, 1]: log(1 + exp(beta L)) - score * beta L.

    L is the row's log-ratio of reward model and reference. Source: PRIME (2502.01456).

    >>> implicit_reward_loss(torch.tensor([0.0]), torch.tensor([1.0]), beta=0.1)
    tensor([0.6931])
    """
    return softplus(beta * log_ratio) - score * beta * log_ratio


def leave_one_out_process(process: TokenFloat, group: RowInt, mask: TokenBool) -> TokenFloat:
    """p_t N_g / (N_g - 1) - sum_g (mean_t p) / (N_g - 1): each token against the mean rows of the others.

    A row weighs the same in the baseline however long it is. 0 where not counted, and in a group of one.
    Source: the authors' code of PRIME.

    >>> yes = torch.tensor([[True, True], [True, False]])
    >>> leave_one_out_process(torch.tensor([[1.0, 3.0], [6.0, 0.0]]), torch.tensor([5, 5]), yes)
    tensor([[-6., -2.],
            [ 4.,  0.]])
    """
    size = group_size(any_true(mask), group, dtype=process.dtype)
    total = group_sum(row_mean(process, mask), group)
    against = (size.unsqueeze(-1) * process - total.unsqueeze(-1)) / (size - 1).clamp(min=1).unsqueeze(-1)
    return torch.where(mask & (size > 1).unsqueeze(-1), against, 0)


def algorithm(config: Config = Config()) -> Algorithm:
    """PRIME as `config` sets it."""
    policy = clipped_policy(
        per_token,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    advantage = bind(_advantage, beta=config.beta, process_coef=config.process_coef, outcome_coef=config.outcome_coef)
    return Algorithm(
        reads=("reward", "reward_model_logp", "ref_logp"),
        advantage=chain(stateless(writes("advantage", advantage)), whitened),
        objectives=(policy,),
        select=groups_with_variance,
        before=(_reward_model(config),),
        min_group_size=2,
    )


def _reward_model(config: Config) -> Objective:
    return Objective(
        role="reward_model",
        reads=("ref_logp", "score"),
        outputs=("logp",),
        terms=(Term("reward_model", bind(_loss, beta=config.beta), sequence_mean_of_token_mean),),
        metrics=_accuracy,
    )


def _log_ratio(batch: TensorDict) -> RowFloat:
    return sequence_log_ratio(batch["logp"], batch["ref_logp"], batch["mask"])


def _loss(batch: TensorDict, *, beta: float) -> TokenFloat:
    return broadcast_to_tokens(implicit_reward_loss(_log_ratio(batch), batch["score"], beta=beta), batch["mask"])


def _accuracy(batch: TensorDict) -> dict[str, Weighted]:
    counted = any_true(batch["mask"])
    right = counted & ((_log_ratio(batch) > 0) == (batch["score"] > 0.5))
    return {"accuracy": Weighted(right.sum(-1), counted.sum(-1))}


def _advantage(batch: TensorDict, *, beta: float, process_coef: float, outcome_coef: float) -> TokenFloat:
    mask, action, group = batch["mask"], batch["action"], batch["group"]
    process = leave_one_out_process(beta * (batch["reward_model_logp"] - batch["ref_logp"]), group, mask)
    outcome = leave_one_out_advantage(batch["reward"].sum(-1), group, any_true(mask))
    reward = process_coef * process + outcome_coef * at_last_action(outcome, action)
    return torch.where(mask, discounted_returns(reward, action, discount=1.0), 0)
