"""What purerl asks of an accelerator, with kinds that this computer does not have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from purerl.backends.hf.training.flops import peak_of_ranks
from purerl.doctor import _devices
from purerl.errors import ConfigError
from purerl.monitoring.debugging.settings import Debug, check_debug
from purerl.planning.capacity import capacity_of, host_memory
from purerl.system.devices import accelerator
from purerl.system.devices.cuda import has_varlen_attention, runs_triton
from purerl.system.devices.kinds import DEVICE_VARIABLES, ROCM_VISIBLE_DEVICES, VISIBLE_DEVICES
from purerl.system.peak_memory import peak_memory
from tests.accelerators import simulate

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", None])
def test_the_device_of_auto_is_the_accelerator(kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, kind)
    assert accelerator.device_of("auto") == accelerator.default_device() == torch.device(kind or "cpu")


def test_a_computer_without_a_device_of_its_torch_has_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch names the accelerator that it was built for, unless it is asked whether there is one."""
    kind = torch.device("xpu")
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: None if check_available else kind
    )
    assert accelerator.current_accelerator() is None
    assert accelerator.default_device() == CPU
    assert _devices() == f"cpu, threads: {torch.get_num_threads()}"


@pytest.mark.parametrize("name", ["npu", "hpu", "no device", "cpu:x", ""])
def test_device_that_torch_does_not_have_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, "xpu")
    need = (
        r"a device that torch can use here: cpu or xpu\n  do:   leave it at auto, or install the torch of this device"
    )
    with pytest.raises(ConfigError, match=rf"device\n  got:  {name}: .+\n  need: {need}"):
        accelerator.device_of(name)


def test_device_that_torch_has_is_accepted() -> None:
    assert accelerator.device_of("cpu") == CPU
    assert accelerator.device_of("meta").type == "meta"


@pytest.mark.parametrize(
    ("kind", "backends"),
    [("cuda", "cpu:gloo,cuda:nccl"), ("xpu", "cpu:gloo,xpu:xccl"), ("mps", "gloo"), (None, "gloo")],
)
def test_backends_of_a_process_group(kind: str | None, backends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, kind)
    assert accelerator.collective_backends() == backends


def test_backend_that_a_package_registers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch_npu registers hccl. Before that, the refusal says what is missing."""
    simulate(monkeypatch, "privateuseone")
    with pytest.raises(ConfigError, match=r"(?s)collective calls.*registered for privateuseone\n  do:   start"):
        accelerator.collective_backends()
    registered = {**dist.Backend.default_device_backend_map, "privateuseone": "hccl"}
    monkeypatch.setattr(dist.Backend, "default_device_backend_map", registered)
    assert accelerator.collective_backends() == "cpu:gloo,privateuseone:hccl"


def test_variables_that_select_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accelerator.visible_devices_variables("xpu") == ("ZE_AFFINITY_MASK",)
    assert accelerator.visible_devices_variables("npu") == ("ASCEND_RT_VISIBLE_DEVICES",)
    monkeypatch.setattr(torch.version, "hip", None)
    assert accelerator.visible_devices_variables("cuda") == ("CUDA_VISIBLE_DEVICES",)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert accelerator.visible_devices_variables("cuda") == ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    assert accelerator.visible_devices_variables("xpu") == ("ZE_AFFINITY_MASK",)
    assert set(ROCM_VISIBLE_DEVICES) <= set(VISIBLE_DEVICES)
    assert len(DEVICE_VARIABLES) == 4


def _xpu(monkeypatch: pytest.MonkeyPatch, *, peak: int) -> None:
    """Two devices with 48 GiB and a name, one of which has been used."""
    simulate(monkeypatch, "xpu", count=2)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: f"Intel {torch.device(device).type}")
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(total_memory=48 * 2**30))
    monkeypatch.setattr(torch.xpu, "max_memory_allocated", lambda: peak)


def test_memory_and_name_of_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    _xpu(monkeypatch, peak=7)
    assert accelerator.device_name(torch.device("xpu", 1)) == "Intel xpu"
    assert accelerator.total_memory("xpu:1") == accelerator.total_memory("xpu") == 48 * 2**30
    assert accelerator.total_memory("cuda:0") is None
    assert accelerator.total_memory("cpu") is None
    assert accelerator.peak_device_memory() == peak_memory()["peak_device_memory"] == 7
    assert _devices() == f"2 x Intel xpu; cpu, threads: {torch.get_num_threads()}"


def test_planned_capacity_is_that_of_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    _xpu(monkeypatch, peak=0)
    of_accelerator = capacity_of(SimpleNamespace(device="auto"), 2, None)
    assert (of_accelerator.size, of_accelerator.source) == (48 * 2**30, "memory of xpu")
    assert of_accelerator.is_accelerator
    assert capacity_of(SimpleNamespace(device="cuda:0"), 2, None).size is None
    assert capacity_of(SimpleNamespace(device="cpu"), 2, None).size == host_memory() // 2


def test_accelerator_that_is_not_used_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    _xpu(monkeypatch, peak=0)
    assert accelerator.peak_device_memory() is None
    assert "peak_device_memory" not in peak_memory()


def test_kind_that_counts_nothing_has_neither_peak_nor_size_nor_name(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, "mps")
    device = torch.device("mps")
    assert accelerator.device_name(device) == "mps"
    assert accelerator.total_memory("mps") is None
    assert accelerator.peak_device_memory() is None
    assert accelerator.memory_history() is None


def test_without_an_accelerator_there_is_nothing_to_release_or_count(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, None)
    accelerator.release_cached_memory()
    assert accelerator.peak_device_memory() is None
    assert accelerator.memory_history() is None
    assert accelerator.device_name(CPU) == "cpu"


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_cached_memory_of_the_accelerator_is_released(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, kind)
    calls: list[str] = []
    monkeypatch.setattr(torch.get_device_module(kind), "empty_cache", lambda: calls.append(kind))
    accelerator.release_cached_memory()
    assert calls == [kind]


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_memory_snapshots_are_those_of_the_accelerator(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, kind)
    assert accelerator.memory_history() is torch.get_device_module(kind).memory
    check_debug(Debug(profile_steps=(1,), memory_snapshot=True), 1)
    simulate(monkeypatch, "mps")
    with pytest.raises(ConfigError, match="an accelerator whose allocations torch records"):
        check_debug(Debug(profile_steps=(1,), memory_snapshot=True), 1)


def _peak_of_ranks(kind: str) -> float | None:
    mesh: Any = SimpleNamespace(device=torch.device(kind), all=SimpleNamespace(size=4))
    module: Any = SimpleNamespace(autocast=None, model=SimpleNamespace(dtype=torch.bfloat16))
    return peak_of_ranks(mesh, module)


def test_peak_of_ranks_is_that_of_the_named_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "AMD Instinct MI300X")
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: "Intel Data Center GPU")
    assert _peak_of_ranks("cuda") == 4 * 1307.4e12
    assert [_peak_of_ranks(kind) for kind in ("xpu", "mps", "cpu")] == [None] * 3


@pytest.mark.parametrize(
    ("is_cuda", "hip", "capability", "expected"),
    [
        (True, None, (9, 0), True),
        (True, None, (8, 0), True),
        (True, None, (7, 5), False),
        (True, "7.0", (9, 4), False),  # gfx942: a number of another kind
        (False, None, (9, 0), False),
    ],
)
def test_flash_attention_of_different_lengths(
    is_cuda: bool, hip: str | None, capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor: Any = SimpleNamespace(is_cuda=is_cuda, device=torch.device("cuda"))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_varlen_attention(tensor) == expected
    assert runs_triton(tensor) == is_cuda
