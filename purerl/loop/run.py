"""What a run has in its hands while it goes on, and what of it changes from step to step."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from purerl.algos.algebra import Algorithm
from purerl.config.schema import RunConfig
from purerl.data.chat import Chat
from purerl.data.examples import DataSet
from purerl.protocols import Generator, Trainer
from purerl.rewards.runner import RewardResult, RewardRunner
from purerl.store.directory import RunDirectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Clock", "Run", "RunData", "Sample", "State", "seed_of"]


@frozen
class State:
    """What changes from step to step, beside the trainers: all that a checkpoint holds of the loop.

    step       steps that are done
    drawn      examples drawn from the data so far
    transform  state of the algorithm's advantage transform
    """

    step: int = 0
    drawn: int = 0
    transform: Any = ()


@frozen
class Sample:
    """One row before it is collated: its `fields` for the batch, its `texts` for people, the `verdict` on it."""

    fields: Mapping[str, Any]
    texts: Mapping[str, Any] = field(factory=dict)
    verdict: RewardResult = RewardResult()


@frozen
class RunData:
    """What a run learns from, what it is evaluated on by its names, and how the tokenizer makes tokens of them.

    `counts` are of the rows to learn from: all of them (`rows`), those left out (`too_long`, `held_out`) and those left
    in (`batch_size`); and of the `problems`. `files` are digests by path.
    """

    examples: DataSet
    problems: Mapping[str, DataSet]
    chat: Chat
    counts: Mapping[str, int]
    files: Mapping[str, str] = field(factory=dict)


@define
class Run:
    """A run: configuration, algorithm, engines, rewards and data, all opened, and the directory it lives in."""

    config: RunConfig
    place: RunDirectory
    algorithm: Algorithm
    trainers: Mapping[str, Trainer]
    generator: Generator | None
    data: RunData
    judge: RewardRunner
    reads: frozenset[str]
    source: Callable[[Run, State, Clock], tuple[State, list[Sample], dict[str, float]]]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's, and everybody's."""
        return self.data.chat.tokenizer

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        return self.data.chat.stop_tokens

    @property
    def lag(self) -> int:
        """Updates that the sampler is behind the trainer."""
        return self.config.rollout.max_staleness if self.config.rollout else 0

    def close(self) -> None:
        """Release what the generator holds."""
        if self.generator is not None:
            self.generator.close()


@define
class Clock:
    """Seconds by phase, and the process's CPU seconds since the clock was made."""

    seconds: dict[str, float] = field(factory=dict)
    _cpu: float = field(factory=time.process_time, init=False, repr=False)

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time that the block takes to `phase`."""
        begin = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin


def seed_of(*parts: int | str) -> int:
    """A seed for what `parts` name (run seed, draw, sample, ...), unrelated to that of any other parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
