"""Temporary folders and paths of the host that other users share: only the modules named here have them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("purerl", "cli") for path in (ROOT / folder).rglob("*.py")]
SHARED = ("/tmp", "/var/tmp", "/dev/shm")
ALLOWED = {
    "purerl/private_files.py": "makes the folders, and checks them",
    "purerl/backends/serving/access.py": "makes a private folder in them",
    "purerl/backends/serving/weights.py": "makes a private folder in /dev/shm",
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


def uses(code: str) -> Iterator[str]:
    """Functions of tempfile in `code` that return a path, and paths below directories that all users share."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "tempfile":
            yield from (alias.name for alias in node.names if alias.name != "TemporaryFile")
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tempfile" and node.attr != "TemporaryFile":
            yield node.attr
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (node.value for folder in SHARED if f"{node.value}/".startswith(f"{folder}/"))
            yield from (node.value for folder in SHARED if f" {folder}/" in node.value and "\n" not in node.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_modules_that_are_named_have_temporary_folders(path: Path) -> None:
    found = [*uses(path.read_text(encoding="utf-8"))]
    assert bool(found) == (str(path.relative_to(ROOT)) in ALLOWED), found


@pytest.mark.parametrize(
    "code",
    [
        "tempfile.mkdtemp()",
        "from tempfile import TemporaryDirectory",
        "Path(tempfile.gettempdir())",
        "tempfile.NamedTemporaryFile()",
        "open('/tmp/state')",
        "Path('/dev/shm')",
        "'cc -o /tmp/program'",
    ],
)
def test_uses_are_found(code: str) -> None:
    assert [*uses(code)]


@pytest.mark.parametrize("code", ["tempfile.TemporaryFile()", "'/tmpfs'", "'the directory for temporary files'"])
def test_files_without_a_name_are_allowed(code: str) -> None:
    assert not [*uses(code)]
