"""Every primitive has a golden test: `tests/golden` compares it with manually computed numbers."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import purerl.algos
from purerl import types
from tests.library.sources import nodes

TENSOR_TYPES = {*types.__all__, "Tensor"} - {"TensorDict"}


def _primitives() -> list[str]:
    """The public functions in `purerl.algos` whose first argument is a tensor."""
    infos = pkgutil.walk_packages(purerl.algos.__path__, "purerl.algos.")
    modules = [import_module(info.name) for info in infos if not info.ispkg]
    public = {getattr(module, name) for module in modules for name in module.__all__ if callable(getattr(module, name))}
    return sorted(f.__name__ for f in public if inspect.isfunction(f) and _takes_tensor(f))


def _takes_tensor(function: object) -> bool:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and first.annotation in TENSOR_TYPES


GOLDEN = Path(__file__).parents[1] / "golden"


def test_every_primitive_has_a_golden_test() -> None:
    """A test in tests/golden uses its name."""
    files = (path.read_text(encoding="utf-8") for path in GOLDEN.glob("test_*.py"))
    used = {node.id for text in files for node in nodes(text) if isinstance(node, ast.Name)}
    assert [name for name in _primitives() if name not in used] == []


def test_primitives_are_functions_of_tensors() -> None:
    assert {"gae", "k3", "token_mean", "balance_loss"} <= set(_primitives())
    assert not {"algorithm", "corrected", "number", "outcome_advantage", "groups_with_variance"} & set(_primitives())
