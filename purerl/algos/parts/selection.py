"""Which rows, and which tokens, an algorithm learns from."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch.nn.functional import pad

from purerl.algos.parts.groups import group_deviation, group_max, group_size, group_sum
from purerl.algos.parts.whiten import centre
from purerl.types import RowBool, RowFloat, RowInt, TokenBool, TokenFloat

__all__ = ["groups_in_band", "groups_that_vary", "in_band", "largest_covariance", "varies"]


def varies(score: RowFloat, group: RowInt, counted: RowBool) -> RowBool:
    """Whether the scores of the row's group differ: where they do not, there is nothing to learn from comparing them.

    >>> scores, yes = torch.tensor([0.1, 0.1, 0.1, 0.2]), torch.tensor([True, True, True, True])
    >>> varies(scores, torch.tensor([0, 0, 1, 1]), yes)
    tensor([False, False,  True,  True])
    """
    return group_max(group_deviation(score, group, counted).abs(), group) > 0


def groups_that_vary(batch: TensorDict) -> RowBool:
    """`varies`, of a batch; reads `reward`. Source: dynamic sampling in DAPO (2503.14476)."""
    return varies(batch["reward"].sum(-1), batch["group"], batch["mask"].any(-1))


def in_band(score: RowFloat, group: RowInt, counted: RowBool, *, lowest: float, highest: float) -> RowBool:
    """Whether lowest < mean_g < highest: the prompt is neither too hard nor too easy for the policy.

    A group in which nothing counts has the mean 0.

    >>> scores, yes = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, True, True])
    >>> in_band(scores, torch.tensor([0, 0, 1, 1]), yes, lowest=0.1, highest=0.9)
    tensor([False, False,  True,  True])
    """
    mean = group_sum(torch.where(counted, score, 0), group) / group_size(counted, group, dtype=score.dtype)
    return (lowest < mean) & (mean < highest)


def groups_in_band(batch: TensorDict, *, lowest: float, highest: float) -> RowBool:
    """`in_band`, of a batch; reads `reward`. With `bind` it is a `select`."""
    score, counted = batch["reward"].sum(-1), batch["mask"].any(-1)
    return in_band(score, batch["group"], counted, lowest=lowest, highest=highest)


def largest_covariance(logp: TokenFloat, advantage: TokenFloat, mask: TokenBool, *, top_fraction: float) -> TokenBool:
    """The counted tokens whose likelihood and advantage are both far above the mean, or both far below.

        cov_t = (logp_t - mean logp) (A_t - mean A)

    Chosen are the max(1, floor(top_fraction * tokens)) largest that are above 0, and with the last of them those that
    equal it: so the choice does not depend on the order of tokens. Means and number are over all counted tokens.
    Source: Cui et al. 2025 (2505.22617).

    >>> logp, advantage = torch.tensor([[-1.0, -2.0, -6.0]]), torch.tensor([[1.0, 1.0, -1.0]])
    >>> largest_covariance(logp, advantage, torch.tensor([[True, True, True]]), top_fraction=0.5)
    tensor([[False, False,  True]])
    """
    covariance = torch.where(mask, centre(logp, mask) * centre(advantage, mask), 0)
    number = (mask.sum((-2, -1)).double() * top_fraction).floor().long().clamp(min=1)
    # One more, lest there be no row.
    ordered = pad(covariance.flatten(-2), (0, 1)).sort(descending=True).values
    last = ordered.gather(-1, number.unsqueeze(-1) - 1).unsqueeze(-1)
    return (covariance >= last) & (covariance > 0)
