"""The parts that the recipes for a CPU share: two runs, a learning rate, and files of data. This module is no recipe.

A small model with random weights is trained by SFT on demonstrations, until it solves some problems. Reinforcement
learning starts from this model. For a task of your own, write ``prepare`` and call `tiny_task` as `addition` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from purerl.config.schema import RunConfig
from purerl.settings import Model
from purerl.store.settings import Checkpoint

__all__ = ["BETAS", "COSINE", "max_steps_of", "tiny_task", "write_parquet"]

BETAS = (0.9, 0.99)
"""Decay rates of AdamW's moments for a few hundred optimizer steps."""

COSINE: Mapping[str, Any] = MappingProxyType({"betas": BETAS, "lr_scheduler": "cosine", "warmup_ratio": 1 / 16})
"""Settings of a trainer: the learning rate rises in the first sixteenth of the optimizer steps, and then falls to 0."""


def tiny_task(
    *,
    initial_run: Mapping[str, Any],
    steps: int,
    max_steps: int | None = None,
    num_epochs: float | None = None,
    **settings: Any,
) -> RunConfig:
    """A run on a small task with `settings`, from a model that has learned from demonstrations in an initial run.

    initial_run  settings of the run before it, on the model ``prepared/model`` that `prepare_data` writes. If it is
                 evaluated, it has the environment, rewards and generator of `settings`
    steps        the number of steps, if neither `max_steps` nor `num_epochs` is given
    """
    shared = ("environment", "rewards", "generator") if "evaluate" in initial_run else ()
    defaults = {
        "model": Model("{run}/prepared/model"),
        "checkpoint": Checkpoint(every=100, keep=1),
        "num_threads": 1,
        **{name: settings[name] for name in shared if name in settings},
    }
    return RunConfig(**{
        "initial_run": RunConfig(**{**defaults, **initial_run}),
        "model": Model("{run}/initial_run/final"),
        "max_steps": max_steps_of(steps, max_steps, num_epochs),
        "num_epochs": num_epochs,
        "checkpoint": Checkpoint(every=20),
        "num_threads": 1,
        **settings,
    })  # fmt: skip


def max_steps_of(steps: int, max_steps: int | None, num_epochs: float | None) -> int | None:
    """The argument `max_steps` of a recipe; `steps` if neither it nor `num_epochs` is given."""
    return steps if max_steps is None and num_epochs is None else max_steps


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `rows` into a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.Table.from_pylist([*rows]), path)
