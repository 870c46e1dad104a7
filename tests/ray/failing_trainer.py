"""A trainer that fails in one of its processes, at its third step: a plugin for tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
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


class _Failing(fake.FakeTrainer):
    def fail_with(self, config: Config) -> _Failing:
        self._action, self._remaining = config.action, 3
        self._is_failing = current_ranks().rank == config.rank
        return self

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        self._remaining -= 1
        if self._is_failing and self._remaining == 0:
            ACTIONS[self._action]()
        return super().step(batch, objective, counts)


def build(config: Config, *, model: Model, **arguments: Any) -> _Failing:
    trainer = fake.build(config, model=model, **arguments)
    trainer.__class__ = _Failing
    return trainer.fail_with(config)
