"""The models of a run: which ones its algorithm needs, and the settings of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from attrs import evolve

from purerl.algos.algebra import Algorithm, outputs_of, roles
from purerl.backends.plugin import trainer_plugin
from purerl.batch import FIELDS
from purerl.config.reward_roles import (
    REWARDS,
    check_not_reward,
    check_reward_roles,
    is_reward,
    judge_roles,
    reward_roles,
)
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError, nearest
from purerl.plugins import kind_of
from purerl.settings import Model, in_section, no_effect

__all__ = [
    "ModelRole",
    "adapter_rank",
    "check_placement",
    "check_roles",
    "model_roles",
    "models_by_role",
    "models_of",
    "teacher_names",
    "trainer_key",
    "trains_classifier",
]

_TEACHERS = "teachers"


class ModelRole(NamedTuple):
    """A model that a run loads.

    settings    its model and its trainer; what is not set is taken from the run
    outputs     the outputs that the algorithm needs from it
    is_trained  whether an objective trains it
    """

    settings: Role
    outputs: tuple[str, ...]
    is_trained: bool


def model_roles(config: RunConfig, algorithm: Algorithm) -> dict[str, ModelRole]:
    """Every model of the run that has a trainer, by its role: "policy", "critic", ...

    Several teachers are "teachers.NAME", and classifiers whose scores are rewards "rewards.NAME".
    """
    trained = {objective.role for objective in (*algorithm.before, *algorithm.objectives)}
    table = {}
    for role in roles(algorithm, FIELDS):
        outputs = outputs_of(algorithm, role, FIELDS)
        for name, own in _settings_of(config, role).items():
            settings = evolve(own, model=own.model or config.model, trainer=own.trainer or config.trainer)
            table[name] = ModelRole(settings, outputs, role in trained)
    for name, own in reward_roles(config).items():
        if own.judge is None:
            settings = evolve(own, trainer=own.trainer or config.trainer)
            table[f"{REWARDS}.{name}"] = ModelRole(settings, ("classifier_score",), is_trained=False)
    return table


def trainer_key(config: RunConfig, name: str, trainer: Any) -> str:
    """The key of `trainer`, the settings of the trainer of the role `name`."""
    return "trainer" if trainer is config.trainer else f"roles.{name}.trainer"


def models_by_role(config: RunConfig, algorithm: Algorithm) -> dict[str, Model]:
    """Every model of the run by its role: those of `model_roles`, and the judges."""
    models = {name: role.settings.model for name, role in model_roles(config, algorithm).items()}
    judges = {name: role.model for name, role in judge_roles(config).items()}
    return {name: model or config.model for name, model in {**models, **judges}.items()}


def models_of(config: RunConfig, algorithm: Algorithm) -> list[Model]:
    """All models of the run, each once."""
    return list(dict.fromkeys(models_by_role(config, algorithm).values()))


def teacher_names(config: RunConfig) -> tuple[str, ...]:
    """The names of several teachers; empty if there is at most one."""
    teachers = config.roles.get(_TEACHERS)
    return tuple(teachers) if isinstance(teachers, Mapping) else ()


def trains_classifier(algorithm: Algorithm) -> bool:
    """Whether the model that `algorithm` trains is a classifier, which scores a whole conversation."""
    return "classifier_score" in outputs_of(algorithm, "policy", FIELDS)


def _settings_of(config: RunConfig, role: str) -> dict[str, Role]:
    """The settings of the models in `role`, by name: one model, or several teachers."""
    if role == "teacher" and isinstance(teachers := config.roles.get(_TEACHERS), Mapping) and teachers:
        return {f"{_TEACHERS}.{name}": settings for name, settings in teachers.items()}
    settings = config.roles.get(role)
    return {role: settings if isinstance(settings, Role) else Role()}


def check_roles(config: RunConfig, algorithm: Algorithm, *, updates: Mapping[str, int | None]) -> None:
    """Refuse roles that are missing, unknown or without effect, and settings that their trainer refuses.

    `updates` is the result of `updates_of`. Raises: ConfigError.
    """
    kind = kind_of(config.algorithm.base)
    _check_names(config, algorithm, kind)
    check_reward_roles(config)
    for name, (settings, outputs, is_trained) in model_roles(config, algorithm).items():
        if not is_reward(name):
            check_not_reward(name, settings)
        teacher = _settings_of(config, "teacher").get(name) or settings
        if teacher.update_every is None and teacher.model in ((None, config.model) if name == "teacher" else (None,)):
            need, do = f"a model other than the policy: {kind} learns from it", f"set roles.{name}.model"
            raise ConfigError(f"roles.{name}.model is missing", need=need, do=do)
        if is_trained and settings.update_every is not None:
            need = f"a model that is not trained; {kind} trains the {name}"
            raise no_effect(f"roles.{name}.update_every", settings.update_every, need)
        if settings.update_every is not None and adapter_rank(config.trainer) is not None:
            need = "a policy whose whole model is trained; this one trains an adapter"
            do = f"leave roles.{name}.update_every out, or the adapter in the settings of the trainer"
            raise ConfigError(f"roles.{name}.update_every", got=settings.update_every, need=need, do=do)
        plugin = trainer_plugin(settings.trainer)
        with in_section(trainer_key(config, name, settings.trainer), type(settings.trainer)):
            plugin.check(settings.trainer, role=name, outputs=outputs, updates=updates[name])


def adapter_rank(trainer: Any) -> int | None:
    """The rank of the adapter that `trainer` trains, or None."""
    return trainer_plugin(trainer).adapter_rank(trainer)


def _check_names(config: RunConfig, algorithm: Algorithm, kind: str) -> None:
    """Refuse names in the table `roles` that the algorithm does not use."""
    known = [role for role in roles(algorithm, FIELDS) if role != "policy"]
    for name, settings in config.roles.items():
        key = f"roles.{name}"
        if name == "policy":
            raise ConfigError(key, got="settings of the policy", need="other models", do="set model and trainer")
        if name == REWARDS:
            continue
        if name not in known and not (name == _TEACHERS and "teacher" in known):
            need = f"a model that {kind} uses" if known else f"an algorithm that uses it; {kind} uses only the policy"
            do = nearest(name, known) if known else f"leave {key} out"
            raise ConfigError(f"{key} has no effect", need=need, do=do)
        if name == _TEACHERS and not teacher_names(config):
            raise ConfigError(key, got="no names", need="teachers by name", do=f"set {key}.NAME.model")
        if name != _TEACHERS and not isinstance(settings, Role):
            raise ConfigError(key, got=f"several models: {', '.join(settings)}", need="one model")
    if {"teacher", _TEACHERS} <= config.roles.keys():
        raise ConfigError("roles.teacher and roles.teachers", got="both", need="one of the two")


def check_placement(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse actors of a role that the run does not have. Raises: ConfigError."""
    names = [*model_roles(config, algorithm), *judge_roles(config)]
    for name in config.placement.roles:
        if name not in names:
            need = f"a role of the run: {', '.join(names)}"
            raise ConfigError(f"placement.roles.{name} has no effect", got="no such role", need=need)
    if config.placement.generators is not None and config.generator is None:
        raise no_effect("placement.generators", config.placement.generators, "a run that samples")
