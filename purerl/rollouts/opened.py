"""The open parts of a configuration: the task, which knows no model, and the engines, which are its models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from attrs import evolve, field, frozen

from purerl.data.chat import Chat
from purerl.data.examples import DataSet, rows_at
from purerl.images import ImageStore
from purerl.protocols import Capabilities, Generator, Trainer
from purerl.rewards.runner import RewardRunner
from purerl.rollouts.interaction import Interaction
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.scoring.models import ModelRewards
from purerl.system.devices.accelerator import release_cached_memory

__all__ = ["Clock", "EngineCapabilities", "Engines", "Task", "Training"]

_SCORERS = "rewards."  # how the roles of models begin whose scores are rewards


class Clock(Protocol):
    """Measures the time of phases."""

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Add the duration of the block to `phase`."""
        ...


@frozen
class Training:
    """The rows that a run learns from, those that it is validated on, and their numbers.

    `counts` has the numbers of training rows: all (`rows`), those left out (`too_long`, `validation`), those with a
    `truncated` prompt, and those that are used (`examples`); and of evaluation `problems`.
    """

    examples: DataSet
    held_out: DataSet | None = None
    counts: Mapping[str, int] = field(factory=dict)


@frozen
class Task:
    """A task and how it is scored, without any model.

    chat         tokenizer, template, processor, and store of images
    problems     of evaluations, by name of the data set; may be empty
    rewards      the reward functions, not started: ``with task.rewards:`` starts their processes
    readers      how each model in `roles.rewards` reads, by its name
    training     None: nothing is trained
    interaction  None: the policy completes the prompt
    notes        on the files of the data
    """

    chat: Chat
    problems: Mapping[str, DataSet]
    rewards: RewardRunner
    readers: Mapping[str, Chat] = field(factory=dict)
    training: Training | None = None
    interaction: Interaction = None
    notes: tuple[str, ...] = ()

    @property
    def first_example(self) -> Mapping[str, Any]:
        """The first row of the training data; without any, that of the first problems."""
        data = self.training.examples if self.training else next(iter(self.problems.values()))
        return rows_at(data, data.indices[:1])[0]

    def with_images(self, folder: Path) -> Task:
        """The task with a store of images in `folder`, if it has images."""
        return self if self.chat.processor is None else evolve(self, chat=evolve(self.chat, store=ImageStore(folder)))


@frozen
class EngineCapabilities:
    """The capabilities of engines: of open ones, or of those that a configuration names.

    trainers   by role; those of classifiers whose scores are rewards are "rewards.NAME"
    generator  of the policy
    judges     by role, "rewards.NAME"
    """

    trainers: Mapping[str, Capabilities] = field(factory=dict)
    generator: Capabilities | None = None
    judges: Mapping[str, Capabilities] = field(factory=dict)

    @property
    def trained(self) -> list[Capabilities]:
        """Those of the trainers that read training rows: all but classifiers whose scores are rewards."""
        return [each for role, each in self.trainers.items() if not role.startswith(_SCORERS)]

    @property
    def sampling(self) -> list[Capabilities]:
        """Those of the generator, if there is one."""
        return [self.generator] if self.generator else []

    @property
    def by_role(self) -> dict[str, Capabilities]:
        """Those of all engines: of trainers and judges by role, and of the generator as "generator"."""
        engines = {**self.trainers, **self.judges}
        return engines if self.generator is None else {**engines, "generator": self.generator}

    @property
    def all(self) -> dict[str, Capabilities]:
        """Those of all engines but judges, by what messages call them."""
        trainers = {f"trainer of the {role}": each for role, each in self.trainers.items()}
        return trainers if self.generator is None else {**trainers, "generator": self.generator}


@frozen
class Engines:
    """The models that are loaded.

    trainers        by role; those of classifiers whose scores are rewards are "rewards.NAME"
    generator       of the policy
    scorers         the models whose scores are rewards
    runtime         has the generator attached
    mismatch_level  of generator and policy at the start, in nats; None: not measured
    """

    trainers: Mapping[str, Trainer]
    generator: Generator | None
    scorers: ModelRewards
    runtime: Runtime
    mismatch_level: float | None = None

    def capabilities(self) -> EngineCapabilities:
        """The capabilities of trainers and generator."""
        trainers = {role: trainer.capabilities for role, trainer in self.trainers.items()}
        return EngineCapabilities(trainers, self.generator and self.generator.capabilities)

    def load_weights(self, version: int, clock: Clock) -> None:
        """Give the generator, if there is one, the weights of the policy, which are those after step `version`."""
        if self.generator is not None:
            with clock("sync"):
                if self.generator.capabilities.sleeps:
                    release_cached_memory()  # the generator needs the memory that training leaves
                self.runtime.load_weights(self.trainers["policy"].weights(), version)

    def sleep_generator(self, clock: Clock) -> None:
        """Let the generator release the memory of its devices until `load_weights`, if its settings say so."""
        with clock("sync"):
            self.runtime.sleep()
