"""The models whose scores are rewards: `roles.rewards`, and what their settings must be."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from purerl.config.generators import check_generator
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.rewards.components import check_component, short_name
from purerl.rewards.judges.question import Question
from purerl.rewards.judges.settings import Judge
from purerl.settings import in_section, no_effect

__all__ = [
    "REWARDS",
    "check_not_reward",
    "check_reward_roles",
    "is_reward",
    "judge_roles",
    "reward_roles",
    "reward_weights",
]

REWARDS = "rewards"
"""The name of the table in `roles`."""


def reward_roles(config: RunConfig) -> Mapping[str, Role]:
    """The settings of the models whose scores are rewards, by the names of the rewards."""
    models = config.roles.get(REWARDS, {})
    return models if isinstance(models, Mapping) else {}


def reward_weights(config: RunConfig) -> dict[str, float]:
    """The weight of each model whose scores are rewards, by the name of the reward."""
    return {name: 1.0 if role.weight is None else role.weight for name, role in reward_roles(config).items()}


def is_reward(role: str) -> bool:
    """Whether `role`, a name in `model_roles`, is that of a model whose scores are rewards."""
    return role.startswith(f"{REWARDS}.")


def judge_roles(config: RunConfig) -> dict[str, Role]:
    """The settings of the models that are judges by their roles, "rewards.NAME". None of them has a trainer."""
    default = find("generator", "hf").Config
    return {
        f"{REWARDS}.{name}": evolve(own, generator=own.generator or default())
        for name, own in reward_roles(config).items()
        if own.judge is not None
    }


def check_not_reward(name: str, role: Role) -> None:
    """Refuse settings of `role`, called `name`, that only models in `roles.rewards` have."""
    for setting in ("weight", "steps", "judge", "generator"):
        if (value := getattr(role, setting)) is not None:
            need = "a model whose scores are rewards, in roles.rewards"
            raise no_effect(f"roles.{name}.{setting}", value, need)


def check_reward_roles(config: RunConfig) -> None:
    """Refuse models in `roles.rewards` that are not named, without a model, or with settings of other roles."""
    models, key = config.roles.get(REWARDS), f"roles.{REWARDS}"
    if models is None:
        return
    if isinstance(models, Role) or not models:
        raise ConfigError(key, got="no names", need="models by name", do=f"set {key}.NAME.model")
    if config.rollout is None and config.evaluate is None:
        raise no_effect(key, ", ".join(models), "rollout or evaluate")
    functions = {short_name(reward.full_name) for reward in (*config.rewards, *config.gates)}
    for name, settings in models.items():
        check_component(name)
        if name in functions:
            got, do = "also the name of a reward function", f"use another name than {name!r}"
            raise ConfigError(f"{key}.{name}", got=got, need="a name of its own", do=do)
        if settings.model is None:
            need = "a classifier, such as purerl train reward_model makes, or the language model that is the judge"
            do = f"set {key}.{name}.model"
            raise ConfigError(f"{key}.{name}.model is missing", need=need, do=do)
        if settings.update_every is not None:
            need = "a model that may follow the policy; one whose scores are rewards does not"
            raise no_effect(f"{key}.{name}.update_every", settings.update_every, need)
        _check_judge(f"{key}.{name}", settings)


def _check_judge(key: str, role: Role) -> None:
    """Refuse settings of `role`, at `key`, that only a judge has or does not have, and those of its generator."""
    if role.judge is None:
        if role.generator is not None:
            need, do = "a judge; a classifier samples nothing", f"set {key}.judge, or leave {key}.generator out"
            raise no_effect(f"{key}.generator", kind_of(role.generator), need, do)
        return
    for name, value in (("trainer", role.trainer and kind_of(role.trainer)), ("steps", role.steps)):
        if value is not None:
            need = "a classifier; a judge has a generator, and judges whole completions"
            raise no_effect(f"{key}.{name}", value, need)
    with in_section(f"{key}.judge", Judge):
        Question(role.judge).check()
    if role.generator is not None:
        check_generator(role.generator, f"{key}.generator")
