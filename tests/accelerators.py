"""An accelerator of any kind that this computer need not have, as torch would report it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

__all__ = ["simulate"]


def simulate(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int = 1) -> None:
    """Let torch find `count` devices of the `kind`, such as "xpu"; None: no accelerator."""
    found = _device(kind) if kind is not None and count > 0 else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count if found is not None else 0)


def _device(kind: str) -> Any:
    """torch knows the name "npu" only after torch_npu has registered it."""
    return SimpleNamespace(type=kind) if kind == "npu" else torch.device(kind)
