"""Advantages divided by the density of a beta distribution, which is fitted to the success rates of the prompts."""

from __future__ import annotations

import math

import torch

from purerl.algos.parts.groups import group_deviation, group_mean, group_size
from purerl.kernels.masks import masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["MAX_WEIGHT", "beta_log_density", "beta_normalized_advantage", "fitted_beta"]

MAX_WEIGHT = 1e6
"""The bound of the inverse density. The density is 0 at a success rate of 0 or 1 if its parameter is above 1."""


def fitted_beta(rate: RowFloat, group: RowInt, counted: RowBool) -> tuple[RowFloat, RowFloat]:
    """Compute the parameters of the normalization of BNPO from the success rates of the prompts.

        c     = mean(p) (1 - mean(p)) / var(p) - 1
        alpha = max(1, 1 + c mean(p) / 3)
        beta  = max(1, 1 + c (1 - mean(p)) / 3)

    c mean(p) and c (1 - mean(p)) are the parameters of a beta distribution with the mean and the variance of the
    success rates, which divides by the number of prompts minus 1. If there is no variance, both results are 1. `rate`
    is p, the rate of the prompt of each row, and every row gets the same parameters. Shapes: [rows] each.
    Source: BNPO (2506.02864), the bound of 1 its authors' code.

    >>> rate, counted = torch.tensor([0.2, 0.2, 0.6]), torch.tensor([True, True, True])
    >>> fitted_beta(rate, torch.tensor([1, 1, 2]), counted)
    (tensor([1.2667, 1.2667, 1.2667]), tensor([1.4000, 1.4000, 1.4000]))
    """
    share = masked(1 / group_size(counted, group, dtype=rate.dtype), counted)  # 1 for each prompt
    prompts = share.sum(-1, keepdim=True)
    mean = (share * rate).sum(-1, keepdim=True) / prompts.clamp(min=1)
    square = (share * (rate - mean).square()).sum(-1, keepdim=True)
    variance = square / (prompts - 1).clamp(min=1)
    has_variance = variance > 1e-12
    c = torch.where(has_variance, mean * (1 - mean) / torch.where(has_variance, variance, 1) - 1, 0)
    alpha, beta = (1 + c * part / 3 for part in (mean, 1 - mean))
    return alpha.clamp(min=1).expand_as(rate), beta.clamp(min=1).expand_as(rate)


def beta_log_density(p: RowFloat, alpha: RowFloat, beta: RowFloat) -> RowFloat:
    """Compute the logarithm of the density of a beta distribution at `p`, -inf where the density is 0.

        log f = (alpha - 1) log p + (beta - 1) log(1 - p) - log B(alpha, beta)

    Shapes: [rows] each; `p` is in [0, 1], and the parameters are at least 1.

    >>> beta_log_density(torch.tensor([0.5, 0.0]), torch.full((2,), 2.0), torch.full((2,), 2.0)).exp()
    tensor([1.5000, 0.0000])
    """
    log_norm = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    return torch.xlogy(alpha - 1, p) + torch.xlogy(beta - 1, 1 - p) - log_norm


def beta_normalized_advantage(score: RowFloat, group: RowInt, counted: RowBool, *, low: float, high: float) -> RowFloat:
    """Subtract the mean score of the group and divide by the density of a beta distribution at this mean, as in BNPO.

        s'_i = (s_i - low) / (high - low)
        p_g  = mean_g(s')
        A_i  = (s'_i - p_g) / f(p_g)

    f is the density with the parameters `fitted_beta`, and 1 / f is at most 1e6. Means outside of [0, 1] are
    clamped in f. Shapes: [rows] each. Source: BNPO (2506.02864).

    Two prompts with the success rates 1/4 and 3/4 have alpha = beta = 7/6, and f = 1.0466 at both.

    >>> counted, group = torch.ones(8) > 0, torch.tensor([1, 1, 1, 1, 2, 2, 2, 2])
    >>> score = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    >>> beta_normalized_advantage(score, group, counted, low=0.0, high=1.0)[:2]
    tensor([ 0.7166, -0.2389])
    """
    scaled = (score - low) / (high - low)
    rate = group_mean(scaled, group, counted).clamp(0, 1)
    log_density = beta_log_density(rate, *fitted_beta(rate, group, counted))
    return group_deviation(scaled, group, counted) * (-log_density).clamp(max=math.log(MAX_WEIGHT)).exp()
