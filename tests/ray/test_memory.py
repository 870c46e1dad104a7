"""The memory of a local Ray: its object store takes a share of what is available."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from purerl.placement.actors import cluster


@pytest.mark.parametrize(
    ("available", "shared", "size"),
    [
        (10 * 2**30, 2**40, 3 * 2**30),  # 0.3 of what is available, and not of the memory of the host
        (2**30, 2**40, 0.3 * 2**30),
        (2**40, 2**40, 32 * 2**30),
        (10 * 2**30, 2**30, 0.8 * 2**30),
        (2**20, 2**40, 128 * 2**20),
    ],
)
def test_the_store_takes_a_share_of_the_available_memory(
    monkeypatch: pytest.MonkeyPatch, available: int, shared: int, size: float
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=shared))
    assert cluster._store_size(available) == int(size)


def test_the_command_asks_ray_for_the_available_memory(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")
    from ray._private import utils

    monkeypatch.setattr(utils, "estimate_available_memory", lambda: 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**40))
    assert cluster._command(tmp_path, 2)[-1] == f"--object-store-memory={int(0.3 * 2**30)}"
