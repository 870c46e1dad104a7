"""Selection of the rows and tokens that an algorithm trains on."""

from __future__ import annotations

import torch

from purerl.algos.parts.groups import group_deviation, group_max, group_mean
from purerl.algos.parts.log_ratios import finite_logp, log_ratio
from purerl.algos.parts.whiten import center
from purerl.kernels.masks import any_true, as_mask, count_true, masked
from purerl.types import Count, RowBool, RowFloat, RowInt, TensorDict, TokenBool, TokenFloat

__all__ = [
    "groups_with_mean_in_range",
    "groups_with_variance",
    "has_mean_in_range",
    "has_variance",
    "high_covariance_tokens",
    "low_entropy_tokens",
    "sampled_covariance_tokens",
    "second_moment_outliers",
    "top_k_mask",
]


def has_variance(score: RowFloat, group: RowInt, counted: RowBool) -> RowBool:
    """Return for each row whether the scores of its group differ. A group with equal scores has no learning signal.

    Only counted rows are compared. Shapes: [rows] each. Source: dynamic sampling in DAPO (2503.14476).

    >>> scores, counted = torch.tensor([0.1, 0.1, 0.1, 0.2]), torch.tensor([True, True, True, True])
    >>> has_variance(scores, torch.tensor([0, 0, 1, 1]), counted)
    tensor([False, False,  True,  True])
    """
    return group_max(group_deviation(score, group, counted).abs(), group) > 0


def groups_with_variance(batch: TensorDict) -> RowBool:
    """Compute `has_variance` of the rewards of a batch, for the `select` of an algorithm. Reads `reward`."""
    return has_variance(batch["reward"].sum(-1), batch["group"], any_true(batch["mask"]))


def has_mean_in_range(score: RowFloat, group: RowInt, counted: RowBool, *, low: float, high: float) -> RowBool:
    """Return for each row whether low < mean_g < high: the prompt is neither too hard nor too easy for the policy.

    The mean is over counted rows, and 0 if there is none. Shapes: [rows] each.

    >>> scores, counted = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, True, True])
    >>> has_mean_in_range(scores, torch.tensor([0, 0, 1, 1]), counted, low=0.1, high=0.9)
    tensor([False, False,  True,  True])
    """
    mean = group_mean(score, group, counted)
    return (low < mean) & (mean < high)


def groups_with_mean_in_range(batch: TensorDict, *, low: float, high: float) -> RowBool:
    """Compute `has_mean_in_range` of the rewards of a batch. With `bind`, it is the `select` of an algorithm.

    Reads `reward`.
    """
    score, counted = batch["reward"].sum(-1), any_true(batch["mask"])
    return has_mean_in_range(score, batch["group"], counted, low=low, high=high)


def high_covariance_tokens(
    logp: TokenFloat, advantage: TokenFloat, mask: TokenBool, *, top_fraction: float
) -> TokenBool:
    """Select the counted tokens with the largest covariance of log-probability and advantage, as in KL-Cov.

        cov_t = (logp_t - mean(logp)) (A_t - mean(A))

    The result selects the max(1, floor(top_fraction * tokens)) tokens with the largest covariance, if it is above 0.
    Tokens that tie with the last of them are selected too, so the choice does not depend on the order of tokens. The
    means and the number of tokens are over all counted tokens of the batch. Shapes: [rows, time] each.
    Source: Cui et al. 2025 (2505.22617).

    >>> logp, advantage = torch.tensor([[-1.0, -2.0, -6.0]]), torch.tensor([[1.0, 1.0, -1.0]])
    >>> high_covariance_tokens(logp, advantage, torch.tensor([[True, True, True]]), top_fraction=0.5)
    tensor([[False, False,  True]])
    """
    covariance = center(finite_logp(logp), mask) * center(advantage, mask)
    return top_k_mask(covariance, mask & (covariance > 0), _fraction_of_tokens(mask, top_fraction))


def sampled_covariance_tokens(
    logp: TokenFloat,
    advantage: TokenFloat,
    noise: TokenFloat,
    mask: TokenBool,
    *,
    fraction: float,
    cov_low: float,
    cov_high: float,
) -> TokenBool:
    """Sample counted tokens with a covariance between cov_low and cov_high, as in Clip-Cov.

        cov_t = (logp_t - mean(logp)) (A_t - mean(A))

    The result selects max(1, floor(fraction * tokens)) of these tokens: those with the largest `noise`, which is
    uniform and independent of everything else. If there are fewer, it selects all of them. The means and the number of
    tokens are over all counted tokens of the batch. Shapes: [rows, time] each. Source: Cui et al. 2025 (2505.22617).
    """
    covariance = center(finite_logp(logp), mask) * center(advantage, mask)
    candidates = mask & (covariance > cov_low) & (covariance < cov_high)
    return top_k_mask(noise, candidates, _fraction_of_tokens(mask, fraction))


