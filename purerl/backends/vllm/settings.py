"""Settings of vLLM as a generator, and the version whose interface is used."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from purerl.backends.serving.settings import ServedConfig, check_arguments
from purerl.settings import at_least, setting

__all__ = ["VERSION", "GeneratorConfig"]

VERSION = "0.32"
"""The version of vLLM whose interface is used, and its patch releases."""

_RESERVED = {
    "tensor_parallel_size": "server.tensor_parallel_size",
    "data_parallel_size": "server.number",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_sequence_length",
    "gpu_memory_utilization": "server.gpu_memory_utilization",
    "enable_sleep_mode": "server.sleep_level",
    "enable_prefix_caching": "server.enable_prefix_caching",
    "dtype": "server.dtype",
    "enable_return_routed_experts": "return_routes",
    "model": "model.path",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    **dict.fromkeys(
        ("host", "port", "logprobs_mode", "enable_scale_out", "enable_lora", "max_loras", "worker_extension_cls"), ""
    ),
}
"""Arguments of vLLM that settings decide, with the setting."""


@frozen(kw_only=True)
class GeneratorConfig(ServedConfig):
    """Settings of vLLM."""

    PLUGIN: ClassVar[str] = "purerl.backends.vllm.generator"

    max_lora_rank: int | None = setting(
        "largest rank of an adapter that is loaded without merging; not set: adapters are refused",
        default=None,
        **at_least(1),
    )

    def __attrs_post_init__(self) -> None:
        check_arguments(self.server, _RESERVED)
