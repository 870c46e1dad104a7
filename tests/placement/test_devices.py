"""The device of each rank, and the backends of its process group. Accelerators are simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from purerl.errors import ConfigError
from purerl.placement import join, process_group
from purerl.placement.meeting import Meeting
from purerl.placement.world import World
from purerl.system.run_secret import SIZE
from purerl.system.stores import FolderStore
from tests.accelerators import simulate


def _world(local_rank: int, local_size: int, launcher: str = "torchrun") -> World:
    return World(
        rank=local_rank,
        size=local_size,
        local_rank=local_rank,
        local_size=local_size,
        launcher=launcher,
        address="127.0.0.1",
        port=1,
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The device that is chosen, and the backends with which the process group would be initialized."""
    made: list[Any] = []
    meeting = Meeting(None, lambda name: FolderStore(Path(name), 1.0), bytes(SIZE), is_one_host=True)
    monkeypatch.setattr(process_group, "network_store", lambda world, timeout: None)
    monkeypatch.setattr(process_group, "meet", lambda *_: meeting)
    monkeypatch.setattr(process_group, "check_members", lambda: None)
    monkeypatch.setattr(torch.accelerator, "set_device_index", made.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backends, **_: made.append(backends))
    return made


@pytest.mark.parametrize(
    ("kind", "count", "expected"),
    [
        ("cuda", 8, [1, "cpu:gloo,cuda:nccl"]),
        ("xpu", 2, [1, "cpu:gloo,xpu:xccl"]),
        ("mps", 1, ["gloo"]),  # all ranks share the device
        (None, 0, ["gloo"]),
    ],
)
def test_each_rank_has_the_device_with_its_number(
    kind: str | None, count: int, expected: list[Any], calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch, kind, count)
    with process_group.process_group(_world(1, 2), bytes, 1.0):
        assert calls == expected


def test_fewer_devices_than_ranks_are_refused(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, "xpu", 2)
    words = r"an accelerator for each rank\n  got:  3 processes on this host, which has 2\n  need: as many"
    with pytest.raises(ConfigError, match=words), process_group.process_group(_world(2, 3), bytes, 1.0):
        pass
    assert calls == []


def test_tasks_of_srun_that_see_one_device_each_use_it(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, "xpu", 1)
    with process_group.process_group(_world(3, 4, launcher="srun"), bytes, 1.0):
        assert calls[0] == 0


def test_group_of_a_script_without_gloo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, "xpu")
    monkeypatch.setattr(dist, "get_backend_config", lambda: "xpu:xccl")
    words = r'got:  xpu:xccl\n  need: gloo for the CPU.*\n  do:   initialize it with "cpu:gloo,xpu:xccl"'
    with pytest.raises(ConfigError, match=words):
        join._check_backend()
