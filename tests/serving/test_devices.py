"""Which CUDA devices servers use. The number of devices is simulated."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.backends.serving.api import Command
from purerl.backends.serving.devices import devices_of_servers, on_devices
from purerl.backends.serving.settings import ServerSettings, check_engine
from purerl.backends.sglang import generator as sglang
from purerl.backends.vllm import generator as vllm
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.recipes.addition import addition


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let this process see `count` devices."""

    def simulate(count: int, *, visible: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return simulate


def test_every_server_has_devices_of_its_own(cuda: Any) -> None:
    cuda(8)
    assert devices_of_servers(ServerSettings()) == ["0"]
    assert devices_of_servers(ServerSettings(number=2, tensor_parallel_size=3)) == ["0,1,2", "3,4,5"]
    cuda(2, visible="GPU-a,GPU-b")
    assert devices_of_servers(ServerSettings(number=2)) == ["GPU-a", "GPU-b"]
    server = ServerSettings(devices=("4", "5", "6", "7"), tensor_parallel_size=2)
    assert devices_of_servers(server) == ["4,5"]
    assert devices_of_servers(evolve(server, number=2)) == ["4,5", "6,7"]


def test_too_few_devices_are_refused(cuda: Any) -> None:
    cuda(2)
    words = r"devices that this process sees\n  got:  2: 0, 1\n  need: 4: 2 for each of 2 servers"
    with pytest.raises(ConfigError, match=words):
        devices_of_servers(ServerSettings(number=2, tensor_parallel_size=2))
    cuda(8)
    with pytest.raises(ConfigError, match=r"server.devices\n  got:  2: 6, 7\n  need: 3: 1 for each of 3 servers"):
        devices_of_servers(ServerSettings(devices=("6", "7"), number=3))


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_too_few_devices_are_refused_before_the_run(cuda: Any, engine: Any) -> None:
    cuda(1)
    server = ServerSettings(python=sys.executable, number=2)
    with pytest.raises(ConfigError, match=r"generator: devices that this process sees\n  got:  1: 0"):
        check(evolve(addition(), generator=engine.Config(server=server)))


def test_servers_that_need_no_device(cuda: Any) -> None:
    cuda(1)
    assert devices_of_servers(ServerSettings(device="cpu", number=3)) == [None] * 3
    assert devices_of_servers(ServerSettings(urls=("http://a:1", "http://b:1"))) == [None] * 2
    cuda(0)
    assert devices_of_servers(ServerSettings(device="cuda", number=2)) == [None] * 2
    assert devices_of_servers(ServerSettings(device="cuda", devices=("3",))) == ["3"]
    with pytest.raises(ConfigError, match=r"server.devices has no effect\n  got:  servers on the CPU"):
        check_engine(ServerSettings(device="cpu", devices=("1",), python="python3"), "vllm")
    with pytest.raises(ConfigError, match=r"environment.CUDA_VISIBLE_DEVICES[\s\S]*set devices"):
        ServerSettings(environment={"CUDA_VISIBLE_DEVICES": "1"})


def test_variable_of_a_process() -> None:
    command = Command(("python3",), {"A": "1"})
    assert on_devices(command, None) == command
    assert on_devices(command, "2,3").environment == {"A": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
