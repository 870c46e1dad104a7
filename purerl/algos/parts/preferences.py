"""Preference learning: losses of pairs of completions of the same prompt, a chosen and a rejected one.

The two completions are rows of one group, and `chosen` marks the preferred one. The loss is a function of the margin D
of the pair: the log-ratio of the chosen row minus the log-ratio of the rejected row, relative to an anchor policy.

    L_i = sum_t m_it (logp_it - anchor_it)
    D   = L_chosen - L_rejected

`preference_objective` is the mean over pairs of any loss of D. A pair is a group with exactly one counted chosen row
and one counted rejected row. The rows of other groups have no effect on the value, the gradient or the denominator.

Metrics: `accuracy`, the fraction of pairs with D > 0, and `margin`, the mean of beta * D.

A reward model scores each row instead. Its loss is a function of the difference and the sum of the two scores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import logsigmoid

from purerl.algos.algebra import Objective, Term, Weighted, bind, of_fields, write_field
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.kernels.masks import any_true
from purerl.types import RowBool, RowFloat, RowInt, TensorDict, TokenBool, TokenFloat

__all__ = [
    "bradley_terry_loss",
    "centering_loss",
    "dpo_loss",
    "ipo_loss",
    "pair_difference",
    "pair_margin",
    "pair_mask",
    "preference_objective",
    "robust_dpo_loss",
    "smoothed_dpo_loss",
]


def pair_margin(logp: TokenFloat, anchor: TokenFloat, chosen: RowBool, group: RowInt, mask: TokenBool) -> RowFloat:
    """Compute the margin D of the pair of each row: log-ratio of the chosen row minus log-ratio of the rejected row.

        L_i = sum_t m_it (logp_it - anchor_it)
        D   = L_chosen - L_rejected

    Shapes: `logp`, `anchor` and `mask` are [rows, time], `chosen` and `group` are [rows]. The result is [rows], in
    nats; both rows of a pair get the same value. It is a margin only for rows that `pair_mask` keeps.
    Source: DPO (2305.18290).

    >>> logp, mask = torch.tensor([[-1.0, -1.0], [-2.0, -3.0]]), torch.tensor([[True, True], [True, True]])
    >>> pair_margin(logp, torch.zeros(2, 2), torch.tensor([True, False]), torch.tensor([4, 4]), mask)
    tensor([3., 3.])
    """
    return pair_difference(sequence_log_ratio(logp, anchor, mask), chosen, group)


def pair_difference(x: RowFloat, chosen: RowBool, group: RowInt) -> RowFloat:
    """Compute x of the chosen row minus x of the rejected row, for the pair of each row.

    Both rows of a pair get the same value. It is a difference only for rows that `pair_mask` keeps. Shapes: [rows].

    >>> pair_difference(torch.tensor([3.0, 1.0]), torch.tensor([True, False]), torch.tensor([4, 4]))
    tensor([2., 2.])
    """
    return group_sum(torch.where(chosen, x, -x), group)


def pair_mask(chosen: RowBool, group: RowInt, mask: TokenBool) -> TokenBool:
    """Return `mask` without the rows of groups that are not a pair.

    A pair is a group with exactly one counted chosen row and one counted rejected row. Shapes: `chosen` and `group` are
    [rows], `mask` and the result are [rows, time].

    >>> chosen, mask = torch.tensor([True, False, True]), torch.tensor([[True], [True], [True]])
    >>> pair_mask(chosen, torch.tensor([1, 1, 2]), mask).squeeze(-1)
    tensor([ True,  True, False])
    """
    counted = any_true(mask)
    has_one = [group_sum((counted & kind).float(), group) == 1 for kind in (chosen, ~chosen)]
    return mask & torch.stack(has_one).all(0).unsqueeze(-1)


def dpo_loss(margin: RowFloat, *, beta: float) -> RowFloat:
    """Compute the DPO loss of each pair.

        l = -log sigmoid(beta * D)

    The loss decreases toward 0 with the margin. It is finite for any margin. Shapes: [rows] each, `margin` in nats.
    Source: DPO (2305.18290, eq. 7).
    """
    return -logsigmoid(beta * margin)


def smoothed_dpo_loss(margin: RowFloat, *, beta: float, smoothing: float) -> RowFloat:
    """Compute the DPO loss of each pair with smoothed labels (cDPO).

        l = -(1 - smoothing) log sigmoid(beta * D) - smoothing log sigmoid(-beta * D)

    This is the expected DPO loss if the label of a pair is wrong with probability `smoothing`. The minimum is at the
    margin with sigmoid(beta * D) = 1 - smoothing. Shapes: [rows] each, `margin` in nats.
    Source: Mitchell 2023, "A note on DPO with noisy preferences".
    """
    return (1 - smoothing) * dpo_loss(margin, beta=beta) + smoothing * dpo_loss(-margin, beta=beta)


def robust_dpo_loss(margin: RowFloat, *, beta: float, smoothing: float) -> RowFloat:
    """Compute the DPO loss of each pair without the bias of wrong labels.

        l = ((smoothing - 1) log sigmoid(beta * D) + smoothing log sigmoid(-beta * D)) / (1 - 2 smoothing)

    If labels are wrong with probability `smoothing`, the expected value is the DPO loss under correct labels. The loss
    decreases with the margin without a bound. Shapes: [rows] each, `margin` in nats. Source: robust DPO (2403.00409).
    """
    difference = (1 - smoothing) * dpo_loss(margin, beta=beta) - smoothing * dpo_loss(-margin, beta=beta)
    return difference / (1 - 2 * smoothing)


def ipo_loss(margin: RowFloat, *, beta: float) -> RowFloat:
    """Compute the IPO loss of each pair.

        l = (D - 1 / (2 beta))^2

    The minimum is at a margin of 1 / (2 beta); a larger margin is penalized too. Shapes: [rows] each, `margin` in nats.
    Source: IPO (2310.12036, eq. 17).

    >>> ipo_loss(torch.tensor([5.0, 6.0]), beta=0.1)
    tensor([0., 1.])
    """
    return (margin - 1 / (2 * beta)).square()


def bradley_terry_loss(difference: RowFloat, margin: RowFloat | float) -> RowFloat:
    """Compute the negative log-likelihood of each pair under the model of Bradley and Terry, with a margin.

        l = -log sigmoid(d - margin)

    `difference` d is the score of the chosen row minus that of the rejected row. With a margin m the difference must be
    larger by m for the same loss. The loss is finite for any difference. Shapes: [rows] each.
    Source: InstructGPT (2203.02155, eq. 1); the margin: Llama 2 (2307.09288, eq. 2).

    >>> bradley_terry_loss(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    tensor([0.6931, 0.1269])
    """
    return -logsigmoid(difference - margin)


def centering_loss(total: RowFloat) -> RowFloat:
    """Compute the square of the sum of both scores of each pair.

        l = (s_chosen + s_rejected)^2

    The loss of Bradley and Terry does not change if a constant is added to all scores. This one has its minimum where
    the mean of the two scores is 0. `total` is the sum of both scores. Shapes: [rows].
    Source: Eisenstein et al. 2023 (2312.09244, section 2).
    """
    return total.square()


def preference_objective(loss: Callable, *, beta: float, anchor: str) -> Objective:
    """Return the objective mean over pairs of loss(D, beta=beta), with the field `anchor` as the anchor of D."""
    margin = of_fields(pair_margin, "logp", anchor, "chosen", "group", "mask")
    return Objective(
        role="policy",
        reads=(anchor, "chosen"),
        outputs=("logp",),
        # All tokens of a row have the same value, so the mean over its tokens is the value of the row. Both rows of a
        # pair have the same value, so the mean over rows is the mean over pairs.
        terms=(
            Term("preference", bind(_loss, margin=margin, loss=bind(loss, beta=beta)), sequence_mean_of_token_mean),
        ),
        prepare=write_field("mask", of_fields(pair_mask, "chosen", "group", "mask")),
        metrics=bind(_metrics, margin=margin, beta=beta),
        unit="group",
    )


def _loss(batch: TensorDict, *, margin: Callable, loss: Callable) -> TokenFloat:
    return broadcast_to_tokens(loss(margin(batch)), batch["mask"])


def _metrics(batch: TensorDict, *, margin: Callable, beta: float) -> dict[str, Weighted]:
    scaled, counted = beta * margin(batch), any_true(batch["mask"])
    correct, margins, rows = counted & (scaled > 0), torch.where(counted, scaled, 0), counted.sum(-1)
    return {"accuracy": Weighted(correct.sum(-1), rows), "margin": Weighted(margins.sum(-1), rows)}
