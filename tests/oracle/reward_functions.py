"""Reward functions as users of verl, TRL and OpenRLHF write them. Both libraries and purerl call them unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import torch


def verl_number(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(solution_str == ground_truth) + 0.25 * extra_info["index"] + 0.125 * (data_source == "math_dapo")


def verl_mapping(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    return {
        "score": 2.0 * (solution_str == ground_truth) - 1.0,
        "acc": solution_str == ground_truth,
        "pred": solution_str,
    }


async def verl_async(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"score": len(solution_str) / 10, "turns": extra_info["num_turns"] or 0}


def verl_batch(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[dict[str, float]]:
    mean = sum(map(len, solution_strs)) / len(solution_strs)
    texts = zip(solution_strs, ground_truths, extra_infos, strict=True)
    return [{"score": len(text) - mean + (text == truth), "index": info["index"]} for text, truth, info in texts]


def trl_columns(prompts: Sequence[Any], completions: Sequence[Any], level: Sequence[int], **kwargs: Any) -> list[float]:
    assert len(prompts) == len(completions) == len(kwargs["solution"])
    return [0.5 * value for value in level]


def trl_sometimes(completions: Sequence[Any], level: Sequence[int], **kwargs: Any) -> list[float | None]:
    return [None if value % 2 else len(_text(each)) / 10 for each, value in zip(completions, level, strict=True)]


async def trl_async(
    completions: Sequence[Any], completion_ids: Any, log_metric: Callable, **kwargs: Any
) -> list[float]:
    await asyncio.sleep(0)
    log_metric("tokens", sum(map(len, completion_ids)) / len(completion_ids))
    return [len(ids) / 4 for ids in completion_ids]


def trl_progress(
    completions: Sequence[Any], trainer_state: Any, log_metric: Callable, log_extra: Callable, **kwargs: Any
) -> list[float]:
    log_metric("progress", trainer_state.global_step / trainer_state.max_steps)
    log_metric("progress", 1.0)
    log_extra("length", [len(_text(each)) for each in completions])
    return [trainer_state.global_step / 100 + trainer_state.epoch] * len(completions)


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
    """For OpenRLHF, which loads the function of this name from a file."""
    is_correct = torch.tensor([float(label in query) for query, label in zip(queries, labels, strict=True)])
    lengths = torch.tensor([float(len(query) - len(prompt)) for query, prompt in zip(queries, prompts, strict=True)])
    return {"rewards": is_correct - 0.01 * lengths, "scores": is_correct, "extra_logs": {"length": lengths}}


def accuracy(completions: Sequence[Any], solution: Sequence[str], **kwargs: Any) -> list[float | None]:
    from trl.rewards import accuracy_reward

    return accuracy_reward(completions, solution)
