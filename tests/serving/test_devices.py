"""The accelerators of servers, which are simulated."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.backends.serving.api import Command
from purerl.backends.serving.devices import devices_of_servers, on_devices
from purerl.backends.serving.settings import ServerSettings, check_engine, is_on_cpu
from purerl.backends.sglang import generator as sglang
from purerl.backends.vllm import generator as vllm
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.recipes.addition import addition
from purerl.system.devices.kinds import DEVICE_VARIABLES
from tests.accelerators import simulate as simulate_accelerator
from tests.serving.interpreter import ENGINE_PYTHON

pytestmark = pytest.mark.usefixtures("interpreter_has_engines")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let this process see `count` devices."""

    def simulate(count: int, *, visible: str | None = None) -> None:
        simulate_accelerator(monkeypatch, "cuda", count)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return simulate


def _cuda_devices(server: ServerSettings) -> list[str | None]:
    return [variables.get("CUDA_VISIBLE_DEVICES") for variables in devices_of_servers(server)]


def test_every_server_has_devices_of_its_own(cuda: Any) -> None:
    cuda(8)
    assert devices_of_servers(ServerSettings()) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    assert _cuda_devices(ServerSettings(number=2, tensor_parallel_size=3)) == ["0,1,2", "3,4,5"]
    cuda(2, visible="GPU-a,GPU-b")
    assert _cuda_devices(ServerSettings(number=2)) == ["GPU-a", "GPU-b"]
    server = ServerSettings(devices=("4", "5", "6", "7"), tensor_parallel_size=2)
    assert _cuda_devices(server) == ["4,5"]
    assert _cuda_devices(evolve(server, number=2)) == ["4,5", "6,7"]


@pytest.mark.parametrize("device", ["auto", "accelerator", None])
@pytest.mark.parametrize(
    ("kind", "hip", "variables"),
    [
        ("xpu", None, ["ZE_AFFINITY_MASK"]),
        ("npu", None, ["ASCEND_RT_VISIBLE_DEVICES"]),
        ("cuda", "7.0", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]),
    ],
)
def test_devices_of_other_kinds_are_selected_by_their_own_variables(
    device: str | None, kind: str, hip: str | None, variables: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    simulate_accelerator(monkeypatch, kind, 4)
    server = ServerSettings(number=2, device=device or kind)
    for name in DEVICE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert devices_of_servers(server) == [dict.fromkeys(variables, own) for own in ("0", "1")]
    monkeypatch.setenv(variables[-1], "6,7")
    assert devices_of_servers(server) == [dict.fromkeys(variables, own) for own in ("6", "7")]
    monkeypatch.setenv(variables[0], "4,5")
    assert devices_of_servers(server) == [dict.fromkeys(variables, own) for own in ("4", "5")]


def test_accelerator_that_servers_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_accelerator(monkeypatch, "mps")
    assert is_on_cpu(ServerSettings())
    assert devices_of_servers(ServerSettings()) == [{}]
    anywhere = ServerSettings(device="accelerator", number=2)
    assert not is_on_cpu(anywhere)
    assert devices_of_servers(anywhere) == [{}, {}]
    words = r"server.devices\n  got:  \['1'\]\n  need: the kind.*\n  do:   set server.device to cuda or xpu or npu"
    with pytest.raises(ConfigError, match=words):
        devices_of_servers(ServerSettings(device="accelerator", devices=("1",)))


def test_devices_of_another_kind_than_those_of_this_process_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_accelerator(monkeypatch, "cuda", 2)
    assert devices_of_servers(ServerSettings(device="xpu")) == [{}]
    assert devices_of_servers(ServerSettings(device="xpu", devices=("1",))) == [{"ZE_AFFINITY_MASK": "1"}]


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
    server = ServerSettings(python=ENGINE_PYTHON, number=2)
    with pytest.raises(ConfigError, match=r"generator: devices that this process sees\n  got:  1: 0"):
        check(evolve(addition(), generator=engine.Config(server=server)))


def test_servers_that_need_no_device(cuda: Any) -> None:
    cuda(1)
    assert devices_of_servers(ServerSettings(device="cpu", number=3)) == [{}] * 3
    assert devices_of_servers(ServerSettings(urls=("http://a:1", "http://b:1"))) == [{}] * 2
    cuda(0)
    assert devices_of_servers(ServerSettings(device="cuda", number=2)) == [{}] * 2
    assert _cuda_devices(ServerSettings(device="cuda", devices=("3",))) == ["3"]
    with pytest.raises(ConfigError, match=r"server.devices has no effect\n  got:  servers on the CPU"):
        check_engine(ServerSettings(device="cpu", devices=("1",), python="python3"), "vllm")
    for name in DEVICE_VARIABLES:
        with pytest.raises(ConfigError, match=rf"environment.{name}[\s\S]*set devices"):
            ServerSettings(environment={name: "1"})


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("cuda", {"weight_transfer": "cuda_ipc"}, None),
        ("cuda", {"weight_transfer": "nccl", "devices": ("4",)}, None),
        ("cuda", {"weight_transfer": "nccl", "urls": ("http://host:1",)}, None),
        ("cuda", {"weight_transfer": "shared_memory", "device": "cpu"}, None),
        (None, {"weight_transfer": "cuda_ipc", "device": "accelerator"}, None),
        (None, {"weight_transfer": "cuda_ipc"}, "cuda_ipc, with a trainer on cpu and servers on cpu"),
        (None, {"weight_transfer": "nccl", "device": "cuda"}, "nccl, with a trainer on cpu and servers on cuda"),
        ("xpu", {"weight_transfer": "cuda_ipc"}, "cuda_ipc, with a trainer on xpu and servers on xpu"),
        ("cuda", {"weight_transfer": "nccl", "device": "cpu"}, "nccl, with a trainer on cuda and servers on cpu"),
        (
            "cuda",
            {"weight_transfer": "cuda_ipc", "urls": ("http://host:1",)},
            "cuda_ipc, with servers that run already\n  need: servers that purerl starts on its host\n  do:",
        ),
        (
            "cuda",
            {"weight_transfer": "nccl"},
            "nccl, with servers on the devices of the trainer\n  need: servers on devices of their own",
        ),
    ],
)
@pytest.mark.parametrize("engine", [vllm, sglang])
def test_transfers_between_devices_that_cannot_work_are_refused_before_the_run(
    engine: Any, kind: str | None, settings: dict[str, Any], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_accelerator(monkeypatch, kind)
    python = {} if "urls" in settings else {"python": ENGINE_PYTHON}
    config = evolve(addition(), generator=engine.Config(server=ServerSettings(**python, **settings)))
    refused = (
        nullcontext() if words is None else pytest.raises(ConfigError, match="^generator.server.weight_transfer\n")
    )
    with refused as error:
        check(config)
    assert words is None or words in str(error and error.value)


def test_variable_of_a_process() -> None:
    command = Command(("python3",), {"A": "1"})
    assert on_devices(command, {}) == command
    assert on_devices(command, {"B": "2,3"}).environment == {"A": "1", "B": "2,3"}
