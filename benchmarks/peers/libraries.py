"""Functions of other libraries, imported without the dependencies that they do not need.

The losses of OpenRLHF import deepspeed, flash_attn, torchdata and vllm. While OpenRLHF is imported, these libraries are
replaced by empty modules. No measured function uses them. verl and torchrl are imported as they are.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

__all__ = ["actor", "core_algos", "experience", "kl", "losses", "torchrl_values", "verl_torch"]

REPLACED = ("deepspeed", "flash_attn", "torchdata", "vllm")


class _EmptyModule(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports an empty module for each name in REPLACED and its submodules."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        is_replaced = fullname.split(".", maxsplit=1)[0] in REPLACED
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_replaced else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _module(name: str) -> Any:
    """The module, or None with a message on stderr if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - an import may raise anything, and the other libraries are still measured
        print(f"not measured: {name} ({type(error).__name__}: {error})", file=sys.stderr)
        return None


actor = _module("verl.workers.config.actor")
core_algos = _module("verl.trainer.ppo.core_algos")
verl_torch = _module("verl.utils.torch_functional")
torchrl_values = _module("torchrl.objectives.value.functional")

sys.meta_path.append(_Finder())
kl = _module("openrlhf.models.utils")
losses = _module("openrlhf.models.loss")
experience = _module("openrlhf.trainer.ppo_utils.experience_maker")
sys.meta_path.pop()
