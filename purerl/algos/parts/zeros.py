"""Zeros in place of the floats that an equation must not read."""

from __future__ import annotations

import torch

from purerl.algos.parts.log_ratios import finite_logp
from purerl.batch import ROW_FIELDS, with_fields
from purerl.kernels.masks import any_true
from purerl.types import RowBool, TensorDict, TokenBool

__all__ = ["zero_outside", "zero_outside_actions"]


def zero_outside(batch: TensorDict, mask: TokenBool) -> TensorDict:
    """Set float fields to 0: fields of tokens at masked-out tokens, fields of rows in rows without a counted token.

    Masked-out tokens must have no effect. A `torch.where` after the equation is not enough: the gradient of
    where(mask, exp(x), 0) is NaN if x is infinite. The inputs are therefore set to 0 before the equations, which need
    no mask. Log-probabilities of -inf are replaced as in `parts.log_ratios`.
    """
    rows, floats = any_true(mask), {name: value for name, value in batch.items() if _is_float(value)}
    return with_fields(batch, **{name: _zero_field(name, value, mask, rows) for name, value in floats.items()})


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _zero_field(name: str, value: torch.Tensor, mask: TokenBool, rows: RowBool) -> torch.Tensor:
    keep = rows if name in ROW_FIELDS or value.ndim == rows.ndim else mask
    value = finite_logp(value) if name.endswith("logp") else value
    return torch.where(keep.reshape(keep.shape + (1,) * (value.ndim - keep.ndim)), value, 0)


def zero_outside_actions(batch: TensorDict) -> TensorDict:
    """Set floats to 0 outside of action tokens and in rows without a counted token, as `compute_advantages` says."""
    counted = any_true(batch["mask"]).unsqueeze(-1)
    zeroed = zero_outside(batch, batch["action"] & counted)
    if "reward" in batch.keys():
        zeroed = with_fields(zeroed, reward=torch.where(batch["attention_mask"] & counted, batch["reward"], 0))
    return zeroed
