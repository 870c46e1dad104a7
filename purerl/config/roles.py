"""Checks of the roles of a run: every model that its algorithm needs, and no other, has settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import NOTHING

from purerl.algos.algebra import roles
from purerl.backends.plugin import trainer_plugin
from purerl.batch import FIELDS
from purerl.config.paths import is_created_by_run
from purerl.config.requirements import REWARDS, TEACHERS, ModelRole, Requirements, is_reward, role_settings
from purerl.config.reward_roles import check_not_reward, check_reward_roles
from purerl.config.schema import Role
from purerl.errors import ConfigError, nearest
from purerl.placement.settings import Placement
from purerl.rewards.settings import Gate, Reward
from purerl.settings import Model, in_section, no_effect

__all__ = ["adapter_rank", "check_models", "check_placement", "check_roles", "shares_weights"]


def check_roles(
    table: Mapping[str, Role | Mapping[str, Role]],
    needs: Requirements,
    rewards: Sequence[Reward | Gate],
    *,
    is_sampling: bool,
) -> None:
    """Refuse roles in `table` that are missing, unknown or without effect, and settings that their trainer refuses.

    `rewards` are those of the run, with its gates. Raises: ConfigError.
    """
    kind, policy, teachers = needs.kind, needs.models["policy"].settings, role_settings(table, "teacher")
    updates = needs.updates(needs.schedule.max_steps)
    _check_names(table, needs)
    for name, role in needs.judges.items():
        _check_not_trained(name, role, kind)
        if role.precompute:
            _check_precomputed(name, role, needs)
    check_reward_roles(table.get(REWARDS), rewards, is_sampling=is_sampling)
    for name, (settings, outputs, is_trained, key) in needs.models.items():
        if not is_reward(name):
            check_not_reward(name, settings)
        own = teachers.get(name, settings)
        if own.update_every is None and own.model in ((None, policy.model) if name == "teacher" else (None,)):
            need, do = f"a model other than the policy: {kind} learns from it", f"set roles.{name}.model"
            raise ConfigError(f"roles.{name}.model is missing", need=need, do=do)
        if is_trained and settings.update_every is not None:
            need = f"a model that is not trained; {kind} trains the {name}"
            raise no_effect(f"roles.{name}.update_every", settings.update_every, need)
        if settings.update_every is not None and adapter_rank(policy.trainer) is not None:
            need = "a policy whose whole model is trained; this one trains an adapter"
            do = f"leave roles.{name}.update_every out, or the adapter in the settings of the trainer"
            raise ConfigError(f"roles.{name}.update_every", got=settings.update_every, need=need, do=do)
        if not is_trained:
            _check_not_trained(name, settings, kind)
        if settings.precompute:
            _check_precomputed(name, settings, needs)
        with in_section(key, type(settings.trainer)):
            trainer_plugin(settings.trainer).check(settings.trainer, role=name, outputs=outputs, updates=updates[name])


def _check_not_trained(name: str, role: Role, kind: str) -> None:
    """Refuse settings of `role`, called `name`, that only a model that is trained has."""
    for setting in ("num_minibatches", "minibatch_size", "ppo_epochs"):
        if (value := getattr(role, setting)) is not None:
            need = f"a model that is trained; {kind} does not train the {name}"
            raise no_effect(f"roles.{name}.{setting}", value, need)


def _check_precomputed(name: str, role: Role, needs: Requirements) -> None:
    """Refuse to compute outputs of `role`, called `name`, before the first step, if they are not known then."""
    if name != "reference":
        need = f"the reference; outputs of the {name} are not computed before the first step"
    elif needs.example_type == "prompts":
        need = "rows of data; those that the policy samples are not known before the first step"
    elif role.update_every is not None:
        need = "a reference that does not change; this one follows the policy, by update_every"
    else:
        return
    raise ConfigError(f"roles.{name}.precompute", got="true", need=need, do="leave it out")


def check_models(models: Mapping[str, Model]) -> None:
    """Refuse settings of the `models` by role that have no effect where each of them is. Raises: ConfigError."""
    for name, model in models.items():
        key = "model" if model == models["policy"] else f"roles.{name}.model"
        is_directory = is_created_by_run(model.path) or Path(model.path).is_dir()
        if model.revision is not None and is_directory:
            need = f"the name of a model on the hub; {model.path!r} is a directory"
            raise no_effect(f"{key}.revision", model.revision, need)
        if model.fingerprint == "full" and not is_directory:
            need = f"a directory; of a model on the hub, such as {model.path!r}, the commit is recorded"
            raise no_effect(f"{key}.fingerprint", model.fingerprint, need)


def adapter_rank(trainer: Any) -> int | None:
    """The rank of the adapter that `trainer` trains, or None."""
    return trainer_plugin(trainer).adapter_rank(trainer)


def shares_weights(role: ModelRole, policy: ModelRole) -> bool:
    """Whether the model of `role` is the `policy` without its adapter, so that it is loaded once."""
    trains_adapter = adapter_rank(policy.settings.trainer) is not None
    return trains_adapter and not role.is_trained and role.settings == policy.settings


def _check_names(table: Mapping[str, Role | Mapping[str, Role]], needs: Requirements) -> None:
    """Refuse names in the `table` of roles that the algorithm does not use."""
    known, kind = [role for role in roles(needs.algorithm, FIELDS) if role != "policy"], needs.kind
    for name, settings in table.items():
        key = f"roles.{name}"
        if name == "policy":
            raise ConfigError(key, got="settings of the policy", need="other models", do="set model and trainer")
        if name == REWARDS:
            continue
        if name not in known and not (name == TEACHERS and "teacher" in known):
            need = f"a model that {kind} uses" if known else f"an algorithm that uses it; {kind} uses only the policy"
            do = nearest(name, known) if known else f"leave {key} out"
            raise no_effect(key, NOTHING, need, do)
        if name == TEACHERS and not needs.teachers:
            raise ConfigError(key, got="no names", need="teachers by name", do=f"set {key}.NAME.model")
        if name != TEACHERS and not isinstance(settings, Role):
            raise ConfigError(key, got=f"several models: {', '.join(settings)}", need="one model")
    if {"teacher", TEACHERS} <= table.keys():
        raise ConfigError("roles.teacher and roles.teachers", got="both", need="one of the two")


def check_placement(placement: Placement, needs: Requirements, *, has_generator: bool) -> None:
    """Refuse actors of a role that the run does not have. Raises: ConfigError."""
    names = [*needs.models, *needs.judges]
    for name in placement.roles:
        if name not in names:
            need = f"a role of the run: {', '.join(names)}"
            raise no_effect(f"placement.roles.{name}", NOTHING, need)
    if placement.generators is not None and not has_generator:
        raise no_effect("placement.generators", placement.generators, "a run that samples")
