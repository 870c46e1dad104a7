"""PRIME, process reinforcement through implicit rewards: Cui et al. 2025 (2502.01456).

PRIME trains a reward model online, from outcome rewards alone, and rewards every token with it. The reward model is a
language model; its reward of a token is its log-probability relative to a reference model. In each step, the reward
model is updated first, on the new rows. It then scores these rows, and the policy is updated last.

    p_it  = beta * (reward_model_logp_it - ref_logp_it)
    x_i   = sum_t p_it
    reward_model_loss = (1 / rows) sum_i (log(1 + exp(x_i)) - s_i x_i)

    pm_i  = (1 / n_i) sum_t p_it
    q_it  = (N_g p_it - sum_g(pm_j)) / (N_g - 1)
    o_i   = (s_i - mean_g) N_g / (N_g - 1)
    u_it  = process_coef * q_it + outcome_coef * o_i    if t is the last action token
            process_coef * q_it                         else
    G_it  = u_it + G_{i,t+1}
    Aw_it = (G_it - mean(G)) / (std(G) + 1e-8)
    r_it  = exp(logp_it - old_logp_it)
    policy_loss = (1 / tokens) sum_it max(-Aw_it r_it, -Aw_it clip(r_it, 1 - clip_low, 1 + clip_high))

p_it is the implicit process reward. In the loss of the reward model, it is computed from the current log-probabilities
of this model. The loss of the reward model is the cross-entropy of sigmoid(x_i) and the score s_i. q_it and o_i are the
process reward and the outcome minus a leave-one-out baseline. t + 1 is the next action token. mean(G) and std(G) are
over the tokens of the whole batch.

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
and `tokens` are the numbers of rows and tokens of the optimizer step. Losses, means and counts cover only tokens where
`mask` is 1.

A group is kept only if its scores differ. If all completions of a prompt are incorrect, the outcome gives no signal,
and the policy would move toward completions that the reward model has not seen yet.

Choices that differ between libraries:

- The sum of process and outcome rewards is whitened, after a leave-one-out baseline is subtracted from each, as in the
  authors' code.
- In a group of one row, both rewards are 0.

Metrics, means over the tokens where `mask` is 1:

- `reward_model/accuracy`: fraction of rows for which sigmoid(x_i) and s_i are on the same side of 1/2.
- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped. `policy/clip_fraction_low` and
  `policy/clip_fraction_high` are its parts, below and above the clip range.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The paper keeps prompts with between one fifth and four fifths of correct completions.
2. Scores must be between 0 and 1. The reward model reads them from the field `score`, because rewards can be on tokens
   where `mask` is 0, which a loss does not read.
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, Weighted, bind, chain, stateless, write_field
from purerl.algos.estimators.group_relative import leave_one_out_advantage
from purerl.algos.estimators.returns import discounted_returns
from purerl.algos.parts.divergences import k1
from purerl.algos.parts.groups import group_size, group_sum
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, token_mean
from purerl.algos.parts.rows import at_last_action, broadcast_to_tokens, row_mean
from purerl.algos.parts.selection import groups_with_variance
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.algos.parts.transforms import whiten_advantage
from purerl.kernels.masks import any_true, masked
from purerl.types import RowFloat, RowInt, TensorDict, TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "implicit_reward_loss", "leave_one_out_process"]

EXEMPTIONS = {
    "episode_invariance": "the reward model is trained on rows, which need not be whole episodes",
    "group_independence": "advantages are whitened over the whole batch",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of PRIME."""

    beta: float = number("reward per nat of reward_model_logp - ref_logp", 0.05, above=0)
    process_coef: float = number("weight of the implicit process rewards", 5.0, above=0)
    outcome_coef: float = number("weight of the outcome reward", 5.0, above=0)
    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0, infinite="not clipped"
    )


