"""The workflow of training on sampled completions, with a greedy baseline if it is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from attrs import evolve

from purerl.algos.parts.shaping import overlong_penalty
from purerl.protocols import Sampling
from purerl.rollouts.baseline import WithGreedyBaseline
from purerl.rollouts.interaction import open_workflow, with_limit
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.settings import Overlong, Rollout
from purerl.rollouts.single_turn import RowFields
from purerl.rollouts.types import Workflow

__all__ = ["length_penalty", "sampling_workflow"]


def sampling_workflow(
    settings: Rollout, task: Task, engines: Engines, row_fields: RowFields, *, has_baseline: bool
) -> Workflow:
    """The workflow that samples the rows of a draw, no longer than `engines` allow, and scores them.

    With a baseline, it samples another completion at temperature 0, whose reward is the `greedy_score` of the rows.
    """
    capabilities = engines.capabilities()
    build = partial(
        open_workflow,
        with_limit(task.interaction, *capabilities.trained, *capabilities.sampling),
        task.chat,
        task.training.examples.example_format,
        rewards=task.rewards,
        row_fields=row_fields,
        runtime=engines.runtime,
        is_synchronous=settings.is_synchronous,
    )
    sampling = Sampling(settings.temperature, settings.max_tokens, task.chat.stop_tokens, settings.stop_strings)
    workflow = build(sampling=sampling, samples=settings.samples_per_prompt)
    if not has_baseline:
        return workflow
    greedy = build(sampling=evolve(sampling, temperature=0.0), samples=1)
    return WithGreedyBaseline(workflow, greedy, length_penalty(settings.overlong, settings.max_tokens))


def length_penalty(settings: Overlong | None, max_tokens: int) -> Callable[[int], float]:
    """The penalty for the length of a completion with this number of tokens; 0 without `settings`."""
    if settings is None:
        return lambda length: 0.0

    def penalty(length: int) -> float:
        tokens = torch.tensor([length], dtype=torch.float64)
        return overlong_penalty(tokens, max_length=max_tokens, buffer=settings.buffer, factor=settings.factor).item()

    return penalty
