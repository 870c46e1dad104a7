"""Accelerators by torch's names for them. This file imports no torch, because settings name devices.

Sources of the variables: NVIDIA's CUDA programming guide, AMD's "GPU isolation techniques" (HIP_VISIBLE_DEVICES, and
CUDA_VISIBLE_DEVICES for compatibility), Intel's Level Zero specification, and Huawei's reference of CANN's environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    "ANY_ACCELERATOR",
    "BETWEEN_DEVICES",
    "BROADCAST_BETWEEN_DEVICES",
    "DEVICE",
    "DEVICE_VARIABLES",
    "HANDLES_OF_DEVICE",
    "KIND_WITH_HANDLES",
    "ROCM_VISIBLE_DEVICES",
    "SERVER_DEVICE",
    "VISIBLE_DEVICES",
    "WEIGHT_TRANSFER",
]

VISIBLE_DEVICES: Mapping[str, Sequence[str]] = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "xpu": ("ZE_AFFINITY_MASK",),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Kind -> the environment variables that select the devices which a process sees, the first one first."""

ROCM_VISIBLE_DEVICES: Mapping[str, Sequence[str]] = {"cuda": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}
"""The same with torch for ROCm, where the kind of AMD's devices is that of NVIDIA's."""

DEVICE_VARIABLES = frozenset(
    name for table in (VISIBLE_DEVICES, ROCM_VISIBLE_DEVICES) for names in table.values() for name in names
)
"""All of these variables."""

DEVICE = "cpu, cuda:0, xpu, ...; auto: the accelerator if there is one"
"""Describes a setting that names a device of torch."""

ANY_ACCELERATOR = "accelerator"
"""The device of a server that is any of these kinds: the one that torch finds where the server starts."""

SERVER_DEVICE = (
    "cpu, cuda (NVIDIA, AMD), xpu (Intel), npu (Ascend), or accelerator, which is the one of these that torch finds; "
    "auto: the same, or cpu if there is none"
)
"""Describes a setting that names the kind of the devices of a server."""

KIND_WITH_HANDLES = "cuda"
"""The kind whose memory torch lets other processes open."""

BETWEEN_DEVICES = HANDLES_OF_DEVICE, BROADCAST_BETWEEN_DEVICES = "cuda_ipc", "nccl"
"""Transfers of weights that do not pass through the host, for devices of this kind."""

WEIGHT_TRANSFER = (
    "how servers get new weights: shared_memory: they read the copy that this host keeps; gloo: over the network; "
    "directory: in files, for servers that were not started by purerl; cuda_ipc: from the memory of the trainer's GPU, "
    "for servers on the same one; nccl: from GPU to GPU, for servers on others. All but directory are verified by "
    "every process of a server. By default shared_memory for servers that purerl starts, and gloo for others. An "
    "adapter is always in files"
)
"""Describes a setting."""
