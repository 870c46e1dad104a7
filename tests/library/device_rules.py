"""The rule that only the device modules name a kind of accelerator, and the function that finds violations of it.

A name is found in the syntax tree: in string constants, attributes, imports and names, not in comments and docstrings.
Other accelerators of torch are as good as named ones there, because `torch.accelerator` has no kind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.library.sources import nodes

__all__ = ["DEVICE_MODULES", "LITERALS", "named_devices", "violations"]

NAME = "cuda"

# File -> why it may name a kind of accelerator.
DEVICE_MODULES = {
    "purerl/system/devices/kinds.py": "variables that select devices, and descriptions of settings that name devices",
    "purerl/backends/megatron/mesh.py": "Megatron-core, whose own code calls torch for one kind of device only",
    "purerl/system/devices/cuda.py": "Triton kernels and flash attention, which run on some devices only",
}

# File -> names of other libraries that contain the name of a kind.
LITERALS = {
    "purerl/backends/sglang/generator.py": {"disable_cuda_graph"},  # an argument of SGLang's server
    "purerl/porting/verl/rules/sampling.py": {"disable_cuda_graph"},  # the same
    # torch's functions for memory that processes share, by kind; engines load this file without the device modules
    "purerl/backends/transfer/engine/purerl_receiver.py": {"cuda", "_share_cuda_", "_new_shared_cuda"},
}


def violations(root: Path) -> list[str]:
    """FILE:LINE: NAME of every name of a kind in the files of the packages `root`/purerl and `root`/cli."""
    messages = []
    for path in sorted([*(root / "purerl").rglob("*.py"), *(root / "cli").rglob("*.py")]):
        file = path.relative_to(root).as_posix()
        if file in DEVICE_MODULES:
            continue
        names = named_devices(path.read_text(encoding="utf-8"))
        messages += [f"{file}:{line}: {name}" for line, name in names if name not in LITERALS.get(file, ())]
    return messages


def named_devices(text: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each name of a kind in the source code `text`."""
    tree = nodes(text)
    docstrings = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    for node in tree:
        for name in _names(node) if id(node) not in docstrings else ():
            if NAME in name.lower():
                yield getattr(node, "lineno", 0), name


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.ImportFrom):
        is_own = (node.module or "").startswith("purerl.system.devices.")
        return [] if is_own else [node.module or "", *(alias.name for alias in node.names)]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
