"""The import rules of purerl, and the function that finds violations of them.

The packages of purerl form layers. A module may import from its own package and from lower layers. It must not import
from a higher layer or from another package of its layer. The modules of the lowest layer may import each other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.library.sources import parse

__all__ = ["LAYERS", "Import", "imports", "package_of", "violations"]

LAYERS = (
    ("types", "errors", "seeds", "sampling", "system"),
    ("batch", "settings", "ranks", "images", "expert_routes", "plugins"),
    ("composition", "models"),
    ("monitoring",),
    ("kernels",),
    ("algos",),
    ("protocols", "sandbox"),
    ("backends",),
    ("data", "rewards", "placement"),
    ("envs",),
    ("rollouts", "templates"),
    ("evaluation", "store"),
    ("config",),
    ("planning", "testing", "report", "porting"),
    ("opening",),
    ("loop", "explain"),
    ("adapters", "replay"),
    ("recipes",),
    ("runs",),
    ("doctor",),
    ("",),  # purerl/__init__.py, which imports the loop lazily
)

# A package and one of a higher layer that it may import, but not when the file is imported: for annotations.
IMPORTS_FOR_ANNOTATIONS = {("composition", "algos")}

# Pure packages may import the standard library and these libraries.
PURE_IMPORTS = {"torch", "tensordict", "einops", "attrs", "purerl"}
EXTRA_PURE_IMPORTS = {
    "batch": {"numpy"},  # it converts nested lists faster than torch
    "system": {"numpy"},  # messages have arrays of it
    "expert_routes": {"numpy"},  # engines return arrays of it
}
PURE_PACKAGES = (*LAYERS[0], *LAYERS[1], "composition", "kernels", "algos")
DISTRIBUTED_MODULES = ("torch.distributed", "torch.nn.parallel")

# Libraries that only purerl.backends may import at the top of a file. Other packages import them in functions.
LAZY_LIBRARIES = {
    "transformers", "tokenizers", "accelerate", "peft", "safetensors", "vllm", "sglang", "megatron", "ray", "wandb",
    "pyarrow", "datasets", "triton", "hypothesis", "gymnasium", "reasoning_gym", "textarena", "trl", "verifiers",
    "renderers", "aiohttp", "PIL", "verl", "tinker",
}  # fmt: skip

# The only modules that import triton at the top, for its decorators. They must be imported in functions.
TRITON_MODULE = "triton_kernels"


class Import(NamedTuple):
    """An import: its line, the module, and whether it runs when the file is imported."""

    line: int
    module: str
    eager: bool


def imports(text: str, package: str) -> Iterator[Import]:
    """The imports in the source code `text` of a module of `package`.

    ``from a import b`` gives both ``a`` and ``a.b``, because ``b`` may be a module.
    """
    for node, eager in _statements(parse(text), eager=True):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, eager) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: -node.level + 1 or None] if node.level else []
            module = ".".join([*parents, node.module or ""]).strip(".")
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            yield from (Import(node.lineno, name, eager) for name in names)


def _statements(node: ast.AST, *, eager: bool) -> Iterator[tuple[ast.AST, bool]]:
    """The statements inside of `node`, and whether each runs when the file is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child, eager
            yield from _statements(child, eager=eager and not _is_lazy(child))


def _is_lazy(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        names = (getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node.test))
        return "TYPE_CHECKING" in names
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def violations(root: Path) -> list[str]:
    """All violations of the import rules in the files below `root`, the directory of the package purerl."""
    messages = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        package = package_of(("purerl", *parts))
        for line, module, eager in imports(path.read_text(encoding="utf-8"), ".".join(("purerl", *parts[:-1]))):
            eager = eager and not (parts[-1] == TRITON_MODULE and module.split(".")[0] == "triton")
            violation = _violation(package, module.split("."), eager=eager)
            messages += [f"{path.relative_to(root)}:{line}: {violation}"] if violation else []
    return messages


def package_of(module: Sequence[str]) -> str:
    """The name in `LAYERS` that contains `module`, such as "algos" for purerl.algos.grpo; "" for purerl itself."""
    name = module[1] if len(module) > 1 else ""
    return name if any(name in layer for layer in LAYERS) else ""


def _violation(package: str, module: Sequence[str], *, eager: bool) -> str | None:
    name = ".".join(module)
    allowed = PURE_IMPORTS | EXTRA_PURE_IMPORTS.get(package, set()) | sys.stdlib_module_names
    is_lower = _may_import(package, package_of(module)) or (not eager and _is_for_annotations(package, module))
    if module[0] == "purerl_cli" or (module[0] == "purerl" and not is_lower):
        return f"{package} imports {name}, which is not in a lower layer"
    if eager and package in PURE_PACKAGES and module[0] not in allowed:
        return f"{package} imports {name}, but a pure package may not"
    if eager and module[-1] == TRITON_MODULE:
        return f"{package} imports {name} at the top of the file, not in a function"
    if package == "algos" and name.startswith(DISTRIBUTED_MODULES):
        return f"{package} imports {name}, but algorithms may not use distributed code"
    if eager and package != "backends" and module[0] in LAZY_LIBRARIES:
        return f"{package} imports {name} at the top of the file, not in a function"
    return None


def _may_import(package: str, imported: str) -> bool:
    if package == imported or (package in LAYERS[0] and imported in LAYERS[0]):
        return True
    return _layer_index(imported) < _layer_index(package)


def _is_for_annotations(package: str, module: Sequence[str]) -> bool:
    return (package, package_of(module)) in IMPORTS_FOR_ANNOTATIONS


def _layer_index(package: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if package in layer)
