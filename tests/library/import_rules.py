"""The import rule: what each module of a package may import, and what of it breaks that rule.

Rooms lie in storeys. A module imports from storeys below its own and from its own room, never from above or next door.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["STOREYS", "Import", "imports", "room_of", "violations"]

STOREYS = (
    ("types", "errors", "batch", "files", "seeds"),
    ("kernels",),
    ("algos",),
    ("protocols", "plugins"),
    ("backends", "rewards", "envs", "data", "tracking"),
    ("config",),
    ("store",),
    ("testing", "evaluation"),
    ("loop", "report"),
    ("recipes",),
    ("doctor",),
    ("",),  # the package itself, which names the loop lazily
)

# What the pure rooms may import, beside the standard library.
PURE = {"torch", "tensordict", "einops", "attrs", "purerl"}
ALSO = {"batch": {"numpy"}}  # which is faster than torch at reading lists
PURE_ROOMS = (*STOREYS[0], "kernels", "algos")
IMPURE_TORCH = ("torch.distributed", "torch.nn.parallel")

# Libraries that only an engine's own folder may import at the top of a file; elsewhere, inside functions.
ENGINES = {
    "transformers", "tokenizers", "accelerate", "peft", "safetensors", "vllm", "sglang", "megatron", "ray", "wandb",
    "pyarrow", "datasets", "triton", "hypothesis",
}  # fmt: skip


class Import(NamedTuple):
    """One import: the line, the module, and whether it is made when the file is imported."""

    line: int
    module: str
    eager: bool


def imports(text: str, package: str) -> Iterator[Import]:
    """The imports of a file of `package`; of ``from a import b``, both a and a.b, for b may be a module."""
    tree = ast.parse(text)
    lazy = {id(inner) for node in ast.walk(tree) if _is_lazy(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, id(node) not in lazy) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level else []
            module = ".".join([*above, node.module or ""]).strip(".")
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            yield from (Import(node.lineno, name, id(node) not in lazy) for name in names)


def _is_lazy(node: ast.AST) -> bool:
    typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return typing or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def violations(root: Path) -> list[str]:
    """What in the package at `root`, called purerl, breaks the rule."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        room = room_of(("purerl", *parts))
        for line, module, eager in imports(path.read_text(encoding="utf-8"), ".".join(("purerl", *parts[:-1]))):
            broken = _broken(room, module.split("."), eager=eager)
            found += [f"{path.relative_to(root)}:{line}: {broken}"] if broken else []
    return found


def room_of(module: Sequence[str]) -> str:
    """The room that a module of purerl is in; what is in none is the package itself."""
    name = module[1] if len(module) > 1 else ""
    return name if any(name in storey for storey in STOREYS) else ""


def _broken(room: str, module: Sequence[str], *, eager: bool) -> str | None:
    name = ".".join(module)
    if module[0] == "purerl_cli" or (module[0] == "purerl" and not _may_see(room, room_of(module))):
        return f"{room} imports {name}, which is not below it"
    if eager and room in PURE_ROOMS and module[0] not in PURE | ALSO.get(room, set()) | sys.stdlib_module_names:
        return f"{room} is pure and imports {name}"
    if room == "algos" and name.startswith(IMPURE_TORCH):
        return f"{room} knows of no other process and imports {name}"
    if eager and room != "backends" and module[0] in ENGINES:
        return f"{name} is imported before it is needed"
    return None


def _may_see(room: str, other: str) -> bool:
    return room == other or _height(other) < _height(room) or (room in STOREYS[0] and other in STOREYS[0])


def _height(room: str) -> int:
    return next(height for height, storey in enumerate(STOREYS) if room in storey)
