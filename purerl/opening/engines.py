"""Opening the trainers of a run, one for each model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from purerl.config.roles import ModelRole, trainer_key
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.opening.model_notes import limit_vocabularies
from purerl.placement.engines import LOCAL_ENGINES, Engines, build_engine
from purerl.plugins import find, kind_of
from purerl.protocols import Capabilities, SupportsBase, Trainer
from purerl.seeds import derive_seed
from purerl.settings import Model, names_setting, with_key

__all__ = ["check_role_model", "open_trainer", "open_trainers"]


def open_trainer(
    config: RunConfig, name: str, role: ModelRole, updates: int, engines: Engines = LOCAL_ENGINES
) -> Trainer:
    """The engine of the model `name`, with its initial weights, which is one of `engines`."""
    settings, seed = role.settings, derive_seed(config.seed, name) % 2**31
    options = {"model": settings.model, "role": name, "outputs": role.outputs, "updates": updates, "seed": seed}
    with _with_keys(config, name, role, of_model=Model):
        trainer = engines.trainer(name, partial(build_engine, "trainer", settings.trainer, **options))
    missing = sorted({*role.outputs} - trainer.capabilities.outputs)
    if missing:
        need = f"an engine that computes {', '.join(missing)}: the algorithm needs it of the {name}"
        raise ConfigError(f"trainer of the {name}", got=", ".join(sorted(trainer.capabilities.outputs)), need=need)
    return trainer


def check_role_model(config: RunConfig, name: str, role: ModelRole) -> None:
    """Refuse a model that does not have what the run needs of the `role` called `name`, before any model is loaded.

    Raises: ConfigError. Its key is that of the model, or of the setting of the trainer that the model does not fit.
    """
    model, trainer = role.settings.model, role.settings.trainer
    check_model = getattr(find("trainer", kind_of(trainer)), "check_model", None)
    if check_model is not None:
        with _with_keys(config, name, role):
            check_model(trainer, model=model, outputs=role.outputs, is_trained=role.is_trained)


@contextmanager
def _with_keys(config: RunConfig, name: str, role: ModelRole, *, of_model: type | None = None) -> Iterator[None]:
    """Add the key of the trainer to a ConfigError that concerns one of its settings, and that of the model to others.

    With `of_model`, others are those that concern a setting of this class.
    """
    trainer = role.settings.trainer
    try:
        yield
    except ConfigError as error:
        if names_setting(error, type(trainer)):
            raise with_key(trainer_key(config, name, trainer), error, type(trainer)) from error
        if of_model is not None and not names_setting(error, of_model):
            raise
        raise with_key("model" if name == "policy" else f"roles.{name}.model", error, Model) from error


def open_trainers(
    config: RunConfig,
    roles: Mapping[str, ModelRole],
    updates: Mapping[str, int | None],
    engines: Engines = LOCAL_ENGINES,
) -> dict[str, Trainer]:
    """The engine of each role. A reference that is the policy at its start is the policy without its adapter."""
    policy = open_trainer(config, "policy", roles["policy"], updates["policy"] or 0, engines)
    base = policy.base() if isinstance(policy, SupportsBase) else None
    trainers = {"policy": policy}
    for name, role in roles.items():
        if base is not None and _is_base(role, roles["policy"], base.capabilities):
            trainers[name] = base
        elif name != "policy":
            trainers[name] = open_trainer(config, name, role, updates[name] or 0, engines)
    limit_vocabularies(roles, trainers)
    return {name: trainers[name] for name in roles}


def _is_base(role: ModelRole, policy: ModelRole, capabilities: Capabilities) -> bool:
    """Whether `role` is the model that the policy was at its start, with the same settings."""
    return not role.is_trained and role.settings == policy.settings and {*role.outputs} <= capabilities.outputs
