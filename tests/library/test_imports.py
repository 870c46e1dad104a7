"""Imports point downwards, pure rooms stay pure, and a test of that test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import purerl
from purerl import plugins
from tests.library.import_rules import Import, imports, room_of, violations

ROOT = Path(purerl.__file__).parent


def test_imports_point_downwards() -> None:
    assert violations(ROOT) == []


def test_the_loop_names_no_engine() -> None:
    """Neither as a module that it imports nor as a text that it looks up."""
    engines = {*plugins.names("trainer"), *plugins.names("generator")}
    for path in (ROOT / "loop").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        named = {one.module for one in imports(text, "purerl.loop")}
        assert not [name for name in named if name.startswith("purerl.backends.") and name.split(".")[2] in engines]
        values = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        assert not engines & values, path


def test_every_room_has_a_storey() -> None:
    entries = [path for path in ROOT.iterdir() if path.suffix == ".py" or list(path.glob("*.py"))]
    rooms = {path.stem for path in entries} - {"__init__"}
    assert {name for name in rooms if room_of(("purerl", name)) != name} == set()


@pytest.mark.parametrize(
    ("place", "text", "complaint"),
    [
        (
            "algos/new.py",
            "from purerl.loop.train import train",
            "algos imports purerl.loop.train, which is not below it",
        ),
        ("algos/new.py", "from purerl.loop import train", "algos imports purerl.loop.train, which is not below it"),
        ("algos/parts/new.py", "from ...loop import train", "algos imports purerl.loop.train, which is not below it"),
        ("algos/new.py", "def f():\n    import purerl.loop", "algos imports purerl.loop, which is not below it"),
        ("algos/new.py", "import purerl", "algos imports purerl, which is not below it"),
        ("algos/new.py", "import numpy", "algos is pure and imports numpy"),
        (
            "algos/new.py",
            "from torch import distributed",
            "algos knows of no other process and imports torch.distributed",
        ),
        ("kernels/new.py", "from purerl.algos import algebra", "kernels imports purerl.algos, which is not below it"),
        ("data/new.py", "from purerl.store import rollouts", "data imports purerl.store, which is not below it"),
        ("loop/new.py", "import transformers", "transformers is imported before it is needed"),
        ("recipes/new.py", "import purerl_cli.main", "recipes imports purerl_cli.main, which is not below it"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, place: str, text: str, complaint: str) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert any(found.endswith(complaint) for found in violations(tmp_path))


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("algos/new.py", "import math\nimport torch\nfrom tensordict import TensorDict\nfrom purerl.batch import put"),
        ("algos/new.py", "from purerl.algos.algebra import chain\nfrom . import algebra"),
        ("errors.py", "from purerl.types import Scalar"),
        ("loop/new.py", "def f():\n    import transformers"),
        ("loop/new.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers"),
        ("backends/one/new.py", "import transformers"),
        ("__init__.py", "from purerl.loop.train import train"),
    ],
)
def test_what_is_allowed_is_not_caught(tmp_path: Path, place: str, text: str) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    assert violations(tmp_path) == []


def test_an_import_is_seen_with_all_that_it_may_name() -> None:
    text = "import a.b\ndef f():\n    from c import d"
    assert list(imports(text, "purerl")) == [
        Import(1, "a.b", eager=True),
        Import(3, "c", eager=False),
        Import(3, "c.d", eager=False),
    ]
