"""Learning from labeled completions: each is desirable or undesirable by itself.

The field `desirable` has the label of each row. A row that is `mismatched` has the completion of another prompt. Such
rows have no loss. Their log-ratios only estimate how far the policy is from the anchor.

Arguments are [rows], log-ratios in nats.
"""

from __future__ import annotations

import torch

from purerl.kernels.masks import as_mask, masked
from purerl.types import RowBool, RowFloat, TokenBool

__all__ = ["kto_loss", "matched_tokens", "mismatched_kl"]


def mismatched_kl(log_ratio: RowFloat, mismatched: RowBool, counted: RowBool) -> RowFloat:
    """Estimate the KL divergence of the policy from the anchor by the mean log-ratio of the mismatched rows.

        z = max(0, (1 / M) sum_j L_j)

    The sum is over the M counted rows that are mismatched. Every row gets z, which is 0 if M is 0. Shapes: [rows] each,
    nats. Source: KTO (2402.01306).

    >>> log_ratio, mismatched = torch.tensor([7.0, 3.0, 1.0]), torch.tensor([False, True, True])
    >>> mismatched_kl(log_ratio, mismatched, torch.tensor([True, True, True]))
    tensor([2., 2., 2.])
    """
    is_used = as_mask(mismatched) & as_mask(counted)
    total = masked(log_ratio, is_used).sum(-1, keepdim=True)
    rows = is_used.to(log_ratio.dtype).sum(-1, keepdim=True)
    return (total / rows.clamp(min=1)).clamp(min=0).expand_as(log_ratio)


def matched_tokens(mismatched: RowBool, mask: TokenBool) -> TokenBool:
    """Return `mask` without the mismatched rows. Shapes: [rows] and [rows, time]; the result is [rows, time].

    >>> matched_tokens(torch.tensor([True, False]), torch.tensor([[True], [True]])).squeeze(-1)
    tensor([False,  True])
    """
    return as_mask(mask) & ~as_mask(mismatched).unsqueeze(-1)


def kto_loss(
    log_ratio: RowFloat,
    desirable: RowBool,
    reference_point: RowFloat,
    *,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
) -> RowFloat:
    """Compute the KTO loss of each row.

        l = desirable_weight (1 - sigmoid(beta (L - z)))      if the completion is desirable
            undesirable_weight (1 - sigmoid(beta (z - L)))    else

    `reference_point` is z. The gradient is largest at L = z, and small for completions that are already far on the
    right side, or far on the wrong one. Shapes: [rows] each. Source: KTO (2402.01306).

    >>> weights = dict(desirable_weight=1.0, undesirable_weight=2.0)
    >>> kto_loss(torch.zeros(2), torch.tensor([True, False]), torch.zeros(2), beta=0.1, **weights)
    tensor([0.5000, 1.0000])
    """
    error, desirable = beta * (log_ratio - reference_point), as_mask(desirable)
    return torch.where(desirable, desirable_weight * torch.sigmoid(-error), undesirable_weight * torch.sigmoid(error))
