"""Runs with shuffled rewards: what a recipe learns without any information in its rewards."""

from __future__ import annotations

import shutil
from pathlib import Path

from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.loop.train import Summary, claim_directory, train

from . import shuffled


def train_with_shuffled_rewards(config: RunConfig, run: Summary, directory: Path) -> Summary:
    """`config`, which uses DAPO, with shuffled rewards, from the initial run of `run`."""
    control = evolve(config, algorithm=shuffled.Config())
    claim_directory(directory, control).release()
    for part in ("prepared", "initial_run"):
        shutil.copytree(run.directory / part, directory / part)
    return train(control, directory=directory)
