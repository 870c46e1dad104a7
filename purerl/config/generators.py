"""The settings of generators: checks, and changes by a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, fields_dict, frozen

from purerl.backends.plugin import generator_plugin, trainer_plugin
from purerl.backends.serving.settings import ServerSettings, check_updates_in_flight
from purerl.config.overrides import apply
from purerl.errors import ConfigError
from purerl.placement.settings import Placement
from purerl.plugins import kind_of
from purerl.rollouts.settings import Rollout
from purerl.settings import Model, in_section, no_effect, setting

__all__ = [
    "change_generator",
    "check_adapter_rank",
    "check_copy_weights",
    "check_generator",
    "check_mismatch_growth",
    "check_serving",
    "copy_reason",
    "is_narrow",
    "sampled_model",
]


def check_generator(settings: object, key: str = "generator") -> None:
    """Raise ConfigError for the settings of a generator, at `key`, that its own `check` refuses."""
    plugin = generator_plugin(settings)
    with in_section(key, type(settings)):
        plugin.check(settings)


def check_adapter_rank(settings: object, rank: int | None) -> None:
    """Raise ConfigError for a generator that cannot load the adapter of `rank` that is trained; None: there is none."""
    plugin = generator_plugin(settings)
    with in_section("generator", type(settings)):
        plugin.check_adapter_rank(settings, rank)


def sampled_model(model: Model, trainer: object) -> Model:
    """The policy's `model` as the generator loads it, unless its own settings name a dtype: as `trainer` computes."""
    dtype = trainer_plugin(trainer).compute_dtype(trainer)
    return evolve(model, dtype=dtype) if dtype else model


def copy_reason(
    generator: object, *, model: Model, trainer: object, rollout: Rollout | None, placement: Placement, ranks: int
) -> str | None:
    """Why `generator` has a copy of the weights of the policy `model`; None: it samples with those of its `trainer`."""
    if generator is None:
        return "there is no generator"
    if rollout is not None and rollout.max_staleness:
        return f"rollout.max_staleness is {rollout.max_staleness}"
    if placement.kind == "ray":
        return "placement.kind is ray"
    if ranks > 1:
        return f"{ranks} ranks"
    plugin = generator_plugin(generator)
    return plugin.copy_reason(generator, model=sampled_model(model, trainer), trainer=trainer)


def check_copy_weights(
    generator: Any, *, model: Model, trainer: object, rollout: Rollout | None, placement: Placement
) -> None:
    """Refuse `generator.copy_weights` where there is a copy anyway. Raises: ConfigError."""
    if not getattr(generator, "copy_weights", False):
        return
    options = {"model": model, "trainer": trainer, "rollout": rollout, "placement": placement}
    reason = copy_reason(evolve(generator, copy_weights=False), **options, ranks=placement.num_trainers)
    if reason is not None:
        need = f"a generator that could sample with the weights of the trainer; here it has a copy anyway: {reason}"
        raise no_effect("generator.copy_weights", True, need)  # noqa: FBT003 - the value


def check_serving(generator: object, rollout: Rollout | None, placement: Placement) -> None:
    """Refuse settings of a generator with servers as `check_updates_in_flight`. Raises: ConfigError."""
    server = getattr(generator, "server", None)
    if isinstance(server, ServerSettings) and rollout is not None:
        names = ("max_staleness", "num_extra_groups")
        in_flight = {name: value for name in names if (value := getattr(rollout, name))}
        check_updates_in_flight(server, in_flight, has_actors=placement.kind == "ray")


def is_narrow(model: Model, trainer: object, generator: object) -> bool:
    """Whether the `trainer` of the policy's `model` or the `generator` computes in 16 bits, as far as settings say."""
    dtypes = {sampled_model(model, trainer).dtype, getattr(generator, "dtype", None)}
    dtypes.add(getattr(getattr(generator, "server", None), "dtype", None))
    return not dtypes <= {"float32", "float64", None}


def check_mismatch_growth(generator: object, rollout: Rollout | None) -> None:
    """Refuse `generator.max_mismatch_growth` where log-probabilities are of other weights than the trainer's."""
    growth = getattr(generator, "max_mismatch_growth", None)
    if growth is not None and (rollout is None or rollout.max_staleness or rollout.recorded):
        need = "completions that are sampled with the weights of their step: rollout.max_staleness = 0"
        raise no_effect("generator.max_mismatch_growth", growth, need)


@frozen
class _Sampler:
    """A section with an engine that samples, for settings that name its kind."""

    generator: Any = setting("the engine that samples completions", plugin="generator")


def change_generator(generator: Any, changes: Mapping[str, Any], settings: Sequence[str] = ()) -> Any:
    """The Config of an engine, changed by `settings`, as KEY=VALUE, and then by `changes`.

    Raises: ConfigError for a setting that it does not have, and if the engine is not installed.
    """
    if settings:
        generator = apply(_Sampler(generator), [f"generator.{text}" for text in settings]).generator
        check_generator(generator)
    for name, value in changes.items():
        if name not in fields_dict(type(generator)):
            need = f"a generator with this setting; {kind_of(generator)} has none"
            raise ConfigError(f"generator.{name} has no effect", got=repr(value), need=need, do="leave it out")
    return evolve(generator, **changes)
