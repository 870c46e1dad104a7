"""Temporary folders and paths of the host that other users share: only the modules named here have them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.library.sources import nodes

__all__ = ["ALLOWED", "uses"]

SHARED = ("/tmp", "/var/tmp", "/dev/shm")
ALLOWED = {
    "purerl/system/private_files.py": "makes the folders, and checks them",
    "purerl/backends/serving/access.py": "makes a private folder in them",
    "purerl/backends/serving/weights.py": "makes a private folder in /dev/shm",
    "purerl/backends/transfer/engine/purerl_lease.py": "makes a file with a random name, for the processes of a server",
    "purerl/backends/transfer/engine/purerl_server.py": "gets a private folder as the one for temporary files",
    "purerl/backends/transfer/engine/purerl_sglang.py": "gets a private folder as the one for temporary files",
    "purerl/doctor.py": "measures the free space, and makes a private folder",
    "purerl/placement/actors/cluster.py": "measures the free space",
    "purerl/sandbox/processes.py": "is a path in the sandbox",
    "purerl/sandbox/supervisor/launch.py": "makes a folder with a random name in a private folder",
    "purerl/sandbox/supervisor/root.py": "are paths in the sandbox",
    "purerl/testing/rollouts/validity.py": "a folder with a random name, for tests of authors",
    "purerl/testing/trainer/resources.py": "a folder with a random name, for tests of authors",
}
"""File -> why it may."""


def uses(code: str) -> Iterator[str]:
    """Functions of tempfile in `code` that return a path, and paths below directories that all users share."""
    for node in nodes(code):
        if isinstance(node, ast.ImportFrom) and node.module == "tempfile":
            yield from (alias.name for alias in node.names if alias.name != "TemporaryFile")
        if isinstance(node, ast.Attribute) and node.attr != "TemporaryFile" and _is_tempfile(node.value):
            yield node.attr
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (node.value for folder in SHARED if f"{node.value}/".startswith(f"{folder}/"))
            yield from (node.value for folder in SHARED if f" {folder}/" in node.value and "\n" not in node.value)


def _is_tempfile(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "tempfile"
