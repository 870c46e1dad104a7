"""The settings that all engines behind HTTP share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from attrs import frozen

from purerl.backends.mismatch_growth import growth_setting
from purerl.backends.serving.access import api_key, internal_network, token_of_url
from purerl.backends.serving.versions import can_import
from purerl.errors import ConfigError
from purerl.settings import above_zero, at_least, boolean, count, in_section, no_effect, one_of, setting, switch
from purerl.system.credentials import is_server_address
from purerl.system.devices.kinds import (
    ANY_ACCELERATOR,
    BETWEEN_DEVICES,
    BROADCAST_BETWEEN_DEVICES,
    DEVICE_VARIABLES,
    SERVER_DEVICE,
    VISIBLE_DEVICES,
    WEIGHT_TRANSFER,
)
from purerl.system.installation import install_command

__all__ = [
    "OPEN_ARGUMENTS",
    "ServedConfig",
    "ServerSettings",
    "as_flags",
    "check_arguments",
    "check_engine",
    "check_updates_in_flight",
    "is_on_cpu",
    "kind_of_devices",
    "one_core_each",
    "variables",
]


_INHERITED = "set the variable in the environment of the run: servers inherit it"
_OWN_TOKEN = "leave it out: servers have a token of the run"  # noqa: S105 - a text
_TRANSFERS = ("shared_memory", "gloo", "directory", *BETWEEN_DEVICES)


def _ends_like_credential(name: str) -> bool:
    """Whether an environment variable seems to have a credential.

    >>> [*map(_ends_like_credential, ("HF_TOKEN", "MY_KEY", "AWS_SECRET", "TOKENIZERS_PARALLELISM", "VLLM_USE_V1"))]
    [True, True, True, False, False]
    """
    return name.upper().rpartition("_")[2].rstrip("S") in {"KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL"}


@frozen(kw_only=True)
class ServerSettings:
    """Processes that purerl starts, or servers that run already."""

    urls: tuple[str, ...] = setting(
        "servers that run already, such as http://host:8000: they are used, and never stopped; empty: servers are "
        "started",
        default=(),
        need="addresses that begin with http:// or https://, without a user, a password, a query and a fragment",
        valid=lambda urls: all(map(is_server_address, urls)),
        credential="export PURERL_SERVER_TOKEN, or PURERL_SERVER_TOKEN_FILE with the name of a private file, or set "
        "server.api_key_variable",
        hidden=True,
        may_change="rounding",
    )
    api_key_variable: str | None = setting(
        "name of the environment variable with the key of a proxy in front of the servers in urls, or with their own "
        "api key: each request has it, beside the token of the servers",
        default=None,
        need="the name of an environment variable, not the key itself",
        valid=lambda name: re.fullmatch(r"[A-Za-z_]\w*", name) is not None,
        hidden=True,
        may_change=True,
    )
    number: int = count("servers that are started on each host; each has a copy of the model")
    python: str | None = setting(
        "the Python interpreter of the environment in which the engine is installed; by default that of purerl",
        default=None,
        may_change="rounding",
    )
    environment: Mapping[str, str] = setting(
        "environment variables of the servers, beside those of the run, which they inherit",
        factory=dict,
        may_change="rounding",
        credential=_INHERITED,
        hash=False,  # a dict has no hash, and the settings are a key in `purerl.planning`
    )
    device: str = setting(SERVER_DEVICE, default="auto", **one_of("auto", "cpu", ANY_ACCELERATOR, *VISIBLE_DEVICES))
    devices: tuple[str, ...] = setting(
        "accelerators of the servers, named as in the environment variable that selects them: each server gets "
        "tensor_parallel_size of them, in order; empty: those that purerl sees, beginning with that of the first rank",
        default=(),
        may_change="rounding",
    )
    dtype: str | None = setting(
        "of the weights in the servers: float32, bfloat16 or float16; by default the one that the trainer computes "
        "with: bfloat16 with trainer.mixed_precision, otherwise model.dtype. Another one than the trainer's makes the "
        "log-probabilities differ",
        default=None,
        need="float32, bfloat16 or float16",
        valid=lambda dtype: dtype in (None, "float32", "bfloat16", "float16"),
    )
    tensor_parallel_size: int = count("devices among which each server divides the model")
    gpu_memory_utilization: float | None = setting(
        "share of the device's memory for weights, keys and values; by default the engine's",
        default=None,
        may_change="rounding",
        **at_least(0.0, 1.0),
    )
    sleep_level: int = setting(
        "what servers do while the trainer trains: 0: nothing; 1: release the memory of their devices, with a copy of "
        "the weights in the memory of the host; 2: the same without the copy, if the trainer sends all weights",
        default=0,
        may_change="rounding",
        **one_of(0, 1, 2),
    )
    enable_prefix_caching: bool = switch("equal beginnings of sequences are computed once", default=True)
    arguments: Mapping[str, Any] = setting(
        "further arguments of the engine's server by name, such as kv_cache_dtype; it refuses those that it does not "
        "know",
        factory=dict,
        may_change="rounding",
        credential=_OWN_TOKEN,
        hash=False,
    )
    logs: str = setting(
        "the directory of the logs of the servers; {run} is the directory of the run", default="{run}/servers"
    )
    weight_transfer: str | None = setting(
        WEIGHT_TRANSFER,
        default=None,
        need=f"{', '.join(_TRANSFERS[:-1])} or {_TRANSFERS[-1]}",
        valid=lambda name: name in (None, *_TRANSFERS),
        may_change=True,
    )
    weights_directory: str | None = setting(
        "where files of weights are written for the servers, which must see the same directory; by default in the "
        "memory of this host, /dev/shm, if they fit, and otherwise in the directory for temporary files",
        default=None,
        may_change=True,
    )
    start_timeout: float = setting(
        "until a server must be ready", default=1800.0, unit="s", may_change=True, **above_zero()
    )
    stall_timeout: float = setting(
        "until a server that has requests, and finishes none, counts as hung",
        default=900.0,
        unit="s",
        may_change=True,
        **above_zero(),
    )
    update_timeout: float = setting(
        "until a server must have loaded new weights", default=600.0, unit="s", may_change=True, **above_zero()
    )
    max_restarts: int = count(
        "restarts of a server without a completion between them, after which the run stops",
        3,
        minimum=0,
        may_change=True,
    )
    stale_cache: bool = setting(
        "requests that new weights interrupt keep the keys and values of the old weights: faster, but their "
        "log-probabilities are then those of no weights",
        default=False,
        **boolean(),
    )

    def __attrs_post_init__(self) -> None:
        for name in _OF_PROCESSES if self.urls else ():
            _require_default(self, name)
        for name in filter(_ends_like_credential, self.environment):
            need = "variables that are no passwords, keys and tokens: settings are written to files"
            got = "a variable that may be one; its value is not shown here"
            raise ConfigError(f"environment.{name}", got=got, need=need, do=_INHERITED)
        for name in sorted(DEVICE_VARIABLES.intersection(self.environment)):
            raise ConfigError(f"environment.{name}", got="a variable that purerl sets", do="set devices")
        if self.api_key_variable is not None and not self.urls:
            need = "servers in urls; those that purerl starts have a token of the run"
            raise ConfigError("api_key_variable has no effect", got="a name", need=need, do="leave it out")

    @property
    def longest_update(self) -> float:
        """Seconds until all servers have new weights, also if they are started again as often as they may be."""
        return (self.update_timeout + self.start_timeout) * (1 + self.max_restarts)

    @property
    def transfer(self) -> str:
        """`weight_transfer`, or its default."""
        return self.weight_transfer or ("gloo" if self.urls or sys.platform != "linux" else "shared_memory")


@frozen(kw_only=True)
class ServedConfig:
    """Settings of any engine whose servers sample."""

    server: ServerSettings = setting("processes and addresses", factory=ServerSettings)
    max_num_seqs: int = count("sequences that a server decodes together", 256)
    max_sequence_length: int | None = setting(
        "tokens of the longest sequence; by default as many as the model has positions",
        default=None,
        unit="tokens",
        **at_least(1),
    )
    return_routes: bool = setting(
        "return the experts of each token, for trainer.replay_routes=generator", default=False, **boolean()
    )
    max_mismatch_growth: float | None = growth_setting()


_GRPC = ("grpc", "grpc_mode", "grpc_port", "smg_grpc_mode")
OPEN_ARGUMENTS = frozenset({*_GRPC, "sidecar", "enable_http2", "encoder_only", "headless", "use_ray"})
"""Arguments with which vLLM and SGLang start servers that do not check the token of a run."""

_RECEIVER = Path(__file__).parents[1] / "transfer" / "engine"
_DEFAULTS = ServerSettings()
_OF_PROCESSES = (
    *("number", "python", "environment", "device", "devices", "dtype", "tensor_parallel_size"),
    *("gpu_memory_utilization", "enable_prefix_caching", "arguments", "max_restarts"),
)
"""Settings without effect on servers that run already, beside `logs`, which a run fills in."""


def _require_default(settings: ServerSettings, name: str) -> None:
    if getattr(settings, name) != getattr(_DEFAULTS, name):
        need = "servers that purerl starts; those in urls run already"
        raise no_effect(name, getattr(settings, name), need)


def is_on_cpu(server: ServerSettings) -> bool:
    """Whether the servers run on the CPU."""
    return kind_of_devices(server) == "cpu"


def kind_of_devices(server: ServerSettings) -> str:
    """The kind of the devices of the servers.

    It is that of this process for "auto" and "accelerator". If servers cannot use it, it is the CPU for "auto", and
    remains "accelerator" otherwise: the run may be checked on another computer.
    """
    from purerl.system.devices.accelerator import default_device

    if server.device not in ("auto", ANY_ACCELERATOR):
        return server.device
    kind = default_device().type
    return kind if kind in VISIBLE_DEVICES else {"auto": "cpu"}.get(server.device, server.device)


def one_core_each(server: ServerSettings) -> str | None:
    """The cores of the parts of a model that is divided on the CPU, as vLLM and SGLang read them; otherwise None."""
    parts = server.tensor_parallel_size
    return "|".join(map(str, range(parts))) if parts > 1 and is_on_cpu(server) else None


def variables(server: ServerSettings, own: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a server: `own`, those of the settings, and where it finds the receiver of weights.

    Its processes use the loopback interface. NCCL also uses it for weights, which may come from another network.
    """
    network = internal_network(has_nccl=server.transfer != BROADCAST_BETWEEN_DEVICES)
    environment = {**network, **own, **server.environment}
    paths = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return {**environment, "PYTHONPATH": os.pathsep.join([str(_RECEIVER), *filter(None, [paths])])}


