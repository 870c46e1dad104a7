"""What a run is: one frozen class, `RunConfig`, and the sections of it.

A recipe is a Python function that returns a RunConfig; a TOML file with the same fields says the same. A field of an
engine or an algorithm holds the `Config` of its module, whose other fields are that module's business.

Paths may begin with ``{run}``, the run's directory: for files that `prepare` or `start` writes there.
"""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen

from purerl.errors import ConfigError
from purerl.protocols import Model

__all__ = ["Checkpoint", "Evaluate", "Rollout", "RunConfig", "Stop"]


def _at_least(bound: int) -> Any:
    def validate(instance: Any, attribute: Attribute, value: Any) -> None:
        if value is not None and value < bound:
            raise ConfigError(attribute.name, got=value, need=f"at least {bound}")

    return validate


def _setting(help: str, *, unit: str = "", least: int | None = None, plugin: str = "", **kwargs: Any) -> Any:
    """An attrs field that explains itself."""
    metadata = {"help": help, "unit": unit, "need": "" if least is None else f"at least {least}"}
    metadata |= {"plugin": plugin} if plugin else {}
    return field(metadata=metadata, validator=[] if least is None else [_at_least(least)], **kwargs)


@frozen(kw_only=True)
class Rollout:
    """How completions are sampled for training."""

    samples: int = _setting("completions of one prompt", least=1)
    max_tokens: int = _setting("new tokens at most", unit="tokens", least=1)
    temperature: float = _setting("logits are divided by it; log-probabilities are at it too", default=1.0)
    stop: tuple[str, ...] = _setting("texts that end a completion, beside the tokenizer's end token", default=())
    refills: int = _setting("draws at most to replace groups that the algorithm did not keep", default=0, least=0)
    lag: int = _setting("updates that the sampler may be behind: 0, or 1 (one step off policy)", default=0, least=0)

    def __attrs_post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError("temperature", got=self.temperature, need="above 0", do="only evaluation is greedy")
        if self.lag > 1:
            raise ConfigError("lag", got=self.lag, need="0 or 1")


@frozen(kw_only=True)
class Evaluate:
    """How the policy is evaluated: one greedy completion of each problem, judged by the run's rewards."""

    data: str = _setting("problems, Parquet or JSON Lines")
    every: int = _setting(
        "steps between evaluations; there is one before the first step and one after the last", least=1
    )
    max_tokens: int = _setting("new tokens at most", unit="tokens", least=1)
    examples: int | None = _setting("only the first so many problems", default=None, least=1)
    stop: tuple[str, ...] = _setting("texts that end a completion, beside the tokenizer's end token", default=())


@frozen(kw_only=True)
class Checkpoint:
    """When the run is saved; it always is at its end."""

    every: int = _setting("steps between checkpoints", default=20, least=1)
    keep: int = _setting("how many stay on disk", default=2, least=1)


@frozen(kw_only=True)
class Stop:
    """End the run early, once a metric is high enough."""

    metric: str = _setting("name of the metric, such as eval/accuracy")
    at_least: float = _setting("the value that ends the run")


@frozen(kw_only=True)
class RunConfig:
    """A run, from its data to its trained model."""

    name: str = _setting("names the run and its default directory")
    model: Model = _setting("where the policy starts from")
    data: str = _setting("what it trains on, Parquet or JSON Lines: prompts, demonstrations or preference pairs")
    algorithm: Any = _setting("the algorithm", plugin="algorithm")
    steps: int = _setting("steps of the loop", unit="steps", least=1)
    examples: int = _setting("prompts, demonstrations or pairs of one step", least=1)
    minibatches: int = _setting("optimiser steps that one pass over a step's rows is cut into", default=1, least=1)
    epochs: int = _setting("passes over a step's rows", default=1, least=1)
    trainer: Any = _setting("the engine that trains the policy, and scores under the reference", plugin="trainer")
    critic: Any = _setting(
        "the engine that trains the critic; as the trainer if not given", default=None, plugin="trainer"
    )
    teacher: Model | None = _setting("the model that the policy is to imitate", default=None)
    generator: Any = _setting("the engine that samples", default=None, plugin="generator")
    rollout: Rollout | None = _setting("how completions are sampled for training", default=None)
    rewards: tuple[str, ...] = _setting("functions (completion, example) -> reward, as module:function", default=())
    evaluate: Evaluate | None = _setting("how the policy is evaluated", default=None)
    checkpoint: Checkpoint = _setting("when the run is saved", factory=Checkpoint)
    trackers: tuple[Any, ...] = _setting(
        "what is told of the run beside its own directory: wandb, tensorboard, ...", default=(), plugin="tracker"
    )
    stop: Stop | None = _setting("when to end the run early", default=None)
    start: RunConfig | None = _setting(
        "a run that comes first, in {run}/start; its model is {run}/start/final", default=None
    )
    prepare: str | None = _setting(
        "module:function, called with (directory, seed) to write files into {run}/prepared", default=None
    )
    threads: int | None = _setting("CPU threads of torch; its own choice if not given", default=None, least=1)
    seed: int = _setting("of everything random", default=0, least=0)
