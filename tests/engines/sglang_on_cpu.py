"""Let SGLang run without a GPU: python sglang_on_cpu.py SITE_PACKAGES

SGLang imports sgl_kernel, whose wheels are for GPUs. A package stands for it, whose functions raise when called.
"""

from __future__ import annotations

import sys
from pathlib import Path

KERNELS = '''\
import importlib.abc
import importlib.machinery
import sys
import types


class Missing:
    """Any attribute, and anything in it; calling it is an error."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *arguments, **options):
        raise RuntimeError(f"{self.__name__} needs a GPU")


class Kernels(types.ModuleType):
    __path__ = []
    __version__ = "0.4.7"

    def __getattr__(self, name):
        return Missing(f"{self.__name__}.{name}") if not name.startswith("__") else super().__getattribute__(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        is_ours = name.startswith("sgl_kernel.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec):
        return Kernels(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
sys.modules[__name__].__class__ = Kernels
'''


def main(packages: Path) -> None:
    """Write the package into the directory `packages`."""
    kernels = packages / "sgl_kernel"
    kernels.mkdir(exist_ok=True)
    (kernels / "__init__.py").write_text(KERNELS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