def check_engine(server: ServerSettings, package: str) -> None:
    """Raise ConfigError if servers of the engine `package` cannot be started, or cannot be talked to, from here."""
    if not _is_installed("aiohttp"):
        do = install_command("serving")
        raise ConfigError("server", got="aiohttp is not installed", need="aiohttp, to talk to servers", do=do)
    if server.urls:
        with in_section("server", ServerSettings):
            _require_default(server, "logs")
        for url in server.urls:
            token_of_url(url)  # which must be one, if there is one
        api_key(server.api_key_variable)
        return
    for name in ("devices", "sleep_level") if is_on_cpu(server) else ():
        if getattr(server, name):
            raise ConfigError(
                f"server.{name} has no effect", got="servers on the CPU", need="servers on an accelerator"
            )
    if server.python is None and not _is_installed(package):
        need = f"{package}, in an environment of its own or in this one"
        do = f"install {package} into an environment of its own, and set server.python to its interpreter"
        raise ConfigError("server", got=f"{package} is not installed in the environment of purerl", need=need, do=do)
    if server.python is not None and which(server.python) is None:
        need = f"a Python interpreter of an environment in which {package} is installed"
        raise ConfigError("server.python", got=f"{server.python!r}, which is not a program", need=need)
    if server.python is not None and not can_import(server.python, package):
        got, do = f"{server.python!r}, which has no {package}", f"{server.python} -m pip install {package}"
        raise ConfigError("server.python", got=got, need=f"an environment in which {package} is installed", do=do)


