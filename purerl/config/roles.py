"""The models of a run: which ones its algorithm needs, and the settings of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from attrs import evolve

from purerl.algos.algebra import Algorithm, outputs_of, roles
from purerl.batch import FIELDS
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError, nearest
from purerl.plugins import find, kind_of
from purerl.rewards.components import check_component, short_name
from purerl.settings import Model, in_section, no_effect

__all__ = [
    "ModelRole",
    "check_roles",
    "is_reward",
    "model_roles",
    "models_of",
    "reward_roles",
    "reward_weights",
    "teacher_names",
    "trains_classifier",
]

_TEACHERS, _REWARDS = "teachers", "rewards"


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
    """Every model of the run by its role: "policy", "critic", ...

    Several teachers are "teachers.NAME", and models whose scores are rewards "rewards.NAME".
    """
    trained = {objective.role for objective in (*algorithm.before, *algorithm.objectives)}
    table = {}
    for role in roles(algorithm, FIELDS):
        outputs = outputs_of(algorithm, role, FIELDS)
        for name, own in _settings_of(config, role).items():
            settings = evolve(own, model=own.model or config.model, trainer=own.trainer or config.trainer)
            table[name] = ModelRole(settings, outputs, role in trained)
    for name, own in reward_roles(config).items():
        settings = evolve(own, trainer=own.trainer or config.trainer)
        table[f"{_REWARDS}.{name}"] = ModelRole(settings, ("classifier_score",), is_trained=False)
    return table


def reward_roles(config: RunConfig) -> Mapping[str, Role]:
    """The settings of the models whose scores are rewards, by the names of the rewards."""
    models = config.roles.get(_REWARDS, {})
    return models if isinstance(models, Mapping) else {}


def reward_weights(config: RunConfig) -> dict[str, float]:
    """The weight of each model whose scores are rewards, by the name of the reward."""
    return {name: 1.0 if role.weight is None else role.weight for name, role in reward_roles(config).items()}


def is_reward(role: str) -> bool:
    """Whether `role`, a name in `model_roles`, is that of a model whose scores are rewards."""
    return role.startswith(f"{_REWARDS}.")


def models_of(config: RunConfig, algorithm: Algorithm) -> list[Model]:
    """All models of the run, each once."""
    roles = model_roles(config, algorithm).values()
    return list(dict.fromkeys(role.settings.model or config.model for role in roles))


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
    _check_reward_roles(config)
    for name, (settings, outputs, is_trained) in model_roles(config, algorithm).items():
        if not is_reward(name):
            _check_not_reward(name, settings)
        teacher = _settings_of(config, "teacher").get(name) or settings
        if teacher.update_every is None and teacher.model in ((None, config.model) if name == "teacher" else (None,)):
            need, do = f"a model other than the policy: {kind} learns from it", f"set roles.{name}.model"
            raise ConfigError(f"roles.{name}.model is missing", need=need, do=do)
        if is_trained and settings.update_every is not None:
            need = f"a model that is not trained; {kind} trains the {name}"
            raise no_effect(f"roles.{name}.update_every", settings.update_every, need)
        if settings.update_every is not None and _trains_adapter(config):
            need = "a policy whose whole model is trained; this one trains an adapter"
            do = f"leave roles.{name}.update_every out, or the adapter in the settings of the trainer"
            raise ConfigError(f"roles.{name}.update_every", got=settings.update_every, need=need, do=do)
        check = getattr(find("trainer", kind_of(settings.trainer)), "check", None)
        if check is not None:
            key = "trainer" if settings.trainer is config.trainer else f"roles.{name}.trainer"
            with in_section(key, type(settings.trainer)):
                check(settings.trainer, role=name, outputs=outputs, updates=updates[name])


def _trains_adapter(config: RunConfig) -> bool:
    """Whether the policy trains an adapter. An engine that can has a function `trains_adapter` in its module."""
    trains_adapter = getattr(find("trainer", kind_of(config.trainer)), "trains_adapter", None)
    return trains_adapter is not None and trains_adapter(config.trainer)


def _check_names(config: RunConfig, algorithm: Algorithm, kind: str) -> None:
    """Refuse names in the table `roles` that the algorithm does not use."""
    known = [role for role in roles(algorithm, FIELDS) if role != "policy"]
    for name, settings in config.roles.items():
        key = f"roles.{name}"
        if name == "policy":
            raise ConfigError(key, got="settings of the policy", need="other models", do="set model and trainer")
        if name == _REWARDS:
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


def _check_not_reward(name: str, role: Role) -> None:
    """Refuse settings of `role`, called `name`, that only models in `roles.rewards` have."""
    for setting in ("weight", "steps"):
        if (value := getattr(role, setting)) is not None:
            need = "a model whose scores are rewards, in roles.rewards"
            raise no_effect(f"roles.{name}.{setting}", value, need)


def _check_reward_roles(config: RunConfig) -> None:
    """Refuse models in `roles.rewards` that are not named, without a model, or with settings of other roles."""
    models, key = config.roles.get(_REWARDS), f"roles.{_REWARDS}"
    if models is None:
        return
    if isinstance(models, Role) or not models:
        raise ConfigError(key, got="no names", need="classifiers by name", do=f"set {key}.NAME.model")
    if config.rollout is None and config.evaluate is None:
        raise no_effect(key, ", ".join(models), "rollout or evaluate")
    functions = {short_name(reward.full_name) for reward in (*config.rewards, *config.gates)}
    for name, settings in models.items():
        check_component(name)
        if name in functions:
            got, do = "also the name of a reward function", f"use another name than {name!r}"
            raise ConfigError(f"{key}.{name}", got=got, need="a name of its own", do=do)
        if settings.model is None:
            need, do = "a classifier, such as purerl train reward_model makes", f"set {key}.{name}.model"
            raise ConfigError(f"{key}.{name}.model is missing", need=need, do=do)
        if settings.update_every is not None:
            need = "a model that may follow the policy; a classifier has other weights"
            raise no_effect(f"{key}.{name}.update_every", settings.update_every, need)