def low_entropy_tokens(entropy: TokenFloat, mask: TokenBool, *, top_fraction: float) -> TokenBool:
    """Select the counted tokens that are not among the fraction `top_fraction` with the largest entropy.

    The max(1, floor(top_fraction * tokens)) counted tokens with the largest entropy are not selected, and neither are
    tokens that tie with the last of them. These unselected tokens are the forking tokens, at which a completion can
    continue in several ways. Shapes: [rows, time] each, `entropy` in nats. Source: Wang et al. 2025 (2506.01939).

    >>> entropy, mask = torch.tensor([[0.1, 2.0, 0.3, 0.0]]), torch.tensor([[True, True, True, True]])
    >>> low_entropy_tokens(entropy, mask, top_fraction=0.25)
    tensor([[ True, False,  True,  True]])
    """
    return mask & ~top_k_mask(entropy, mask, _fraction_of_tokens(mask, top_fraction))


def second_moment_outliers(
    logp: TokenFloat, rollout_logp: TokenFloat, advantage: TokenFloat, mask: TokenBool, *, moment_bound: float
) -> TokenBool:
    """Select the tokens to drop so that the second moment of the log-ratios is at most `moment_bound`, as in M2PO.

        e_t = logp_t - rollout_logp_t

    Only counted tokens with (A > 0 and e > 0) or (A < 0 and e < 0) are considered: their probability has already
    changed in the direction of the advantage. The result selects the smallest number of tokens, those with the largest
    e^2, so that the mean of e^2 over the rest is at most `moment_bound`. Tokens that tie with the last of them are
    selected too, so the choice does not depend on the order of tokens. Shapes: [rows, time] each, log-probabilities in
    nats, `moment_bound` in nats^2. Source: M2PO (2510.01161).

    >>> logp, mask = torch.tensor([[0.1, 0.2, 0.5]]), torch.tensor([[True, True, True]])
    >>> second_moment_outliers(logp, torch.zeros(1, 3), torch.ones(1, 3), mask, moment_bound=0.04)
    tensor([[False, False,  True]])
    """
    difference = log_ratio(logp, rollout_logp)
    candidates = as_mask(mask) & (difference * advantage > 0)
    square = difference.square()
    # The padding is the threshold if no token is dropped.
    flat = _flat(masked(square, candidates, torch.inf))
    ordered = torch.nn.functional.pad(flat, (0, 1), value=torch.inf).sort().values
    mean = ordered.cumsum(-1) / torch.ones_like(ordered).cumsum(-1)
    num_kept = (mean <= moment_bound)[..., :-1].sum(-1, keepdim=True)  # without the padding
    return candidates & (square >= ordered.gather(-1, num_kept).unsqueeze(-1)).reshape(square.shape)


def top_k_mask(x: TokenFloat, mask: TokenBool, k: Count) -> TokenBool:
    """Select the k largest values of `x` at counted tokens, and all that tie with the last of them.

    If fewer than k tokens are counted, it selects all of them. Shapes: `x` and `mask` are [rows, time], `k` is a
    scalar.

    >>> top_k_mask(torch.tensor([[1.0, 3.0, 2.0, 9.0]]), torch.tensor([[True, True, True, False]]), torch.tensor(2))
    tensor([[False,  True,  True, False]])
    """
    # The padding avoids an index error for a batch without rows.
    flat = _flat(masked(x, mask, -torch.inf))
    ordered = torch.nn.functional.pad(flat, (0, 1), value=-torch.inf).sort(descending=True).values
    return mask & (x >= ordered.gather(-1, k.unsqueeze(-1) - 1).unsqueeze(-1)).reshape(x.shape)


def _flat(x: TokenFloat) -> torch.Tensor:
    """All tokens of the batch along one axis: [rows, time] -> [rows * time]."""
    return torch.atleast_2d(x).flatten(-2)


def _fraction_of_tokens(mask: TokenBool, fraction: float) -> Count:
    return (count_true(mask).sum(-1).double() * fraction).floor().long().clamp(min=1)
