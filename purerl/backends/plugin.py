"""Engines as plugins: everything that the module, or the class, of a trainer or a generator may define.

`trainer_plugin` and `generator_plugin` read it from the plugin that some settings belong to. Only `Config` and `build`
are needed, see `purerl.plugins`; every other name has a default. No other code looks for these names.

Some settings of an engine are read by their names too, if its Config has them:

    device                      the device that it computes on: "auto", "cpu", or another one of torch
    compile                     of a trainer: whether the first step compiles it, for a line on the console
    budget                      of a trainer: `Budget` of `purerl.backends.training`, which a plan of memory may reduce
    dtype                       of a generator: the dtype that it computes in, if it is not that of the trainer
    max_mismatch_growth         of a generator: `growth_setting` of `purerl.backends.mismatch_growth`
    server                      of a generator: `ServerSettings` of `purerl.backends.serving.settings`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import fields_dict, frozen

from purerl.plugins import find, kind_of
from purerl.system.memory_use import MemoryUse

if TYPE_CHECKING:
    from purerl.backends.serving.api import Command
    from purerl.protocols import Capabilities, Generator, Trainer

__all__ = ["GeneratorPlugin", "TrainerPlugin", "engine_plugin", "generator_plugin", "trainer_plugin"]


def _accept(*arguments: Any, **options: Any) -> None:
    """Raise nothing."""


def _none(config: Any) -> None:
    """No rank, and no dtype."""


def _own_weights(config: Any, **arguments: Any) -> str:
    return f"{kind_of(config)} has weights of its own"


def _value(name: str, default: Any) -> Callable[[Any], Any]:
    """The setting or property `name` of a Config, if it has one, otherwise `default`."""
    return lambda config: getattr(config, name, default)


def _not_counted(group: str, config: Any, **options: Any) -> MemoryUse:
    return MemoryUse(states={}, assumed=(f"the {group} {kind_of(config)} is not counted: its memory is not known",))


def _check_device(config: Any) -> None:
    from purerl.system.devices.accelerator import device_of

    device_of(getattr(config, "device", "auto"))


@frozen(kw_only=True)
class TrainerPlugin:
    """A trainer.

    Config              a frozen attrs class: the settings and their defaults
    build(config, *, model, role, outputs, updates, seed)
                        the trainer of `model`
    check(config, *, role, outputs, updates)
                        raises ConfigError for settings that do not fit the run. `updates` is None if the number of
                        optimizer steps is not known yet. Default: accepts all, as the other checks
    check_installed(config)
                        raises ConfigError if the library of the engine is not installed
    check_device(config)
                        raises ConfigError if this process has no device for it. Default: `device` is checked
    check_ranks(config, ranks)
                        raises ConfigError for settings that do not fit this number of ranks
    check_model(config, *, model, outputs, is_trained)
                        raises ConfigError for a model without these outputs; it is read from its files, not loaded
    adapter_rank(config)
                        the rank of the adapter that is trained. Default: None, no adapter
    depends_on_length(config)
                        whether learning rates depend on the number of optimizer steps of the run. Default: the property
                        `depends_on_run`, or True
    compute_dtype(config)
                        the dtype of matrix products, in which the generator samples by default. Default: None, that of
                        the weights
    replayed_routes(config)
                        who records the experts that the policy replays: "old_logp", "generator" or "off". Default: the
                        setting `replay_routes`, or "off"
    capabilities()      its `Capabilities` with any model. Default: None, they are known when it is built
    preview(config, *, model)
                        its `Capabilities` with this model, which is not loaded; raises ConfigError as `build`, where it
                        can. Default: None, as `capabilities`
    memory(config, *, model, outputs, is_trained, workload, on_accelerator)
                        the memory that it needs on each rank, without building it. Default: it is not counted
    VERSION             the version of the library whose interface is used. Default: None, any
    conformance(directory)
                        the arguments of `purerl.testing.check_trainer` for this trainer, for
                        ``python -m purerl.testing.trainer``. Default: None
    """

    Config: type[Any]
    build: Callable[..., Trainer]
    check: Callable[..., None] = _accept
    check_installed: Callable[[Any], None] = _accept
    check_device: Callable[[Any], None] = _check_device
    check_ranks: Callable[[Any, int], None] = _accept
    check_model: Callable[..., None] = _accept
    adapter_rank: Callable[[Any], int | None] = _none
    depends_on_length: Callable[[Any], bool] = _value("depends_on_run", True)  # noqa: FBT003 - the value
    compute_dtype: Callable[[Any], str | None] = _none
    replayed_routes: Callable[[Any], str] = _value("replay_routes", "off")
    capabilities: Callable[[], Capabilities] | None = None
    preview: Callable[..., Capabilities] | None = None
    memory: Callable[..., MemoryUse] = partial(_not_counted, "trainer")
    VERSION: str | None = None
    conformance: Callable[..., Any] | None = None


@frozen(kw_only=True)
class GeneratorPlugin:
    """A generator.

    Config              a frozen attrs class: the settings and their defaults
    build(config, *, model, seed)
                        the generator of `model`
    check(config)       raises ConfigError if the library of the engine is not installed, or its devices do not exist.
                        Default: accepts all, as the other checks
    check_device(config)
                        raises ConfigError if this process has no device for it. Default: `device` is checked
    check_adapter_rank(config, rank)
                        raises ConfigError if it cannot load an adapter of this rank; None: no adapter is trained
    check_running(config, *, model)
                        raises EngineError if it uses servers that run already, and cannot use them
    returns_routes(config)
                        whether completions have `routes`. Default: the setting `return_routes`, or False
    command(config, *, model, host, port)
                        the command that starts a server of the model, for ``purerl serve``. Default: None, it is no
                        server
    capabilities()      its `Capabilities` with any model. Default: None, they are known when it is built
    preview(config, *, model)
                        its `Capabilities` with this model, which is not loaded; raises ConfigError as `build`, where it
                        can. Default: None, as `capabilities`
    copy_reason(config, *, model, trainer)
                        why it has a copy of the weights of the policy that a trainer with these settings trains in the
                        same process; None: `build_shared` samples with those of the trainer. Default: it has weights of
                        its own
    build_shared(config, *, trainer, model, seed)
                        the generator that samples with the weights of `trainer`, which has one rank. `load_weights` is
                        called after each change of them. Default: None
    memory(config, *, model, workload, trainer, is_shared)
                        the memory that it needs on each rank, without building it. `trainer` has the settings of the
                        trainer of the policy, None without one, and `is_shared` is true for `build_shared`. Default: it
                        is not counted
    VERSION             the version of the library whose interface is used. Default: None, any
    """

    Config: type[Any]
    build: Callable[..., Generator]
    copy_reason: Callable[..., str | None] = _own_weights
    build_shared: Callable[..., Generator] | None = None
    check: Callable[[Any], None] = _accept
    check_device: Callable[[Any], None] = _check_device
    check_adapter_rank: Callable[[Any, int | None], None] = _accept
    check_running: Callable[..., None] = _accept
    returns_routes: Callable[[Any], bool] = _value("return_routes", False)  # noqa: FBT003 - the value
    command: Callable[..., Command] | None = None
    capabilities: Callable[[], Capabilities] | None = None
    preview: Callable[..., Capabilities] | None = None
    memory: Callable[..., MemoryUse] = partial(_not_counted, "generator")
    VERSION: str | None = None


def trainer_plugin(settings: Any) -> TrainerPlugin:
    """The plugin of the trainer with these `settings`. Raises ConfigError as `kind_of` and `find`."""
    return TrainerPlugin(**_defined("trainer", kind_of(settings), TrainerPlugin))


def generator_plugin(settings: Any) -> GeneratorPlugin:
    """The plugin of the generator with these `settings`. Raises ConfigError as `kind_of` and `find`."""
    return GeneratorPlugin(**_defined("generator", kind_of(settings), GeneratorPlugin))


def engine_plugin(group: str, kind: str) -> TrainerPlugin | GeneratorPlugin:
    """The plugin of the engine `kind` of `group`, "trainer" or "generator". Raises ConfigError as `find`."""
    cls = TrainerPlugin if group == "trainer" else GeneratorPlugin
    return cls(**_defined(group, kind, cls))


def _defined(group: str, kind: str, cls: type[Any]) -> dict[str, Any]:
    """The fields of `cls` that the plugin `kind` defines."""
    plugin = find(group, kind)
    return {name: getattr(plugin, name) for name in fields_dict(cls) if hasattr(plugin, name)}
