"""The import rules: test_modules.py applies them to every module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.library.import_rules import Import, imports, violations


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (
            "algos/new.py",
            "from purerl.loop.train import train",
            "algos imports purerl.loop.train, which is not in a lower layer",
        ),
        (
            "algos/new.py",
            "from purerl.loop import train",
            "algos imports purerl.loop.train, which is not in a lower layer",
        ),
        (
            "algos/parts/new.py",
            "from ...loop import train",
            "algos imports purerl.loop.train, which is not in a lower layer",
        ),
        (
            "algos/new.py",
            "def f():\n    import purerl.loop",
            "algos imports purerl.loop, which is not in a lower layer",
        ),
        ("algos/new.py", "import purerl", "algos imports purerl, which is not in a lower layer"),
        ("algos/new.py", "import numpy", "algos imports numpy, but a pure package may not"),
        (
            "algos/new.py",
            "from torch import distributed",
            "algos imports torch.distributed, but algorithms may not use distributed code",
        ),
        (
            "kernels/new.py",
            "from purerl.algos import algebra",
            "kernels imports purerl.algos, which is not in a lower layer",
        ),
        (
            "kernels/new.py",
            "import triton",
            "kernels imports triton, but a pure package may not",
        ),
        (
            "kernels/new.py",
            "from purerl.kernels.logp import triton_kernels",
            "kernels imports purerl.kernels.logp.triton_kernels at the top of the file, not in a function",
        ),
        (
            "data/new.py",
            "from purerl.store import rollouts",
            "data imports purerl.store, which is not in a lower layer",
        ),
        (
            "loop/new.py",
            "import transformers",
            "loop imports transformers at the top of the file, not in a function",
        ),
        (
            "recipes/new.py",
            "import purerl_cli.main",
            "recipes imports purerl_cli.main, which is not in a lower layer",
        ),
    ],
)
def test_violation_is_detected(tmp_path: Path, path: str, text: str, message: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert any(violation.endswith(message) for violation in violations(tmp_path))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "algos/new.py",
            "import math\nimport torch\nfrom tensordict import TensorDict\nfrom purerl.batch import with_fields",
        ),
        ("algos/new.py", "from purerl.algos.algebra import chain\nfrom . import algebra"),
        ("errors.py", "from purerl.types import Scalar"),
        ("loop/new.py", "def f():\n    import transformers"),
        ("loop/new.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers"),
        ("backends/one/new.py", "import transformers"),
        ("kernels/one/triton_kernels.py", "import triton\nimport triton.language as tl"),
        ("__init__.py", "from purerl.loop.train import train"),
    ],
)
def test_allowed_import_is_accepted(tmp_path: Path, path: str, text: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    assert violations(tmp_path) == []


def test_imports_lists_modules_and_imported_names() -> None:
    text = "import a.b\ndef f():\n    try:\n        from c import d\n    except a.b:\n        import e"
    assert list(imports(text, "purerl")) == [
        Import(1, "a.b", eager=True),
        Import(4, "c", eager=False),
        Import(4, "c.d", eager=False),
        Import(6, "e", eager=False),
    ]
