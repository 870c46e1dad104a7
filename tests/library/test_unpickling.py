"""Reading a run directory never executes code: nothing is unpickled, except tensors and plain values by torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path for folder in ("purerl", "cli", "benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*.py")
]
# These unpickle algorithms that the same process has pickled, and messages of the ranks of a run to each other.
ALLOWED = {"purerl/testing/laws/purity.py", "purerl/testing/other_process.py", "purerl/ranks.py"}
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def _unsafe_calls(code: str) -> Iterator[str]:
    """The calls in `code` that may execute code of the file that they read, and imports of functions that do."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if name.endswith((".load", ".loads", ".Unpickler")) and _is_unsafe(name))
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if _is_unsafe(name) and keywords.get("weights_only") != "True":
                yield f"line {node.lineno}: {name}"
            if keywords.get("allow_pickle", "False") != "False":
                yield f"line {node.lineno}: {name} with allow_pickle"


def _is_unsafe(name: str) -> bool:
    module, _, function = name.rpartition(".")
    is_loader = function in ("load", "loads", "open", "Unpickler")
    return is_loader and (module in UNPICKLERS or (module == "torch" and function == "load"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled(path: Path) -> None:
    if str(path.relative_to(ROOT)) not in ALLOWED:
        assert [*_unsafe_calls(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, map_location='cpu')",
        "pickle.loads(data)",
        "pickle.Unpickler(file)",
        "from pickle import load",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "shelve.open(path)",
    ],
)
def test_unsafe_calls_are_found(code: str) -> None:
    assert [*_unsafe_calls(code)]


@pytest.mark.parametrize("code", ["torch.load(path, weights_only=True)", "json.loads(text)", "tomllib.load(file)"])
def test_safe_calls_are_accepted(code: str) -> None:
    assert not [*_unsafe_calls(code)]