def _is_installed(package: str) -> bool:
    """Whether `package` can be imported. A directory of this name, such as an environment, does not count."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """`arguments` of an engine as command-line options: true is the option alone, and false is --no-NAME.

    >>> as_flags({"max_num_seqs": 8, "enforce_eager": True, "enable_chunked_prefill": False})
    ['--max-num-seqs', '8', '--enforce-eager', '--no-enable-chunked-prefill']
    """
    flags = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if value is None:
            continue
        flags += [f"--{'' if value else 'no-'}{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
    return flags


def check_updates_in_flight(server: ServerSettings, in_flight: Mapping[str, int], *, has_actors: bool) -> None:
    """Refuse servers that sleep while they have requests, and settings of updates of weights that have no effect.

    in_flight   the settings of `rollout` with which requests run while weights change, if they are not 0
    has_actors  whether generators are in actors of Ray

    Raises: ConfigError.
    """
    for name, value in in_flight.items() if server.sleep_level else ():
        got, need = f"{value}, and generator.server.sleep_level={server.sleep_level}", "0, if servers sleep"
        do = "set generator.server.sleep_level=0, and give the servers devices of their own"
        raise ConfigError(f"rollout.{name}", got=got, need=need, do=do)
    if server.stale_cache and not in_flight:
        need = "requests that run while weights change: rollout.max_staleness or rollout.num_extra_groups above 0"
        raise no_effect("generator.server.stale_cache", True, need)  # noqa: FBT003 - the value
    if has_actors and server.weight_transfer in BETWEEN_DEVICES:
        need = 'placement.kind = "local": weights reach the actors of a generator in the memory of their hosts'
        raise no_effect("generator.server.weight_transfer", server.weight_transfer, need)


def check_arguments(server: ServerSettings, reserved: Mapping[str, str]) -> None:
    """Refuse arguments of an engine that settings of purerl decide: `reserved` has them. Raises ConfigError."""
    for name in server.arguments:
        key = name.replace("-", "_")
        if key in ("api_key", "admin_api_key"):
            raise ConfigError(f"server.arguments.{name}", got="a key of the engine", do=_OWN_TOKEN)
        if key in OPEN_ARGUMENTS and server.arguments[name]:
            need = "an HTTP server, whose requests need the token of the run"
            raise ConfigError(f"server.arguments.{name}", got="another server of the engine", need=need)
        if key in reserved:
            do = f"set {reserved[key]}" if reserved[key] else "leave it out: purerl needs its own value"
            raise ConfigError(f"server.arguments.{name}", got="an argument that purerl sets itself", do=do)
