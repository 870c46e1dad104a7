"""Losses with a target for the log-probabilities of whole rows.

The log-ratio of row i is L_i = sum_t m_it (logp_it - anchor_it), in nats, relative to an anchor policy. A policy
gradient only gives the direction of an update. These losses have a target for L_i, at which they are 0, and need no
clipping.

Arguments are [rows]: `log_ratio`, with gradient, and `advantage`, in units of reward. `sequence_log_ratio` and
`row_mean` compute them from values of tokens.
"""

from __future__ import annotations

from purerl.algos.parts.groups import group_deviation, group_log_softmax, group_size, group_sum
from purerl.kernels.masks import masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["advantage_regression", "gvpo_loss", "sppo_loss", "target_cross_entropy"]


def sppo_loss(log_ratio: RowFloat, advantage: RowFloat, *, eta: float) -> RowFloat:
    """Compute the SPPO loss of each row.

        l_i = (L_i - eta * A_i)^2

    `advantage` is the win rate of the row minus 1/2 (`win_rate_advantage`). Shapes: [rows] each.
    Source: SPPO (2405.00675).

    >>> import torch
    >>> sppo_loss(torch.tensor([3.0]), torch.tensor([0.5]), eta=4.0)
    tensor([1.])
    """
    return (log_ratio - eta * advantage).square()


def advantage_regression(log_ratio: RowFloat, advantage: RowFloat, *, beta: float) -> RowFloat:
    """Compute the A*-PO loss of each row.

        l_i = (beta * L_i - A_i)^2

    `log_ratio` is relative to the reference model, and `advantage` is the reward of the row minus the optimal value of
    its prompt (`optimal_value`). Shapes: [rows] each. Source: A*-PO (2505.20686).

    >>> import torch
    >>> advantage_regression(torch.tensor([4.0, 4.0]), torch.tensor([1.0, -1.0]), beta=0.25)
    tensor([0., 4.])
    """
    return (beta * log_ratio - advantage).square()


def gvpo_loss(log_ratio: RowFloat, advantage: RowFloat, group: RowInt, counted: RowBool, *, beta: float) -> RowFloat:
    """Compute the GVPO loss of each row.

        l_i = N_g / (2 (N_g - 1)) (beta * (L_i - mean_g(L)) - A_i)^2

    `advantage` is s_i - mean_g (`group_centered_advantage`). The mean over the rows of a group is then half the
    unbiased variance of beta * L_i - s_i. A constant in L cancels, for example the logarithm of a partition function,
    so it need not be known. The loss is 0 in a group of one row. Shapes: [rows] each. Source: GVPO (2504.19599).

    >>> import torch
    >>> counted, group = torch.tensor([True, True]), torch.tensor([5, 5])
    >>> gvpo_loss(torch.tensor([2.0, 0.0]), torch.tensor([0.5, -0.5]), group, counted, beta=1.0)
    tensor([0.2500, 0.2500])
    """
    size = group_size(counted, group, dtype=log_ratio.dtype)
    error = beta * group_deviation(log_ratio, group, counted) - advantage
    return error.square() * size / (2 * (size - 1).clamp(min=1))


def target_cross_entropy(
    logp: RowFloat, old_logp: RowFloat, advantage: RowFloat, group: RowInt, counted: RowBool, *, eta: float
) -> RowFloat:
    """Compute the TPO loss of each group: the cross-entropy of the policy over the rows of the group to a target.

        p_i = exp(L_i) / sum_g exp(L_j)
        q_i = exp(L_old_i + A_i / eta) / sum_g exp(L_old_j + A_j / eta)
        l_g = -sum_g q_i log p_i

    `logp`, L, and `old_logp`, L_old, are the log-probabilities of whole rows. Every row gets the loss of its group. The
    gradient with respect to L_i is p_i - q_i. Shapes: [rows] each. Source: TPO (2604.06159, eqs. 1 to 3).

    >>> import torch
    >>> logp, group, counted = torch.zeros(2), torch.tensor([5, 5]), torch.tensor([True, True])
    >>> target_cross_entropy(logp, logp, torch.tensor([1.0, -1.0]), group, counted, eta=1.0)
    tensor([0.6931, 0.6931])
    """
    target = group_log_softmax(old_logp + advantage / eta, group, counted).exp()
    return group_sum(masked(-target * group_log_softmax(logp, group, counted), counted), group)
