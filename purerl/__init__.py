"""Reinforcement learning for language models: pure functions, and algorithms that are compositions of them.

    purerl.algos                     the functions, on tensors or on a batch
    purerl.train(config)             a whole run; `config` is a `purerl.RunConfig`, or the name of a recipe
    purerl.run_config("gsm8k", ...)  the RunConfig of a recipe, with changed settings
    purerl.recipes.addition          a module for each recipe: functions that return a RunConfig

`import purerl` by itself loads nothing: not torch, not an engine. `train`, `run_config` and `RunConfig` are loaded when
first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig
    from purerl.runs import run_config, train

__all__ = ["RunConfig", "__version__", "run_config", "train"]

__version__ = "0.2.0"

_HOMES = {"RunConfig": "purerl.config.schema", "run_config": "purerl.runs", "train": "purerl.runs"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'purerl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
