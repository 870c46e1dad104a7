"""docs/reference/devices.md: the message of the check, and a table of the variables and backends that are used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.distributed.distributed_c10d import Backend

from purerl.errors import ConfigError
from purerl.opening.fit import check_devices
from purerl.runs import run_config
from purerl.system.devices.kinds import ROCM_VISIBLE_DEVICES, VISIBLE_DEVICES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "devices.md").read_text(encoding="utf-8")


def _row(title: str) -> list[str]:
    """The cells for the CPU, NVIDIA, AMD, Intel, Apple and Ascend."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {title}")]
    return [cell.strip() for cell in line.strip("| ").split(" | ")[1:]]


@pytest.mark.skipif(torch.__version__.partition("+")[2] != "cpu", reason="the message is that of torch for CPUs")
def test_message_is_that_of_the_check() -> None:
    config = run_config("addition", ["trainer.device=xpu"])
    with pytest.raises(ConfigError) as raised:
        check_devices(config)
    assert f"```text\nerror: {raised.value}\n```" in PAGE


def test_variables_are_those_that_are_set() -> None:
    nvidia, amd, intel, apple, ascend = (
        [*re.findall(r"`(\w+)`", cell)] for cell in _row("[servers](../how-to/servers.md)")[1:]
    )
    assert {"cuda": (*nvidia,), "xpu": (*intel,), "npu": (*ascend,)} == VISIBLE_DEVICES
    assert {"cuda": (*amd,)} == ROCM_VISIBLE_DEVICES
    assert apple == []


def test_names_and_backends_are_those_of_torch() -> None:
    names = [name.strip("`") for name in _row("name in settings")]
    backends = [cell.partition(" ")[0] for cell in _row("collective calls")]
    known = dict(zip(names, backends, strict=True))
    del known["npu"]  # torch_npu registers it
    assert known == {name: Backend.default_device_backend_map[name] for name in known}
