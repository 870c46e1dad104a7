"""Changes of a batch of completions: what a batch has in training, and `completions` does not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.batch import with_fields

from .compositions import Result

__all__ = ["in_dtype", "uncounted", "with_far_policies", "with_tool_outputs", "without_rows"]


def with_tool_outputs(batch: TensorDict) -> TensorDict:
    """Some tokens inside of each completion are not the policy's own."""
    action, draw = batch["action"], torch.Generator().manual_seed(len(batch))
    last = action & (action.flip(-1).cumsum(-1).flip(-1) == 1)
    holes = action & ~last & (torch.rand(action.shape, generator=draw) < 0.3)
    assert holes.any()
    return with_fields(batch, action=action & ~holes, mask=batch["mask"] & ~holes)


def uncounted(batch: TensorDict, rows: Tensor) -> TensorDict:
    """No token of `rows`, bool [rows], is counted."""
    return with_fields(batch, mask=batch["mask"] & ~rows.unsqueeze(-1))


def with_far_policies(batch: TensorDict, *, bound: float = 40.0) -> TensorDict:
    """Log-probabilities of all policies between 0 and -`bound`: log-ratios of tens of nats, in both directions."""
    draw = torch.Generator().manual_seed(len(batch))
    names = ("logp", "old_logp", "ref_logp", "rollout_logp")
    shape = batch["logp"].shape
    fields = {name: -bound * torch.rand(shape, generator=draw, dtype=torch.float64) for name in names}
    return with_fields(batch, **fields, sum_pi_squared=fields["old_logp"].exp().square())


def in_dtype(batch: TensorDict, dtype: torch.dtype) -> TensorDict:
    """The batch with all floats in `dtype`."""
    floats = {name: value.to(dtype) for name, value in batch.items() if value.is_floating_point()}
    return with_fields(batch, **floats)


def without_rows(compute: Callable[[TensorDict], Result], batch: TensorDict, rows: Tensor) -> Result:
    """compute(batch without `rows`), with zeros at these rows."""
    found = compute(batch[~rows])
    advantage, gradient = (batch["logp"].new_zeros(batch["logp"].shape) for _ in range(2))
    advantage[~rows], gradient[~rows] = found.advantage, found.gradient
    return Result(advantage, found.loss, gradient)
