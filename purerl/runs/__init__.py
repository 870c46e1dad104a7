"""Runs from Python, by the name of a recipe, as on the command line.

As there, waiting threads of torch sleep, unless OMP_WAIT_POLICY is set or torch has been imported before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.config.listing import toml
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.recipes import resolve
from purerl.system.garbage import without_collections
from purerl.system.phases import phase, shown

if TYPE_CHECKING:
    from purerl.loop.callbacks import OnCheckpoint, OnRecord
    from purerl.loop.train import Summary
    from purerl.rewards.adapters import RewardFunction
    from purerl.rewards.settings import Gate, Reward

__all__ = ["Settings", "run_config", "train"]

Settings = Mapping[str, Any] | Iterable[str]


def run_config(recipe: RunConfig | str | Path, settings: Settings = ()) -> RunConfig:
    """The configuration of a recipe with changed settings, as `purerl train` reads it.

    recipe    the name of a recipe, ``module:function``, ``file.py:function`` or ``file.toml``; or a RunConfig
    settings  values by dotted key, or strings ``key=value``. None returns a setting to its default. A setting with the
              name of a parameter of the recipe is its argument

    Raises: ConfigError as `purerl.recipes.resolve`.

    >>> config = run_config("gsm8k", {"model": "m", "data": "d.parquet", "rollout.max_tokens": 256})
    >>> config.rollout.max_tokens, config.name
    (256, 'gsm8k')
    """
    changes = _to_strings(settings)
    if isinstance(recipe, RunConfig):
        return apply(recipe, changes)
    if not isinstance(recipe, str | Path):
        need = "a RunConfig, or the name of a recipe: gsm8k, module:function, file.py:function, file.toml"
        raise ConfigError("the configuration of a run", got=type(recipe).__name__, need=need)
    return resolve(str(recipe), changes)


def train(
    config: RunConfig | str | Path,
    *,
    settings: Settings = (),
    rewards: Sequence[RewardFunction | Reward | Any] = (),
    gates: Sequence[RewardFunction | Gate | Any] = (),
    directory: str | Path | None = None,
    fresh: bool = False,
    on_step: OnRecord | None = None,
    on_evaluation: OnRecord | None = None,
    on_checkpoint: OnCheckpoint | None = None,
    resume_from: str | Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    accept_changed_code: bool = False,
) -> Summary:
    """Do a run, or resume it: a RunConfig, or a recipe by its name, with changed `settings` as in `run_config`.

    A finished run is not done again: its summary is returned.

    rewards, gates  replace those of `config`. Functions are called in this process, so a function that hangs cannot be
                    stopped. A `Reward` gives its function a weight, and the Config of a kind stands for this kind
    directory       the run directory; ``runs/<name>`` if not given
    fresh           discard the run in the directory
    on_step         called with the record of each step, a dict with `step` and the metrics, and a `Control`
    on_evaluation   called in the same way for each step after which the policy was evaluated, and for step 0, the
                    evaluation before the first step
    on_checkpoint   called with the directory of each checkpoint that is complete, and a `Control`
    resume_from     the run in the directory starts from a checkpoint of another run: RUN, RUN:STEP, RUN:best, or
                    RUN/checkpoints/STEP, where RUN is a run directory
    should_stop     called before each step. If it returns true, a checkpoint is written and RunStoppedError is raised
    accept_changed_code
                    resume a run although code of the user, such as the file of a reward, was edited since its newest
                    checkpoint. Otherwise it is refused; the report marks the step

    With its `Control` (`purerl.loop.callbacks.control`) a callback stops the run, has it evaluated or saved, logs
    metrics, and samples completions of prompts. `on_step` and `on_evaluation` are called before the record of the step
    is written, and `on_checkpoint` when everything about the step is on disk. The run waits for them. An exception in a
    callback ends the run and is raised. The same call resumes the run from its last checkpoint; the steps since then
    are repeated, with the same results and the same calls. An initial run calls only `should_stop`.

    Raises: as `run_config` and `purerl.loop.train.train`.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does; torch reads it when it is imported
    with shown(), phase("importing packages"), without_collections():
        from purerl.loop.callbacks import Callbacks
        from purerl.loop.train import train as train_config
    callbacks = Callbacks(
        on_step=on_step, on_evaluation=on_evaluation, on_checkpoint=on_checkpoint, should_stop=should_stop
    )
    with shown():
        return train_config(
            run_config(config, settings),
            rewards=rewards,
            gates=gates,
            directory=directory,
            fresh=fresh,
            resume_from=resume_from,
            callbacks=callbacks,
            accept_changed_code=accept_changed_code,
        )


def _to_strings(settings: Settings) -> list[str]:
    """Settings as they are written in ``--set``."""
    if isinstance(settings, str):
        raise ConfigError("settings", got=repr(settings), need="a dict, or a list of strings key=value")
    if not isinstance(settings, Mapping):
        return [*settings]
    return [f"{key}={_to_toml(key, value)}" for key, value in settings.items()]


def _to_toml(key: str, value: Any) -> str:
    try:
        return toml(str(value) if isinstance(value, Path) else value)
    except TypeError as error:
        need, do = "a value that TOML has: a number, a string, true or false, a list, a dict", None
        do = "pass functions with rewards= and gates=" if callable(value) else do
        raise ConfigError(key, got=repr(value), need=need, do=do) from error
