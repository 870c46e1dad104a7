"""Small runs for tests: the default recipe with a few short steps."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from purerl.algos import grpo
from purerl.backends.fake import generator as fake_generator
from purerl.backends.fake import trainer as fake_trainer
from purerl.config.schema import RunConfig
from purerl.recipes.addition import addition
from purerl.settings import Model
from purerl.store.settings import Checkpoint


def fake(max_steps: int | None = 4, **changes: Any) -> RunConfig:
    """The configuration of `small` without an initial run, and with a bigram table as the model."""
    engines = {"trainer": fake_trainer.Config(vocab_size=14), "generator": fake_generator.Config(vocab_size=14)}
    return small(max_steps, **{"initial_run": None, "model": Model("{run}/prepared/model"), **engines} | changes)


def small(max_steps: int | None = 4, **changes: Any) -> RunConfig:
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
        "prepare_data": "tests.loop.prepared:prepare",
        "max_steps": max_steps,
        "algorithm": grpo.Config(),
        "rewards": ("tests.loop.rewards:digits",),
        "batch_size": 4,
        "num_minibatches": 2,
        "initial_run": initial,
        "trainer": evolve(config.trainer, warmup_steps=None if max_steps == 1 else 2, warmup_ratio=None),
        "rollout": evolve(config.rollout, samples_per_prompt=4),
        "evaluate": evolve(config.evaluate, every=2, max_examples=16),
        "checkpoint": Checkpoint(every=2, keep=2),
    }
    return evolve(config, **settings | changes)


def small_real(max_steps: int | None = 2, **changes: Any) -> RunConfig:
    """The configuration of `small` without an initial run: the model is a real one with random weights."""
    return small(**{"max_steps": max_steps, "initial_run": None, "model": Model("{run}/prepared/model")} | changes)
