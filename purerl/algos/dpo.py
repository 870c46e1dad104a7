"""DPO, direct preference optimisation: Rafailov et al. 2023 (2305.18290).

Learns from pairs of completions of one prompt, one of them preferred. The two are rows of one group; `chosen` tells
which is which. Nothing is sampled and nothing is rewarded: the log-ratio of policy and reference is the reward.

    D    = sum_t (logp - ref_logp) of the chosen row - sum_t (logp - ref_logp) of the rejected row
    loss = mean over pairs of -log sigmoid(beta * D)

Choices, where libraries differ: log-probabilities are summed over counted tokens, not averaged; labels are not
smoothed. A group that is not one counted chosen row and one counted rejected row is no pair, and leaves: value,
gradient and denominator.

Metrics: `accuracy`, the share of pairs with D above 0, and `margin`, the mean of beta * D.

Differences from the paper: none.
"""

from __future__ import annotations

import torch
from attrs import frozen
from tensordict import TensorDict
from torch.nn.functional import logsigmoid

from purerl.algos.algebra import Algorithm, Objective, Term, Weighted, bind, identity, on, writes
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import spread
from purerl.types import RowBool, RowFloat, RowInt, TokenBool, TokenFloat

__all__ = ["Config", "algorithm", "dpo_loss", "pair_margin", "pairs"]


@frozen(kw_only=True)
class Config:
    """The hyper-parameter of DPO."""

    beta: float = number("how strongly the policy is held to the reference", 0.1, above=0)


def pair_margin(logp: TokenFloat, ref_logp: TokenFloat, chosen: RowBool, group: RowInt, mask: TokenBool) -> RowFloat:
    """For each row, D of its pair: the log-ratio of the chosen row less that of the rejected one, nats.

    >>> logp, yes = torch.tensor([[-1.0, -1.0], [-2.0, -3.0]]), torch.tensor([[True, True], [True, True]])
    >>> pair_margin(logp, torch.zeros(2, 2), torch.tensor([True, False]), torch.tensor([4, 4]), yes)
    tensor([3., 3.])
    """
    log_ratio = torch.where(mask, logp - ref_logp, 0).sum(-1)
    return group_sum(torch.where(chosen, log_ratio, -log_ratio), group)


def dpo_loss(margin: RowFloat, *, beta: float) -> RowFloat:
    """-log sigmoid(beta * D)."""
    return -logsigmoid(beta * margin)


def pairs(chosen: RowBool, group: RowInt, mask: TokenBool) -> TokenBool:
    """`mask` without the rows that have no partner: their group is not one counted chosen and one counted rejected row.

    >>> chosen, mask = torch.tensor([True, False, True]), torch.tensor([[True], [True], [True]])
    >>> pairs(chosen, torch.tensor([1, 1, 2]), mask).squeeze(-1)
    tensor([ True,  True, False])
    """
    counted = mask.any(-1)
    one = (group_sum((counted & kind).float(), group) == 1 for kind in (chosen, ~chosen))
    return mask & torch.stack(list(one)).all(0).unsqueeze(-1)


def algorithm(config: Config = Config()) -> Algorithm:
    """DPO as `config` sets it."""
    objective = Objective(
        role="policy",
        reads=("ref_logp", "chosen"),
        outputs=("logp",),
        # A row's value at each of its tokens, then the mean over tokens, is the row's value; and the mean over rows is
        # the mean over pairs, for both rows of a pair have the same.
        terms=(Term("preference", bind(_loss, beta=config.beta), sequence_mean_of_token_mean),),
        prepare=writes("mask", on(pairs, "chosen", "group", "mask")),
        metrics=bind(_metrics, beta=config.beta),
        unit="group",
    )
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))


_margin = on(pair_margin, "logp", "ref_logp", "chosen", "group", "mask")


def _loss(batch: TensorDict, *, beta: float) -> TokenFloat:
    return spread(dpo_loss(_margin(batch), beta=beta), batch["mask"])


def _metrics(batch: TensorDict, *, beta: float) -> dict[str, Weighted]:
    margin, counted = beta * _margin(batch), batch["mask"].any(-1)
    right, total, rows = counted & (margin > 0), torch.where(counted, margin, 0), counted.sum(-1)
    return {"accuracy": Weighted(right.sum(-1), rows), "margin": Weighted(total.sum(-1), rows)}