def implicit_reward_loss(log_ratio: RowFloat, score: RowFloat, *, beta: float) -> RowFloat:
    """The cross-entropy of sigmoid(beta * log_ratio) and a score in [0, 1].

        loss_i = log(1 + exp(beta * log_ratio_i)) - score_i * beta * log_ratio_i

    `log_ratio` is the log-ratio of reward model and reference model, summed over the row, nats. Shapes: [rows].
    Source: PRIME (2502.01456).

    >>> implicit_reward_loss(torch.tensor([0.0]), torch.tensor([1.0]), beta=0.1)
    tensor([0.6931])
    """
    return torch.nn.functional.softplus(beta * log_ratio) - score * beta * log_ratio


def leave_one_out_process(process: TokenFloat, group: RowInt, mask: TokenBool) -> TokenFloat:
    """The process reward of each token minus a leave-one-out baseline of its group.

        pm_i = (1 / n_i) sum_t p_it
        q_it = (N_g p_it - sum_g(pm_j)) / (N_g - 1)

    Every row has the same weight in the baseline, independent of its length. The result is 0 if `mask` is 0, and in a
    group of one row. Shapes: `process` and `mask` [rows, time], `group` [rows]. Source: the authors' code of PRIME.

    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> leave_one_out_process(torch.tensor([[1.0, 3.0], [6.0, 0.0]]), torch.tensor([5, 5]), mask)
    tensor([[-6., -2.],
            [ 4.,  0.]])
    """
    size = group_size(any_true(mask), group, dtype=process.dtype)
    total = group_sum(row_mean(process, mask), group)
    centered = (size.unsqueeze(-1) * process - total.unsqueeze(-1)) / (size - 1).clamp(min=1).unsqueeze(-1)
    return torch.where(mask & (size > 1).unsqueeze(-1), centered, 0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build PRIME from `config`."""
    policy = clipped_policy(token_level_ratio, token_mean, clip_low=config.clip_low, clip_high=config.clip_high)
    advantage = bind(
        _process_and_outcome_return,
        beta=config.beta,
        process_coef=config.process_coef,
        outcome_coef=config.outcome_coef,
    )
    return Algorithm(
        reads=("reward", "reward_model_logp", "ref_logp"),
        advantage=chain(stateless(write_field("advantage", advantage)), whiten_advantage),
        objectives=(policy,),
        select=groups_with_variance,
        before=(_reward_model_objective(config),),
        min_group_size=2,
    )


def _reward_model_objective(config: Config) -> Objective:
    return Objective(
        role="reward_model",
        reads=("ref_logp", "score"),
        outputs=("logp",),
        terms=(Term("reward_model", bind(_implicit_reward_loss, beta=config.beta), sequence_mean_of_token_mean),),
        metrics=_accuracy,
    )


def _log_ratio(batch: TensorDict) -> RowFloat:
    return sequence_log_ratio(batch["logp"], batch["ref_logp"], batch["mask"])


def _implicit_reward_loss(batch: TensorDict, *, beta: float) -> TokenFloat:
    return broadcast_to_tokens(implicit_reward_loss(_log_ratio(batch), batch["score"], beta=beta), batch["mask"])


def _accuracy(batch: TensorDict) -> dict[str, Weighted]:
    counted = any_true(batch["mask"])
    correct = counted & ((_log_ratio(batch) > 0) == (batch["score"] > 0.5))
    return {"accuracy": Weighted(correct.sum(-1), counted.sum(-1))}


def _process_and_outcome_return(
    batch: TensorDict, *, beta: float, process_coef: float, outcome_coef: float
) -> TokenFloat:
    mask, action, group = batch["mask"], batch["action"], batch["group"]
    process = leave_one_out_process(beta * k1(batch["reward_model_logp"], batch["ref_logp"]), group, mask)
    outcome = leave_one_out_advantage(batch["reward"].sum(-1), group, any_true(mask))
    reward = process_coef * process + outcome_coef * at_last_action(outcome, action)
    return masked(discounted_returns(reward, action, discount=1.0), mask)
