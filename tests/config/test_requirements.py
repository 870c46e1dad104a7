"""Requirements of a run: models, scorers, numbers of steps, and how the data are used."""

from __future__ import annotations

import attrs
import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.requirements import StepSchedule, requirements_of
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError
from purerl.recipes.addition import addition
from purerl.rewards.judges.settings import Judge
from purerl.rewards.settings import Reward
from purerl.settings import Model

PPO = "algorithm.kind=ppo"


def _scored(**roles: Role) -> RunConfig:
    """A critic and models whose scores are rewards."""
    config = apply(addition(), [PPO])
    return evolve(config, rewards=tuple(Reward(role=name) for name in roles), roles={"rewards": roles})


def test_requirements_hold_no_configuration() -> None:
    needs = requirements_of(addition())
    assert not any(isinstance(value, RunConfig) for value in attrs.asdict(needs, recurse=False).values())
    assert needs == requirements_of(addition())


def test_scorers_are_in_the_order_of_the_configuration() -> None:
    """Models score in this order, which is the same on all ranks."""
    needs = requirements_of(_scored(b=Role(model="b", judge=Judge()), c=Role(model="c"), a=Role(model="a")))
    assert [*needs.scorers] == ["b", "c", "a"]
    assert [*needs.models][-2:] == ["rewards.c", "rewards.a"]
    assert [*needs.judges] == ["rewards.b"]
    assert needs.judges["rewards.b"].generator is not None


def test_all_models_are_those_with_a_trainer_and_the_judges() -> None:
    config = _scored(b=Role(model="b", judge=Judge()), c=Role(model="c"))
    own = config.model
    expected = {"policy": own, "critic": own, "rewards.c": Model("c"), "rewards.b": Model("b")}
    assert requirements_of(config).all_models() == expected


def test_without_scorers_other_models_remain() -> None:
    needs = requirements_of(_scored(b=Role(model="b", judge=Judge()), c=Role(model="c")))
    other = needs.without_scorers()
    assert {*other.models} == {*other.all_models()} == {"policy", "critic"}
    assert (other.scorers, other.judges) == ({}, {})
    assert other == requirements_of(apply(addition(), [PPO]))


def test_a_role_has_the_key_of_its_trainer() -> None:
    config = apply(addition(), [PPO, "algorithm.kl_reward=0.1", "roles.critic.trainer.lr=1e-5"])
    keys = {name: role.trainer_key for name, role in requirements_of(config).models.items()}
    assert keys == {"critic": "roles.critic.trainer", "policy": "trainer", "reference": "trainer"}
    shared = evolve(config, roles={"critic": Role(trainer=config.trainer)})
    assert requirements_of(shared).models["critic"].trainer_key == "trainer"


@pytest.mark.parametrize(
    ("kind", "use"),
    [("sft", "demonstrations"), ("dpo", "preferences"), ("reward_model", "preferences"), ("kto", "labels")],
)
def test_an_algorithm_without_completions_says_how_the_data_are_used(kind: str, use: str) -> None:
    config = apply(addition(), [f"algorithm.kind={kind}", "rollout="])
    needs = requirements_of(config)
    assert (needs.example_type, needs.kind) == (use, kind)
    assert needs.trains_classifier == (kind == "reward_model")
    assert requirements_of(addition()).example_type == "prompts"


def test_the_number_of_steps_is_given_or_follows_from_the_epochs() -> None:
    sizes = {"batch_size": 4, "minibatches": 2, "minibatch_size": None, "ppo_epochs": 3, "critic_warmup": 0}
    epochs = StepSchedule(max_steps=None, num_epochs=1.5, **sizes)
    assert (epochs.num_steps(9), epochs.updates_per_step) == (4, 6)
    assert StepSchedule(max_steps=7, num_epochs=None, **sizes).num_steps(9) == 7


def test_a_warm_up_as_long_as_the_run_is_refused() -> None:
    needs = requirements_of(apply(addition(), [PPO, "critic_warmup=10"]))
    assert needs.updates(11)["policy"] == needs.schedule.updates_per_step
    with pytest.raises(ConfigError, match="^critic_warmup\n  got:  10\n  need: less than the 10 steps of the run"):
        needs.updates(10)


def test_check_returns_the_requirements_of_the_run_and_of_its_initial_run() -> None:
    config = addition()
    assert check(config) == {"": requirements_of(config), "initial_run": requirements_of(config.initial_run)}
