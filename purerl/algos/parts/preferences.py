"""Learning from pairs: two completions of one prompt, one of them preferred.

The two are rows of one group; `chosen` tells which is which. What a pair is judged by is its margin D, how much more
the policy has raised the chosen row than the rejected one, measured from an anchor:

    D = sum_t (logp - anchor) of the chosen row - sum_t (logp - anchor) of the rejected row

`preference_objective` is the mean over pairs of any loss of D. A group that is not one counted chosen row and one
counted rejected row is no pair, and leaves: value, gradient and denominator.

Metrics: `accuracy`, the share of pairs with D above 0, and `margin`, the mean of beta * D.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch.nn.functional import logsigmoid

from purerl.algos.algebra import Objective, Term, Weighted, bind, of_fields, writes
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.kernels.masks import any_true
from purerl.types import RowBool, RowFloat, RowInt, TokenBool, TokenFloat

__all__ = ["dpo_loss", "ipo_loss", "pair_margin", "pairs", "preference_objective"]


def pair_margin(logp: TokenFloat, anchor: TokenFloat, chosen: RowBool, group: RowInt, mask: TokenBool) -> RowFloat:
    """For each row, D of its pair: the log-ratio of the chosen row less that of the rejected one, nats.

    >>> logp, yes = torch.tensor([[-1.0, -1.0], [-2.0, -3.0]]), torch.tensor([[True, True], [True, True]])
    >>> pair_margin(logp, torch.zeros(2, 2), torch.tensor([True, False]), torch.tensor([4, 4]), yes)
    tensor([3., 3.])
    """
    log_ratio = sequence_log_ratio(logp, anchor, mask)
    return group_sum(torch.where(chosen, log_ratio, -log_ratio), group)


def pairs(chosen: RowBool, group: RowInt, mask: TokenBool) -> TokenBool:
    """`mask` without the rows that have no partner: their group is not one counted chosen and one counted rejected row.

    >>> chosen, mask = torch.tensor([True, False, True]), torch.tensor([[True], [True], [True]])
    >>> pairs(chosen, torch.tensor([1, 1, 2]), mask).squeeze(-1)
    tensor([ True,  True, False])
    """
    counted = any_true(mask)
    one = (group_sum((counted & kind).float(), group) == 1 for kind in (chosen, ~chosen))
    return mask & torch.stack(list(one)).all(0).unsqueeze(-1)


def dpo_loss(margin: RowFloat, *, beta: float) -> RowFloat:
    """-log sigmoid(beta * D): the margin may grow for ever, for ever less. Source: DPO (2305.18290, eq. 7)."""
    return -logsigmoid(beta * margin)


def ipo_loss(margin: RowFloat, *, beta: float) -> RowFloat:
    """(D - 1 / (2 beta))^2: the margin has a goal, and overshooting it costs. Source: IPO (2310.12036, eq. 17).

    >>> ipo_loss(torch.tensor([5.0, 6.0]), beta=0.1)
    tensor([0., 1.])
    """
    return (margin - 1 / (2 * beta)).square()


def preference_objective(loss: Callable, *, beta: float, anchor: str) -> Objective:
    """The mean over pairs of loss(D, beta=beta), with D measured from the field `anchor`."""
    margin = of_fields(pair_margin, "logp", anchor, "chosen", "group", "mask")
    return Objective(
        role="policy",
        reads=(anchor, "chosen"),
        outputs=("logp",),
        # A row's value at each of its tokens, then the mean over tokens, is the row's value; and the mean over rows is
        # the mean over pairs, for both rows of a pair have the same.
        terms=(
            Term("preference", bind(_loss, margin=margin, loss=bind(loss, beta=beta)), sequence_mean_of_token_mean),
        ),
        prepare=writes("mask", of_fields(pairs, "chosen", "group", "mask")),
        metrics=bind(_metrics, margin=margin, beta=beta),
        unit="group",
    )


def _loss(batch: TensorDict, *, margin: Callable, loss: Callable) -> TokenFloat:
    return broadcast_to_tokens(loss(margin(batch)), batch["mask"])


def _metrics(batch: TensorDict, *, margin: Callable, beta: float) -> dict[str, Weighted]:
    scaled, counted = beta * margin(batch), any_true(batch["mask"])
    right, total, rows = counted & (scaled > 0), torch.where(counted, scaled, 0), counted.sum(-1)
    return {"accuracy": Weighted(right.sum(-1), rows), "margin": Weighted(total.sum(-1), rows)}
