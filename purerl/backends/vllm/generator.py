"""A generator that starts vLLM as a server, in an environment of its own, or uses servers that run already.

It gets token ids and returns token ids, with the log-probabilities at the sampling temperature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from purerl.backends.serving.model import ServedModel
from purerl.backends.serving.settings import check_engine, is_on_cpu, one_core_each, variables
from purerl.backends.vllm.settings import VERSION
from purerl.backends.vllm.settings import GeneratorConfig as Config
from purerl.errors import ConfigError
from purerl.protocols import SAMPLING_PARAMETERS, Capabilities
from purerl.settings import Model, no_effect

if TYPE_CHECKING:
    from purerl.backends.serving.api import Command
    from purerl.backends.serving.generator import ServedGenerator
    from purerl.backends.serving.shared import SharedGenerator
    from purerl.backends.vllm.api import VLLMApi

__all__ = [
    "VERSION",
    "Config",
    "build",
    "capabilities",
    "check",
    "check_adapter_rank",
    "check_running",
    "command",
    "preview",
]


def capabilities() -> Capabilities:
    """Capabilities with any model. Rounding differs beside other requests, but not in float32 on small models."""
    return Capabilities(seeded=True, sampling=SAMPLING_PARAMETERS, max_temperature=2.0)


def check(config: Config) -> None:
    """Raise ConfigError if the engine is not installed where `config` says, or if there are not enough devices."""
    from purerl.backends.serving.devices import check_transfer, devices_of_servers

    check_engine(config.server, "vllm")
    devices_of_servers(config.server)
    check_transfer(config.server)
    if config.return_routes and not config.server.urls:
        if is_on_cpu(config.server):
            need = "servers on a GPU: vLLM's runner for CPUs does not return experts"
            raise ConfigError("return_routes", got="servers on the CPU", need=need, do="set kind to hf")
        if not config.server.enable_prefix_caching:
            need = "true with return_routes: vLLM keeps experts by the blocks of its prefix cache"
            raise ConfigError("server.enable_prefix_caching", got=False, need=need, do="leave it out")


def check_adapter_rank(config: Config, rank: int | None) -> None:
    """Raise ConfigError if an adapter of `rank` cannot be loaded, and for `max_lora_rank` if there is none."""
    limit = config.max_lora_rank
    if rank is None and limit is not None:
        raise no_effect("max_lora_rank", limit, "a run that trains an adapter")
    if rank is not None and (limit is None or limit < rank):
        need = f"at least {rank}, the rank of the adapter that is trained"
        raise ConfigError("max_lora_rank", got="nothing" if limit is None else limit, need=need, do="set max_lora_rank")


def preview(config: Config, *, model: Model) -> Capabilities:
    """The capabilities of vLLM with `model`, which is not loaded. Raises ConfigError if there is no such model."""
    from purerl.backends.vllm.request_images import MODELS

    served, adapters = ServedModel(model), config.max_lora_rank is not None
    limit = served.max_sequence_length(config.max_sequence_length)
    return evolve(
        capabilities(),
        max_sequence_length=limit,
        adapters=adapters,
        seeded=_has_seeds(config, served),
        images=served.type in MODELS and not adapters,
        sleeps=config.server.sleep_level > 0,
        routes=config.return_routes and bool(served.routes),
    )


def check_running(config: Config, *, model: Model) -> None:
    """Raise EngineError if servers that run already cannot be used, or another run uses them."""
    from purerl.backends.serving.shared import check_given

    if config.server.urls:
        check_given(_api(config, model), config.server)


def build(config: Config, *, model: Model, seed: int) -> ServedGenerator | SharedGenerator:
    """Start the servers, and wait until they are ready. `seed` has no effect: each request has its own.

    Raises: ConfigError if there is no such model; EngineError if a server does not start.
    """
    from purerl.backends.serving.shared import open_servers

    return open_servers(
        _api(config, model),
        config.server,
        preview(config, model=model),
        ServedModel(model),
        connections=config.max_num_seqs,
    )


def command(config: Config, *, model: Model, host: str, port: int) -> Command:
    """The command that starts a server of `model` on `port` of `host`, with an OpenAI-compatible interface."""
    from purerl.backends.serving.devices import devices_of_servers, on_devices

    started = _api(config, model).command(host, port)
    return on_devices(started, devices_of_servers(config.server)[0])


def _api(config: Config, model: Model) -> VLLMApi:
    from purerl.backends.vllm.api import VLLMApi

    served, server = ServedModel(model), config.server
    arguments, has_seeds = _arguments(config, model, served), _has_seeds(config, served)
    is_streamed = server.transfer != "directory"
    return VLLMApi(
        model,
        arguments,
        _environment(config),
        server.python,
        server.stale_cache,
        is_streamed,
        is_given=bool(server.urls),
        has_seeds=has_seeds,
    )


def _has_seeds(config: Config, served: ServedModel) -> bool:
    """Whether requests have seeds: not on a CPU, if the engine reads prompts in parts, as models with states need."""
    is_chunked = config.server.arguments.get("enable_chunked_prefill", served.is_hybrid)
    return not (is_on_cpu(config.server) and is_chunked)


def _arguments(config: Config, model: Model, served: ServedModel) -> dict[str, Any]:
    """The options of ``vllm serve``."""
    from purerl.backends.vllm.api import WORKER
    from purerl.backends.vllm.request_images import MODELS

    on_cpu = is_on_cpu(config.server)
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": config.max_lora_rank}
    return {
        "dtype": config.server.dtype or model.dtype,
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code or None,
        "tensor_parallel_size": config.server.tensor_parallel_size,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": served.max_sequence_length(config.max_sequence_length),
        "gpu_memory_utilization": config.server.gpu_memory_utilization,
        "enable_sleep_mode": config.server.sleep_level > 0 or None,
        "enable_prefix_caching": config.server.enable_prefix_caching,
        "enable_return_routed_experts": config.return_routes or None,
        "enable_scale_out": True,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": WORKER,
        # Seeds on a CPU: vLLM 0.32 ends if a prompt of a request with a seed is read in parts. States need parts.
        **({"enforce_eager": True, "enable_chunked_prefill": served.is_hybrid} if on_cpu else {}),
        # Normalized by the processor: where vLLM 0.32 does it on the device, it ignores defaults of the processor.
        **({"mm_device_do_normalize": False} if served.type in MODELS else {}),
        **(lora if config.max_lora_rank is not None else {}),
        **config.server.arguments,
    }


def _environment(config: Config) -> dict[str, str]:
    cores = one_core_each(config.server)
    own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"} if config.max_lora_rank is not None else {}
    return variables(config.server, {**own, **({"VLLM_CPU_OMP_THREADS_BIND": cores} if cores else {})})
