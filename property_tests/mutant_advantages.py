"""Broken advantages of rows and of tokens, for the mutants of GRPO."""

from __future__ import annotations

import torch

from purerl.algos.estimators.group_relative import group_centered_advantage, singleton_score
from purerl.batch import with_fields


def broadcast(row_value, batch):
    """`row_value`, [rows], at the counted tokens of each row."""
    return torch.where(batch["mask"], row_value[:, None], 0)


# --- advantages of rows ------------------------------------------------------------------------------------------


def sum_of_counted_rewards(batch):
    return (batch["reward"] * batch["mask"]).sum(-1)


def reward_of_last_action_token(batch):
    last = (torch.arange(batch["action"].shape[1]) * batch["action"]).amax(-1, keepdim=True)
    return batch["reward"].gather(1, last)[:, 0]


def negative_score(batch):
    return -batch["reward"].sum(-1)


def centered_over_padding(batch):
    return batch["reward"].sum(-1) - batch["reward"].mean()


def centered_over_rejected_rows(batch):
    score, same_group = batch["reward"].sum(-1), (batch["group"][:, None] == batch["group"]).to(batch["reward"])
    return score - same_group @ score / same_group.sum(-1)


def centered_by_position(batch):
    score = batch["reward"].sum(-1)
    pair = torch.arange(len(score)) // 2
    return score - torch.zeros_like(score).index_add(0, pair, score)[pair] / 2


def centered_by_label_as_index(batch):
    score = batch["reward"].sum(-1)
    return score - torch.zeros_like(score).index_add(0, batch["group"], score)[batch["group"]]


def centered_by_label_parity(batch):
    score, parity = batch["reward"].sum(-1), batch["group"].remainder(2)
    return score - torch.zeros_like(score).index_add(0, parity, score)[parity]


def centered_in_loop_over_groups(batch):
    score, baseline = batch["reward"].sum(-1), torch.zeros_like(batch["reward"][:, 0])
    for label in batch["group"].unique():
        in_group = batch["group"] == label
        baseline = torch.where(in_group, (score * in_group).sum() / in_group.sum(), baseline)
    return score - baseline


def centered_if_scores_differ(batch):
    score = batch["reward"].sum(-1)
    return score - score.mean() if score.max() > score.min() else score


class Center(torch.autograd.Function):
    """A function whose `vmap` rule takes the mean over the mapped axis instead of the rows."""

    @staticmethod
    def forward(score):
        return score - score.mean(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, score):
        return score - score.mean(0), 0


def centered_by_autograd_function(batch):
    return Center.apply(batch["reward"].sum(-1))


def centered_unless_compiled(batch):
    score = batch["reward"].sum(-1)
    return score if torch.compiler.is_compiling() else score - score.mean()


def centered_over_batch(batch):
    score, is_counted = batch["reward"].sum(-1), batch["mask"].any(-1)
    return score - (score * is_counted).sum() / is_counted.sum().clamp(min=1)


def divided_by_largest_reward(batch):
    return batch["reward"].sum(-1) / max(1.0, batch["reward"].abs().max().item())


def discounted_on_cpu(batch):
    return (batch["reward"] * 0.9 ** torch.arange(batch["reward"].shape[1])).sum(-1)


def score_in_group_of_one(batch):
    inputs = batch["reward"].sum(-1), batch["group"], batch["mask"].any(-1)
    return singleton_score(*inputs, estimator=group_centered_advantage)


def zero_advantage(batch):
    return 0 * batch["reward"].sum(-1)


def clipped_score(batch):
    return batch["reward"].sum(-1).clamp(-1, 1)


def sign_of_score(batch):
    return (batch["reward"].sum(-1) > 0) * 2.0 - 1.0


def score_over_length_of_context(batch):
    return batch["reward"].sum(-1) / batch["attention_mask"].sum(-1)


def score_over_version_range(batch):
    return batch["reward"].sum(-1) / (1 + batch["version"].amax(-1) - batch["version"].amin(-1))


# --- batches with the field advantage ----------------------------------------------------------------------------


def returns_over_all_tokens(batch):
    discounts = 0.9 ** torch.arange(batch["reward"].shape[1]).to(batch["reward"])
    returns = (batch["reward"] * discounts).flip(-1).cumsum(-1).flip(-1) / discounts
    return with_fields(batch, advantage=torch.where(batch["mask"], returns, 0))


def centered_in_place(batch):
    batch["reward"].sub_(batch["reward"].mean())
    return with_fields(batch, advantage=broadcast(batch["reward"].sum(-1), batch))


def written_into_argument(batch):
    batch["advantage"] = broadcast(batch["reward"].sum(-1), batch)
    return batch
