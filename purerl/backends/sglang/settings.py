"""Settings of SGLang as a generator, and the version whose interface is used."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from purerl.backends.serving.settings import ServedConfig, check_arguments

__all__ = ["VERSION", "GeneratorConfig"]

VERSION = "0.5.20"
"""The version of SGLang whose interface is used."""

_RESERVED = {
    "tp_size": "server.tensor_parallel_size",
    "tensor_parallel_size": "server.tensor_parallel_size",
    "dp_size": "server.number",
    "data_parallel_size": "server.number",
    "max_running_requests": "max_num_seqs",
    "context_length": "max_sequence_length",
    "mem_fraction_static": "server.gpu_memory_utilization",
    "enable_memory_saver": "server.sleep_level",
    "enable_weights_cpu_backup": "server.sleep_level",
    "disable_radix_cache": "server.enable_prefix_caching",
    "dtype": "server.dtype",
    "enable_return_routed_experts": "return_routes",
    "model_path": "model.path",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "device": "server.device",
    **dict.fromkeys(
        ("host", "port", "custom_weight_loader", "sampling_mask_max_tokens", "preferred_sampling_params"), ""
    ),
}
"""Arguments of SGLang that settings decide, with the setting."""


@frozen(kw_only=True)
class GeneratorConfig(ServedConfig):
    """Settings of SGLang."""

    PLUGIN: ClassVar[str] = "purerl.backends.sglang.generator"

    def __attrs_post_init__(self) -> None:
        check_arguments(self.server, _RESERVED)
