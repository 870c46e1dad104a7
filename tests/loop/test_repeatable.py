"""Runs that sample with a real engine are equal bit for bit, also if environments answer at other times.

Kills at any moment are in test_kill.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo
from purerl.algos.modifiers import importance_weight
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.store.rollouts import read_rollouts

from .killed_runs import KINDS, check_equal
from .runs import train_until
from .small import fake, small_real


def _slow_games(**changes: Any) -> RunConfig:
    """Episodes in two worker processes, whose answers take a random time."""
    config = small_real(2)
    settings = EnvironmentSettings(factory="tests.loop.games:SlowEvens", max_turns=3, num_workers=2, **changes)
    return evolve(
        config,
        algorithm=Composition(grpo.Config(), (importance_weight.Config(),)),
        rollout=evolve(config.rollout, samples_per_prompt=8, max_tokens=8, stop_strings=tuple("02468")),
        rewards=(),
        environment=settings,
        evaluate=evolve(config.evaluate, max_examples=8, temperature=1.0),
    )


def _columns(directory: Path, name: str) -> list[Sequence[Any]]:
    return [row[name] for step in (1, 2) for row in read_rollouts(directory / "rollouts", step)]


def test_times_of_an_environment_change_no_bit(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(_slow_games(), directory=tmp_path / name)
    assert max(map(max, _columns(tmp_path / "a", "turn"))) == 2, "the episodes have three turns"
    assert _columns(tmp_path / "a", "rollout_logp") == _columns(tmp_path / "b", "rollout_logp")
    weights = [(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]
    check_equal(tmp_path / "a", tmp_path / "b")


def test_without_lockstep_the_last_bits_depend_on_times(tmp_path: Path) -> None:
    """The tokens are the same, because the engine is batch-invariant."""
    runs = [tmp_path / "a", tmp_path / "b"]
    for run in runs:
        train(_slow_games(lockstep=False), directory=run)
    assert _columns(runs[0], "tokens") == _columns(runs[1], "tokens")
    assert _columns(runs[0], "rollout_logp") != _columns(runs[1], "rollout_logp")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_run_that_is_interrupted_equals_one_that_is_not(name: str, tmp_path: Path) -> None:
    config = KINDS[name](tmp_path)
    train(config, directory=tmp_path / "whole")
    train_until(3, config, directory=tmp_path / "interrupted")
    train(config, directory=tmp_path / "interrupted")
    check_equal(tmp_path / "interrupted", tmp_path / "whole")


# --- settings without effect -----------------------------------------------------------------------------------


def test_lockstep_is_refused_where_no_episode_waits(tmp_path: Path) -> None:
    settings = EnvironmentSettings(factory="tests.loop.games:Evens", num_workers=1, lockstep=False)
    algorithm = Composition(grpo.Config(), (importance_weight.Config(),))
    config = fake(1, algorithm=algorithm, rewards=(), environment=settings)
    stale = evolve(config, rollout=evolve(config.rollout, max_staleness=1))
    refused = {
        "an engine that decodes in the main thread": evolve(
            config, generator=evolve(config.generator, in_process=False)
        ),
        "max_staleness = 0": evolve(stale, evaluate=None),
    }
    for words, changed in refused.items():
        with pytest.raises(ConfigError, match=f"environment.lockstep(.|\n)*{words}"):
            train(changed, directory=tmp_path / words)
    train(stale, directory=tmp_path / "stale")  # its evaluations would wait
