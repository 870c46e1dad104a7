"""The settings of the process: random generators and threads are restored after a run."""

from __future__ import annotations

import gc
import os
import random
from contextvars import Context
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from attrs import evolve

from purerl.errors import ConfigError, RewardError
from purerl.loop.train import train
from purerl.runs import train as train_from_python
from purerl.seeds import restored_generators
from purerl.settings import Model
from purerl.system.garbage import gc_frozen

from .random_rewards import drawn
from .small import fake


def _random_states() -> list[Any]:
    """The states of the global generators of Python, numpy and torch."""
    state: Any = numpy.random.get_state()
    name, keys, *rest = state
    return [random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()]


def test_run_restores_the_global_random_generators(tmp_path: Path) -> None:
    before = _random_states()
    train(fake(max_steps=1), rewards=[drawn], directory=tmp_path / "run")
    assert _random_states() == before


def test_failed_block_restores_random_generators() -> None:
    before = _random_states()

    def draw_and_fail() -> None:
        for draw in (random.random, numpy.random.random, lambda: torch.rand(1)):
            draw()
        assert _random_states() != before
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), restored_generators():
        draw_and_fail()
    assert _random_states() == before


def test_initial_run_and_run_each_have_their_number_of_threads(tmp_path: Path) -> None:
    own = torch.get_num_threads()
    initial = evolve(fake(), name="initial", prepare_data=None, num_threads=own + 1)
    first = {"initial_run": initial, "model": Model("{run}/initial_run/final")}
    for changes, expected in ((first, own), ({"num_threads": own + 2}, own + 2)):
        threads = set()

        def broken(completion: str, example: Any, threads: set[int] = threads) -> float:
            threads.add(torch.get_num_threads())
            raise ValueError("no")

        with pytest.raises(RewardError):
            train(fake(**changes), rewards=[broken], directory=tmp_path / f"{expected}")
        assert threads == {expected}
        assert torch.get_num_threads() == own


def test_collector_is_off_while_a_run_is_opened_and_on_in_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled = dict[str, bool]()
    for module, name in (("task", "read_files"), ("engines", "open_trainer")):
        function = getattr(import_module(f"purerl.opening.{module}"), name)

        def recorded(*args: Any, called: Any = function, name: str = name, **options: Any) -> Any:
            enabled[name] = gc.isenabled()
            return called(*args, **options)

        monkeypatch.setattr(f"purerl.opening.{module}.{name}", recorded)
    was_enabled = gc.isenabled()
    gc.enable()
    try:
        train_from_python(fake(max_steps=1), directory=tmp_path, on_step=lambda *_: enabled.update(step=gc.isenabled()))
    finally:
        if not was_enabled:
            gc.disable()
    assert enabled == {"read_files": False, "open_trainer": False, "step": True}


@pytest.mark.parametrize(("policy", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_passively_unless_the_environment_sets_a_policy(
    monkeypatch: pytest.MonkeyPatch, policy: str | None, expected: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "other")  # restored after the test
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    with pytest.raises(ConfigError):
        train_from_python("no such recipe")
    assert os.environ["OMP_WAIT_POLICY"] == expected


@pytest.mark.slow
def test_objects_are_frozen_only_inside_of_the_block() -> None:
    """The collector does not list objects that are frozen."""
    gc.unfreeze()  # what the session has frozen
    try:
        Context().run(_check_frozen)  # in which no block has begun
    finally:
        gc.collect()
        gc.freeze()


def _check_frozen() -> None:
    own: list[Any] = []

    def is_frozen() -> bool:
        return all(each is not own for each in gc.get_objects())

    assert gc.get_freeze_count() == 0
    assert not is_frozen()
    with gc_frozen():
        assert is_frozen()
        with gc_frozen():
            assert is_frozen()
        assert is_frozen(), "the outer block still needs it"
    assert not is_frozen()
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with gc_frozen():
        pass
    assert is_frozen(), "the process had frozen it before the block"
