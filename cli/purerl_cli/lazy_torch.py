"""torch, imported by its first use.

Importing torch takes longer than most commands need for everything else. Algorithms and recipes import it, but only
their functions of tensors use it. So a command that reads a configuration, and computes nothing, can do without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType

__all__ = ["import_torch_lazily"]


def import_torch_lazily() -> None:
    """Let ``import torch`` import it only when an attribute or a submodule of it is used.

    No effect if torch was imported before, or is not installed.
    """
    spec = None if "torch" in sys.modules else find_spec("torch")
    if spec is None or spec.loader is None:
        return
    torch = module_from_spec(spec)
    torch.__class__ = _Unloaded
    sys.modules["torch"] = torch
    sys.meta_path.insert(0, _Submodules())


class _Unloaded(ModuleType):
    """torch before its first use. It becomes an ordinary module."""

    def __getattr__(self, name: str) -> object:
        _load(self)
        return getattr(self, name)


def _load(torch: ModuleType) -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Submodules)]
    torch.__class__ = ModuleType
    spec = torch.__spec__
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - `import_torch_lazily` has checked it
    try:
        spec.loader.exec_module(torch)
    except BaseException:
        sys.modules.pop("torch", None)  # as the import statement does
        raise


class _Submodules:
    """Imports torch before a submodule of it.

    torch itself imports many of them. Python's import statement is already past the check whether the submodule exists,
    so it is given the existing one to load.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("torch."):
            return None
        _load(sys.modules["torch"])
        module = sys.modules.pop(fullname, None)
        return None if module is None else ModuleSpec(fullname, _Existing(module))


class _Existing:
    """Loads a module that has been executed already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
