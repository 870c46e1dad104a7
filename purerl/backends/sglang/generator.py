"""A generator that starts SGLang as a server, in an environment of its own, or uses servers that run already.

It gets token ids and returns token ids, with the log-probabilities at the sampling temperature. SGLang has no seeds for
requests, except in its deterministic mode, which this generator does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from purerl.backends.serving.model import ServedModel
from purerl.backends.serving.settings import ServerSettings, check_engine, is_on_cpu, one_core_each, variables
from purerl.backends.sglang.settings import VERSION
from purerl.backends.sglang.settings import GeneratorConfig as Config
from purerl.errors import ConfigError
from purerl.protocols import Capabilities
from purerl.settings import Model

if TYPE_CHECKING:
    from purerl.backends.serving.api import Command
    from purerl.backends.serving.generator import ServedGenerator
    from purerl.backends.serving.shared import SharedGenerator
    from purerl.backends.sglang.api import SGLangApi

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

_SAMPLING = frozenset({"top_p", "top_k", "min_p", "min_tokens", "regex", "json_schema"})


def capabilities() -> Capabilities:
    """The capabilities of SGLang with any model.

    Its repetition penalty leaves out the prompt, its top_p is of the distribution before top_k and min_p, and its stop
    strings end completions before min_tokens: requests with any of them are refused.
    """
    return Capabilities(sampling=_SAMPLING)


def check(config: Config) -> None:
    """Raise ConfigError if the engine is not installed where `config` says, or if there are not enough devices."""
    from purerl.backends.serving.devices import check_transfer, devices_of_servers

    check_engine(config.server, "sglang")
    devices_of_servers(config.server)
    check_transfer(config.server)
    if config.return_routes and not config.server.urls and is_on_cpu(config.server):
        need = "servers on a GPU: SGLang keeps experts in memory that it registers with the device"
        raise ConfigError("return_routes", got="servers on the CPU", need=need, do="set kind to hf")


def check_adapter_rank(config: Config, rank: int | None) -> None:
    """Raise ConfigError if an adapter is trained: SGLang gets whole models only."""
    if rank is not None:
        need, do = "a generator that loads the adapter that is trained", "set generator.kind=vllm or generator.kind=hf"
        raise ConfigError("kind", got="sglang", need=need, do=do)


def preview(config: Config, *, model: Model) -> Capabilities:
    """The capabilities of SGLang with `model`, which is not loaded. Raises ConfigError if there is no such model."""
    served = ServedModel(model)
    limit = served.max_sequence_length(config.max_sequence_length)
    routes = config.return_routes and bool(served.routes)
    return evolve(capabilities(), max_sequence_length=limit, sleeps=config.server.sleep_level > 0, routes=routes)


def check_running(config: Config, *, model: Model) -> None:
    """Raise EngineError if servers that run already cannot be used, or another run uses them."""
    from purerl.backends.serving.shared import check_given

    if config.server.urls:
        check_given(_api(config, model, seed=0), config.server)


def build(config: Config, *, model: Model, seed: int) -> ServedGenerator | SharedGenerator:
    """Start the servers, and wait until they are ready. `seed` determines what they sample, together with their load.

    Raises: ConfigError if there is no such model; EngineError if a server does not start.
    """
    from purerl.backends.serving.shared import open_servers

    return open_servers(
        _api(config, model, seed),
        config.server,
        preview(config, model=model),
        ServedModel(model),
        connections=config.max_num_seqs,
    )


def command(config: Config, *, model: Model, host: str, port: int) -> Command:
    """The command that starts a server of `model` on `port` of `host`, with an OpenAI-compatible interface."""
    from purerl.backends.serving.devices import devices_of_servers, on_devices

    started = _api(config, model, seed=0).command(host, port)
    return on_devices(started, devices_of_servers(config.server)[0])


def _api(config: Config, model: Model, seed: int) -> SGLangApi:
    from purerl.backends.sglang.api import SGLangApi

    server, served = config.server, ServedModel(model)
    arguments = {**_arguments(config, model, served), "random_seed": seed, **config.server.arguments}
    return SGLangApi(
        model,
        arguments,
        _environment(server),
        server.python,
        stale_cache=server.stale_cache,
        is_streamed=server.transfer != "directory",
        is_given=bool(server.urls),
        vocab_size=served.vocab_size,
        routes=served.routes if config.return_routes else None,
    )


def _environment(server: ServerSettings) -> dict[str, str]:
    cores = one_core_each(server)
    own = {"SGLANG_USE_CPU_ENGINE": "1"} if is_on_cpu(server) else {}
    return variables(server, {**own, **({"SGLANG_CPU_OMP_THREADS_BIND": cores} if cores else {})})


def _arguments(config: Config, model: Model, served: ServedModel) -> dict[str, Any]:
    """The options of SGLang's server.

    On a CPU, each part of a divided model would take nearly all memory of the host for keys and values. It gets as much
    as `max_num_seqs` sequences of the largest length need.
    """
    from purerl.backends.sglang.api import LOADER

    length = served.max_sequence_length(config.max_sequence_length)
    on_cpu = {
        "max_total_tokens": length and config.max_num_seqs * length,
        "device": "cpu",
        "attention_backend": "torch_native",
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
    }
    return {
        "dtype": config.server.dtype or model.dtype,
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code or None,
        "tp_size": config.server.tensor_parallel_size,
        "max_running_requests": config.max_num_seqs,
        "context_length": length,
        "mem_fraction_static": config.server.gpu_memory_utilization,
        "enable_memory_saver": config.server.sleep_level > 0 or None,
        "enable_weights_cpu_backup": config.server.sleep_level == 1 or None,
        "disable_radix_cache": True if not config.server.enable_prefix_caching else None,
        "enable_return_routed_experts": config.return_routes or None,
        "skip_server_warmup": True,
        "sleep_on_idle": True,  # otherwise a scheduler without requests takes a whole core
        "custom_weight_loader": LOADER,
        "sampling_mask_max_tokens": served.vocab_size,  # otherwise requests with more tokens to choose from fail
        **(on_cpu if is_on_cpu(config.server) else {}),
    }
