"""The peers' own functions, imported without what they need elsewhere.

OpenRLHF imports deepspeed, flash_attn, torchdata and vllm on the way to its losses. While it
is imported, stand-ins answer to these names; nothing that is measured calls them. verl and torchrl need no stand-in.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

__all__ = ["actor", "core_algos", "experience", "kl", "losses", "torchrl_values", "verl_torch"]

ABSENT = ("deepspeed", "flash_attn", "torchdata", "vllm")


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for whatever lies below a name in ABSENT."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        known = fullname.split(".", maxsplit=1)[0] in ABSENT
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _module(name: str) -> Any:
    """The module, or None where it cannot be imported, which is said."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  A peer may fail in any way; the others are measured all the same.
        print(f"left out: {name} ({type(error).__name__}: {error})", file=sys.stderr)
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
