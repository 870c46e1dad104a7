"""Runs small enough for a test: the default recipe, cut down to a few steps."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from purerl.algos import grpo
from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake import trainer as fake_trainer
from purerl.config.schema import Checkpoint, RunConfig
from purerl.protocols import Model
from purerl.recipes.addition import addition


def fake(**changes: Any) -> RunConfig:
    """The same with a bigram table for a model, without a start."""
    engines = {"trainer": fake_trainer.Config(vocabulary=14), "generator": fake_generator.Config(vocabulary=14)}
    return small(**{"initial_run": None, "model": Model("{run}/prepared/model"), **engines} | changes)


def small(max_steps: int = 4, **changes: Any) -> RunConfig:
    """A few steps of the default recipe, with an evaluation and a checkpoint every second step."""
    config = addition()
    initial = evolve(
        config.initial_run,
        max_steps=3,
        batch_size=16,
        stop_when=None,
        evaluate=evolve(config.initial_run.evaluate, every=2, max_examples=16),
        checkpoint=Checkpoint(every=2, keep=1),
    )
    settings: dict[str, Any] = {
        "max_steps": max_steps,
        "algorithm": grpo.Config(),
        "rewards": ("tests.loop.rewards:digits",),
        "batch_size": 4,
        "num_minibatches": 2,
        "initial_run": initial,
        "trainer": evolve(config.trainer, warmup_steps=2),
        "rollout": evolve(config.rollout, samples_per_prompt=4),
        "evaluate": evolve(config.evaluate, every=2, max_examples=16),
        "checkpoint": Checkpoint(every=2, keep=2),
    }
    return evolve(config, **settings | changes)
