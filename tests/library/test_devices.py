"""No file names a kind of accelerator, except for the device modules, and the rule detects violations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.library.device_rules import DEVICE_MODULES, LITERALS, named_devices, violations

ROOT = Path(__file__).parents[2]


def test_only_the_device_modules_name_a_kind_of_accelerator() -> None:
    assert violations(ROOT) == []


def test_every_exception_is_needed() -> None:
    for file in DEVICE_MODULES:
        assert list(named_devices((ROOT / file).read_text(encoding="utf-8"))), file
    for file, literals in LITERALS.items():
        assert {name for _, name in named_devices((ROOT / file).read_text(encoding="utf-8"))} == literals


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('device = "cuda"', "cuda"),
        ('device = "cuda:0"', "cuda:0"),
        ('def f(device="CUDA"):\n    """Text."""', "CUDA"),
        ('message = f"CUDA device {k}"', "CUDA device "),
        ('os.environ["CUDA_VISIBLE_DEVICES"]', "CUDA_VISIBLE_DEVICES"),
        ("torch.cuda.synchronize()", "cuda"),
        ("model.cuda()", "cuda"),
        ("if tensor.is_cuda:\n    pass", "is_cuda"),
        ("import torch.cuda as device", "torch.cuda"),
        ("from torch import cuda", "cuda"),
        ("from torch.cuda import synchronize", "torch.cuda"),
        ("cuda.synchronize()", "cuda"),
    ],
)
def test_violation_is_detected(text: str, name: str, tmp_path: Path) -> None:
    for package in ("purerl", "cli"):
        file = tmp_path / package / "new.py"
        file.parent.mkdir()
        file.write_text(text)
    assert [message.split(":", 2) for message in violations(tmp_path)] == [
        [f"{package}/new.py", "1", f" {name}"] for package in ("cli", "purerl")
    ]


@pytest.mark.parametrize(
    "text",
    [
        '"""A module for CUDA."""',
        'class A:\n    """On cuda:0."""\n    x = 1\n    """As torch.cuda."""',
        "x = 1  # not torch.cuda",
        "torch.accelerator.synchronize()",
        "from purerl.devices.cuda import runs_triton",
    ],
)
def test_prose_and_neutral_code_are_accepted(text: str) -> None:
    assert list(named_devices(text)) == []
