"""Rows of full length."""

from __future__ import annotations

import torch
from tensordict import TensorDict

__all__ = ["full_rows"]


def full_rows(rows: int, prompt: int, completion: int) -> TensorDict:
    """Rows of one token, whose completions are actions."""
    is_action = (torch.arange(prompt + completion) >= prompt).expand(rows, -1)
    fields = {
        "tokens": torch.ones(rows, prompt + completion, dtype=torch.int64),
        "attention_mask": torch.ones_like(is_action),
        "action": is_action,
        "mask": is_action,
        "row": torch.arange(rows),
        "group": torch.arange(rows),
        "temperature": torch.ones(rows),
    }
    return TensorDict(fields, batch_size=[rows])
