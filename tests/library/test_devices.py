"""The rule that only the device modules name a kind of accelerator: test_modules.py applies it to every module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.library.device_rules import named_devices, violations


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
        "from purerl.system.devices.cuda import runs_triton",
    ],
)
def test_prose_and_neutral_code_are_accepted(text: str) -> None:
    assert list(named_devices(text)) == []
