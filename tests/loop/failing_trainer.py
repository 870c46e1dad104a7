"""A trainer that fails in one of its processes, at its third step: a plugin for tests."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from purerl.algos.algebra import Counts, Objective
from purerl.backends.fake import trainer as fake
from purerl.protocols import Metrics
from purerl.ranks import current_ranks
from purerl.settings import Model, setting
from purerl.types import TensorDict

__all__ = ["Config", "build"]


def _fail() -> None:
    raise ZeroDivisionError("a bug in a trainer")


ACTIONS: Mapping[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": _fail,
    "hang": lambda: time.sleep(600),
}


@frozen(kw_only=True)
class Config(fake.Config):
    """The settings of the fake trainer, and what the process with this rank does."""

    action: str = setting("what it does", default="raise")
    rank: int = setting("the rank that does it", default=1)


@frozen
class _Failing:
    """`trainer`, whose third step does what `config` says."""

    trainer: fake.FakeTrainer
    config: Config
    steps: Iterator[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        if next(self.steps) == 3 and current_ranks().rank == self.config.rank:
            ACTIONS[self.config.action]()
        return self.trainer.step(batch, objective, counts)


def build(config: Config, *, model: Model, **arguments: Any) -> _Failing:
    return _Failing(fake.build(config, model=model, **arguments), config, itertools.count(1))
