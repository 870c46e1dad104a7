"""Differences of log-probabilities that are finite, also for tokens that a policy cannot sample.

A log-probability of -inf is that of a token with probability 0: its logit is masked, or the probability is below the
smallest number of the dtype. Every equation takes it as `LOGP_FLOOR`, a constant. A token with the log-probability
-inf under both policies then has the log-ratio 0 and the ratio 1; under one of them, the log-ratio is finite and far
beyond the bound of +-20 at which ratios are clamped. A current log-probability of -inf gets the gradient 0: no finite
step of the policy changes it.
"""

from __future__ import annotations

import torch

__all__ = ["LOGP_FLOOR", "finite_logp", "log_ratio", "negative_log_likelihood"]

LOGP_FLOOR = -1000.0
"""The value that replaces a log-probability of -inf, nats. exp() of it is 0 in float32."""


def finite_logp(logp: torch.Tensor) -> torch.Tensor:
    """Replace -inf by `LOGP_FLOOR`. All other values, also those below it, and NaN do not change.

    Shapes: any. The gradient of a replaced value is 0.

    >>> import torch
    >>> finite_logp(torch.tensor([-1.5, -torch.inf]))
    tensor([   -1.5000, -1000.0000])
    """
    return torch.where(logp.isneginf(), LOGP_FLOOR, logp)


def negative_log_likelihood(logp: torch.Tensor) -> torch.Tensor:
    """-logp, nats: the loss of maximum likelihood. Shapes: any.

    >>> import torch
    >>> negative_log_likelihood(torch.tensor([-1.5, -torch.inf]))
    tensor([   1.5000, 1000.0000])
    """
    return -finite_logp(logp)


def log_ratio(logp: torch.Tensor, old_logp: torch.Tensor) -> torch.Tensor:
    """Compute the log-ratio of two policies, with `finite_logp` of each log-probability.

        d_t = logp_t - old_logp_t

    It is not clamped. Shapes: any, both the same; in nats.

    >>> import torch
    >>> log_ratio(torch.tensor([-1.0, -torch.inf]), torch.tensor([-3.0, -torch.inf]))
    tensor([2., 0.])
    """
    return finite_logp(logp) - finite_logp(old_logp)
