"""The ends of the steps of a completion in the tokens of its row, for rewards of steps."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Any

from purerl.data.pieces import decode_tokens
from purerl.rewards.steps import split_steps
from purerl.rollouts.types import Trajectory

__all__ = ["step_ends"]


def step_ends(tokenizer: Any, row: Trajectory, separator: str) -> list[int]:
    """The position in `row` of the last token of each step of its last turn, whose text is ``texts["completion"]``.

    That is the token with the last character of the separator. The last step ends at the last action token of the row.
    A token that has the ends of two steps is there twice.
    """
    action = row.fields["action"]
    end = max(k for k, is_action in enumerate(action) if is_action) + 1
    start = next((k + 1 for k in reversed(range(end)) if not action[k]), 0)
    backend = getattr(tokenizer, "backend_tokenizer", None) or tokenizer  # transformers takes longer than the decoding
    pieces = decode_tokens(lambda ids: backend.decode(ids, skip_special_tokens=True), row.fields["tokens"][start:end])
    lengths = [*accumulate(map(len, pieces))]
    steps = split_steps(row.texts["completion"], separator)
    inner = [start + min(bisect_left(lengths, step.end), end - start - 1) for step in steps[:-1]]
    return [*inner, end - 1]
