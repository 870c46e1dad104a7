"""Rewards for episodes of several turns, which need an answer in the last turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purerl.rewards.adapters import checked_by, needs_one_of
from purerl.rewards.math import gsm8k
from purerl.rewards.truths import number_truth

__all__ = ["ends_with_answer", "gsm8k_answer"]


def ends_with_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the conversation ends with a turn of the model that calls no tool.

    It does not if the last turn that is allowed is a call, or if a call is cut at the maximum number of tokens.

    >>> ends_with_answer([{"role": "assistant", "content": "It is 4."}])
    True
    >>> ends_with_answer([{"role": "assistant", "content": "<tool_call> 2 + 2"}, {"role": "tool", "content": "4"}])
    False
    """
    last = messages[-1]
    is_call = bool(last.get("tool_calls")) or "<tool_call>" in (last.get("content") or "")
    return last["role"] == "assistant" and not is_call


@needs_one_of("answer", "reward_model")
@checked_by(number_truth)
def gsm8k_answer(completion: str, example: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> float:
    """As `purerl.rewards.math.gsm8k`, and 0 if the episode ends with a call of a tool, whatever numbers are in it."""
    return gsm8k(completion, example) if ends_with_answer(messages) else 0.0
