"""Several runs in one process, whose engines are in actors: each one ends, also after a failure and an interrupt."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from purerl.loop.callbacks import Callbacks
from purerl.loop.train import train
from purerl.placement.settings import Actors, Placement
from tests.loop import failing_trainer
from tests.loop.small import fake

ray = pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")


@pytest.mark.parametrize("number", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_runs_with_a_failure_and_an_interrupt_in_between(number: int, tmp_path: Path) -> None:
    """Each run has a Ray of its own. One fails in an actor, and one is interrupted."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    config = fake(3, evaluate=None, placement=Placement(kind="ray", trainers=Actors(count=2)))
    in_actor = evolve(config, trainer=failing_trainer.Config(vocab_size=14))
    ends = []
    try:
        for run in range(number):
            used = in_actor if run == 1 else config
            callbacks = Callbacks(should_stop=_at_second_call(signal.SIGINT)) if run == 2 else Callbacks()
            try:
                ends.append(train(used, directory=tmp_path / str(run), callbacks=callbacks).steps)
            except (ZeroDivisionError, KeyboardInterrupt) as error:
                ends.append(type(error))
            assert not ray.is_initialized()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ends == [3, ZeroDivisionError, KeyboardInterrupt, *[3] * (number - 3)]


def _at_second_call(number: int) -> Callable[[], bool]:
    calls = []

    def should_stop() -> bool:
        calls.append(None)
        if len(calls) == 2:
            signal.raise_signal(number)
        return False

    return should_stop
