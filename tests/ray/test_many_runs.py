"""Several runs in one process, whose engines are in actors: each one ends, also after a failure and an interrupt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import evolve

from purerl.loop.callbacks import Callbacks
from purerl.loop.train import train
from purerl.placement.actors.cluster import connected
from purerl.placement.settings import Actors, Placement
from tests.loop import failing_trainer
from tests.loop.small import fake

ray = pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")

STEPS = 2
INTERVAL = 7  # from a run that fails, and from one that is interrupted, to the next one
MAX_GROWTH = 12  # of the threads and open files of this process, from the third run to the last


def test_runs_with_a_ray_of_their_own(tmp_path: Path) -> None:
    """One fails in an actor, and one is interrupted."""
    with interrupts():
        ends = [end_of_run(run, tmp_path, actors=2) for run in range(4)]
    assert ends == [STEPS, ZeroDivisionError, KeyboardInterrupt, STEPS]
    assert not ray.is_initialized()


@pytest.mark.soak
def test_twenty_runs_in_one_cluster(tmp_path: Path) -> None:
    """The connection to Ray is that of the process. Nothing of a run is left when the next one begins.

    A run that fails has two actors, because the other one has to be ended.
    """
    ends, held = [], []
    with interrupts(), connected(placement(2), tmp_path / "ray"):
        for run in range(20):
            ends.append(end_of_run(run, tmp_path, actors=1 + (run % INTERVAL == 1)))
            assert ray.is_initialized()
            held.append([len([*Path("/proc/self", name).iterdir()]) for name in ("task", "fd")])
    expected = {1: ZeroDivisionError, 2: KeyboardInterrupt}
    assert ends == [expected.get(run % INTERVAL, STEPS) for run in range(20)]
    for before, after in zip(held[2], held[-1], strict=True):
        assert after < before + MAX_GROWTH, held


def placement(actors: int) -> Placement:
    return Placement(kind="ray", trainers=Actors(count=actors))


def end_of_run(number: int, folder: Path, *, actors: int) -> object:
    """The steps of a run, or the type of the error that ends it."""
    config = fake(STEPS, evaluate=None, placement=placement(actors))
    kind = number % INTERVAL
    if kind == 1:
        config = evolve(config, trainer=failing_trainer.Config(vocab_size=14))
    callbacks = Callbacks(should_stop=_interrupts_second_call()) if kind == 2 else Callbacks()
    try:
        return train(config, directory=folder / str(number), callbacks=callbacks).steps
    except (ZeroDivisionError, KeyboardInterrupt) as error:
        return type(error)


@contextmanager
def interrupts() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt in the block, also if pytest has another handler."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _interrupts_second_call() -> Callable[[], bool]:
    calls = []

    def should_stop() -> bool:
        calls.append(None)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return False

    return should_stop
