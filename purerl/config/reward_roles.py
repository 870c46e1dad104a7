"""Checks of `roles.rewards`, the models whose scores are rewards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import NOTHING

from purerl.config.generators import check_generator
from purerl.config.requirements import REWARDS
from purerl.config.schema import Role
from purerl.errors import ConfigError, nearest
from purerl.plugins import kind_of
from purerl.rewards.components import check_component
from purerl.rewards.judges.question import Question
from purerl.rewards.judges.settings import Judge
from purerl.rewards.settings import Gate, Reward
from purerl.settings import in_section, no_effect

__all__ = ["check_not_reward", "check_reward_roles", "check_role_names"]


def check_not_reward(name: str, role: Role) -> None:
    """Refuse settings of `role`, called `name`, that only models in `roles.rewards` have."""
    for setting in ("steps", "judge", "generator"):
        if (value := getattr(role, setting)) is not None:
            need = "a model whose scores are rewards, in roles.rewards"
            raise no_effect(f"roles.{name}.{setting}", value, need)


def check_reward_roles(
    models: Role | Mapping[str, Role] | None, rewards: Sequence[Reward | Gate], *, is_sampling: bool
) -> None:
    """Refuse `models` in `roles.rewards` that are not named, without a model, or with settings of other roles.

    And models that no reward or gate names, and rewards and gates that name none of them.
    """
    key = f"roles.{REWARDS}"
    check_role_names(rewards, models if isinstance(models, Mapping) else ())
    if models is None:
        return
    if isinstance(models, Role) or not models:
        raise ConfigError(key, got="no names", need="models by name", do=f"set {key}.NAME.model")
    if not is_sampling:
        raise no_effect(key, ", ".join(models), "rollout or evaluate")
    used = {reward.role for reward in rewards}
    for name, settings in models.items():
        check_component(name)
        if settings.model is None:
            need = "a classifier, such as purerl train reward_model makes, or the language model that is the judge"
            do = f"set {key}.{name}.model"
            raise ConfigError(f"{key}.{name}.model is missing", need=need, do=do)
        if settings.update_every is not None:
            need = "a model that may follow the policy; one whose scores are rewards does not"
            raise no_effect(f"{key}.{name}.update_every", settings.update_every, need)
        _check_judge(f"{key}.{name}", settings)
        if name not in used:
            need, do = "a reward or a gate with this role", f'add {{role = "{name}"}} to rewards'
            raise no_effect(f"{key}.{name}", NOTHING, need, do)


def check_role_names(rewards: Iterable[Reward | Gate], names: Collection[str]) -> None:
    """Refuse rewards and gates with a role that is not in `names`, the models in `roles.rewards`."""
    for reward in rewards:
        if reward.role is not None and reward.role not in names:
            need = f"a model in roles.{REWARDS}"
            do = nearest(reward.role, names) if names else f"set roles.{REWARDS}.{reward.role}.model"
            raise ConfigError(f"role of the reward {reward.full_name!r}", got=repr(reward.role), need=need, do=do)


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
        growth = getattr(role.generator, "max_mismatch_growth", None)
        if growth is not None:
            need = "the generator of the policy, whose weights change; those of a judge do not"
            raise no_effect(f"{key}.generator.max_mismatch_growth", growth, need)
