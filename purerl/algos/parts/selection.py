"""Which rows, and which tokens, an algorithm learns from."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch.nn.functional import pad

from purerl.algos.parts.groups import group_deviation, group_max, group_mean
from purerl.algos.parts.whiten import center
from purerl.kernels.masks import any_true, count_true
from purerl.types import Count, RowBool, RowFloat, RowInt, TokenBool, TokenFloat

__all__ = [
    "excess_moment",
    "groups_in_band",
    "groups_with_variance",
    "has_variance",
    "in_band",
    "largest",
    "largest_covariance",
    "least_uncertain",
    "sampled_covariance",
]


def has_variance(score: RowFloat, group: RowInt, counted: RowBool) -> RowBool:
    """Whether the scores of the row's group differ: where they do not, there is nothing to learn from comparing them.

    >>> scores, yes = torch.tensor([0.1, 0.1, 0.1, 0.2]), torch.tensor([True, True, True, True])
    >>> has_variance(scores, torch.tensor([0, 0, 1, 1]), yes)
    tensor([False, False,  True,  True])
    """
    return group_max(group_deviation(score, group, counted).abs(), group) > 0


def groups_with_variance(batch: TensorDict) -> RowBool:
    """`has_variance`, of a batch; reads `reward`. Source: dynamic sampling in DAPO (2503.14476)."""
    return has_variance(batch["reward"].sum(-1), batch["group"], any_true(batch["mask"]))


def in_band(score: RowFloat, group: RowInt, counted: RowBool, *, lowest: float, highest: float) -> RowBool:
    """Whether lowest < mean_g < highest: the prompt is neither too hard nor too easy for the policy.

    A group in which nothing counts has the mean 0.

    >>> scores, yes = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, True, True])
    >>> in_band(scores, torch.tensor([0, 0, 1, 1]), yes, lowest=0.1, highest=0.9)
    tensor([False, False,  True,  True])
    """
    mean = group_mean(score, group, counted)
    return (lowest < mean) & (mean < highest)


def groups_in_band(batch: TensorDict, *, lowest: float, highest: float) -> RowBool:
    """`in_band`, of a batch; reads `reward`. With `bind` it is a `select`."""
    score, counted = batch["reward"].sum(-1), any_true(batch["mask"])
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
    covariance = center(logp, mask) * center(advantage, mask)
    return largest(covariance, mask & (covariance > 0), _share(mask, top_fraction))


def sampled_covariance(
    logp: TokenFloat,
    advantage: TokenFloat,
    noise: TokenFloat,
    mask: TokenBool,
    *,
    fraction: float,
    cov_low: float,
    cov_high: float,
) -> TokenBool:
    """Some of the counted tokens whose covariance, as in `largest_covariance`, lies between cov_low and cov_high.

    Drawn are max(1, floor(fraction * tokens)) of them: those of largest `noise`, which is uniform and independent of
    everything. All of them, where they are fewer. Source: Cui et al. 2025 (2505.22617).
    """
    covariance = center(logp, mask) * center(advantage, mask)
    return largest(noise, mask & (covariance > cov_low) & (covariance < cov_high), _share(mask, fraction))


def least_uncertain(entropy: TokenFloat, mask: TokenBool, *, top_fraction: float) -> TokenBool:
    """The counted tokens that are not among the share `top_fraction` of largest entropy.

    Where a model chooses between several ways to go on, its entropy is large; most tokens follow from those before
    them. Spared are max(1, floor(top_fraction * tokens)) tokens, and with the last of them those that equal it.
    Source: Wang et al. 2025 (2506.01939).

    >>> entropy, yes = torch.tensor([[0.1, 2.0, 0.3, 0.0]]), torch.tensor([[True, True, True, True]])
    >>> least_uncertain(entropy, yes, top_fraction=0.25)
    tensor([[ True, False,  True,  True]])
    """
    return mask & ~largest(entropy, mask, _share(mask, top_fraction))


def excess_moment(
    logp: TokenFloat, rollout_logp: TokenFloat, advantage: TokenFloat, mask: TokenBool, *, moment_bound: float
) -> TokenBool:
    """The tokens to leave out, for the mean of e^2 over the rest to be at most `moment_bound`, e = logp - rollout_logp.

    It is about the counted tokens that have already moved where their advantage sends them (A > 0 and e > 0, or A < 0
    and e < 0). As few of them are left out as possible, those of largest e^2, and with the last of them those that
    equal it: so the choice does not depend on the order of tokens. Source: M2PO (2510.01161).

    >>> logp, yes = torch.tensor([[0.1, 0.2, 0.5]]), torch.tensor([[True, True, True]])
    >>> excess_moment(logp, torch.zeros(1, 3), torch.ones(1, 3), yes, moment_bound=0.04)
    tensor([[False, False,  True]])
    """
    moved = logp - rollout_logp
    forth = mask & (moved * advantage > 0)
    square = moved.square()
    # One more, for what is left out when nothing is.
    ordered = pad(torch.where(forth, square, torch.inf).flatten(-2), (0, 1), value=torch.inf).sort().values
    mean = ordered.cumsum(-1) / torch.ones_like(ordered).cumsum(-1)
    kept = (mean <= moment_bound).sum(-1, keepdim=True)
    return forth & (square >= ordered.gather(-1, kept).unsqueeze(-1))


def largest(x: TokenFloat, mask: TokenBool, number: Count) -> TokenBool:
    """The `number` largest counted values, and those that equal the last of them; all, where they are fewer.

    >>> largest(torch.tensor([[1.0, 3.0, 2.0, 9.0]]), torch.tensor([[True, True, True, False]]), torch.tensor(2))
    tensor([[False,  True,  True, False]])
    """
    # One more, lest there be no row.
    ordered = pad(torch.where(mask, x, -torch.inf).flatten(-2), (0, 1), value=-torch.inf).sort(descending=True).values
    return mask & (x >= ordered.gather(-1, number.unsqueeze(-1) - 1).unsqueeze(-1))


def _share(mask: TokenBool, fraction: float) -> Count:
    return (count_true(mask).sum(-1).double() * fraction).floor().long().clamp(min=1)
