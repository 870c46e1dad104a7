"""Settings of rewards: how they are written, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from purerl.algos import gdpo, grpo, sft
from purerl.algos.algebra import describe
from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.recipes.addition import addition
from purerl.rewards import loading
from purerl.rewards.settings import Gate, Reward, RewardWorkers
from purerl.rollouts.settings import Overlong

from .small import fake

DIGITS, EXACT = "tests.loop.rewards:digits", "purerl.rewards.exact:exact_match"


def test_reward_is_written_as_a_string_or_a_table() -> None:
    config = apply(addition(), ['rewards=["a:b", {function = "c:d", weight = 0.5}]', 'gates=["e:f"]'])
    assert config.rewards == (Reward("a:b"), Reward("c:d", weight=0.5))
    assert config.gates == (Gate("e:f"),)
    assert to_dict(config)["rewards"] == [{"function": "a:b", "weight": 1.0}, {"function": "c:d", "weight": 0.5}]
    assert from_dict(RunConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rewards=[1]", "rewards\n  got:  1\n  need: a section: keys and values"),
        (
            'rewards=[{function = "a:b", wieght = 1}]',
            "rewards.wieght\n  got:  no such setting\n  need: one that `purerl config` lists\n",
        ),
        ('rewards=[{function = "a:b", weight = inf}]', "rewards.weight\n  got:  inf\n  need: a finite number"),
        ('rewards=[{function = "a:b", std = 0}]', "rewards.std\n  got:  0.0\n  need: a finite number above 0"),
        ('rewards=[{function = "a:b", mean = nan}]', "rewards.mean\n  got:  nan\n  need: a finite number"),
        (
            'rewards=[{function = "a:b", clip = [1, -1]}]',
            "rewards.clip\n  got:  (1.0, -1.0)\n  need: two finite numbers, the smaller one first",
        ),
        ('rewards=[{function = "a:b", clip = [0, inf]}]', "rewards.clip\n  got:  (0.0, inf)\n  need: two finite"),
        ('rewards=[{function = "a:b", clip = [0]}]', "rewards.clip\n  got:  [0]\n  need: a list of 2"),
        ('gates=[{function = "a:b", at_least = nan}]', "gates.at_least\n  got:  nan\n  need: a finite number"),
        ('gates=[{function = "a:b", weight = 1.0}]', "gates.weight\n  got:  no such setting\n  need: one that"),
        ("reward_workers.timeout=0", "reward_workers.timeout\n  got:  0.0\n  need: above 0, and finite"),
        ("reward_workers.max_failure_rate=1.5", "reward_workers.max_failure_rate\n  got:  1.5\n  need: from 0 to 1"),
        (
            "reward_workers.num_workers=0",
            "reward_workers.num_workers\n  got:  0\n  need: an integer, at least 1",
        ),
        ("rollout.overlong.buffer=9", "rollout.overlong.buffer\n  got:  9\n  need: at most max_tokens, 4"),
        ("rollout.overlong={buffer = 2, factor = -1}", "rollout.overlong.factor\n  got:  -1.0\n  need: above 0, and"),
    ],
)
def test_invalid_setting_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(addition(), [setting])
    assert str(caught.value).startswith(message)


def constant(completion: str, example: Any) -> float:
    return 0.5


async def awaited(completion: str, example: Any) -> float:
    return 1.0


def _refusal(*rewards: Any, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        train(fake(**changes), rewards=rewards, directory="/nonexistent/never/created")
    return str(caught.value)


def test_settings_without_effect_are_refused() -> None:
    demonstrations = {"algorithm": sft.Config(), "rollout": None, "evaluate": None, "generator": None, "rewards": ()}
    assert "gates has no effect" in _refusal(gates=(EXACT,), **demonstrations)
    assert "reward_workers has no effect" in _refusal(reward_workers=RewardWorkers(timeout=1.0), **demonstrations)
    assert "reward_workers.timeout has no effect" in _refusal(constant, reward_workers=RewardWorkers(timeout=1.0))
    two_workers = RewardWorkers(num_workers=2)
    assert "reward_workers.num_workers has no effect" in _refusal(constant, reward_workers=two_workers)
    assert "reward_workers.num_workers has no effect" in _refusal(awaited, reward_workers=two_workers)
    overlong = evolve(fake().rollout, overlong=Overlong(buffer=2))
    assert "rollout.overlong has no effect" in _refusal(algorithm=gdpo.Config(), rollout=overlong)
    assert "rewards.weight has no effect" in _refusal(algorithm=gdpo.Config(), rewards=(Reward(DIGITS, weight=2.0),))
    normalized = _refusal(algorithm=gdpo.Config(), rewards=(Reward(DIGITS, std=2.0),))
    assert normalized.startswith("rewards.mean or std has no effect\n  got:  no clip\n")
    too_few = _refusal(algorithm=gdpo.Config(weights=(2.0,)), rewards=(DIGITS, EXACT))
    assert too_few == "algorithm.weights\n  got:  (2.0,)\n  need: one for each component of the 2 rewards, or none"
    assert "rewards\n  got:  'tests.loop.rewards:digits' 2 times" in _refusal(rewards=(DIGITS, DIGITS))


def test_timeout_has_an_effect_on_async_functions_and_on_named_functions() -> None:
    functions = {"tests.loop.test_reward_settings:awaited": awaited}
    check(fake(rewards=tuple(functions), reward_workers=RewardWorkers(timeout=1.0)), functions)
    check(fake(reward_workers=RewardWorkers(timeout=1.0, num_workers=2)))


def test_two_functions_with_the_same_name_are_refused() -> None:
    assert "two functions called" in _refusal(lambda c, e: 1.0, lambda c, e: 0.0)


def test_length_penalty_precedes_the_advantage_of_the_algorithm() -> None:
    config = fake(rollout=evolve(fake().rollout, overlong=Overlong(buffer=2)))
    assert requirements_of(fake()).algorithm == grpo.algorithm(fake().algorithm.base)
    assert "_overlong" in describe(requirements_of(config).algorithm.advantage.apply)


# --- names and memory --------------------------------------------------------------------------------------------


def max(completion: str, example: Any) -> float:  # noqa: A001 -- a name that is refused
    return 1.0


def test_function_with_the_name_of_a_metric_is_refused() -> None:
    message = _refusal(max)
    assert message.startswith("reward 'tests.loop.test_reward_settings:max' would have the metric reward/max\n")
    assert "one of: mean, std, min, max, zero_std_fraction, valid_fraction, failed, timed_out, overlong" in message


@pytest.mark.parametrize(
    ("text", "memory"), [("512", 512), ('"2GB"', 1907), ('"2 GiB"', 2048), ('"1.5GiB"', 1536), ("2GB", 1907)]
)
def test_maximum_memory_is_a_number_of_mebibytes_or_a_size(text: str, memory: int) -> None:
    config = apply(addition(), [f"reward_workers.max_memory={text}"])
    assert config.reward_workers == RewardWorkers(max_memory=memory)
    assert from_dict(RunConfig, to_dict(config)) == config


@pytest.mark.parametrize("text", ["63", '"1MB"', '"2TB"', "1.5", "true", '"much"', '"-2GB"'])
def test_invalid_maximum_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^reward_workers.max_memory"):
        apply(addition(), [f"reward_workers.max_memory={text}"])


def test_maximum_memory_is_refused_where_it_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = RewardWorkers(max_memory=512)
    check(fake(reward_workers=workers))
    assert "reward_workers.max_memory has no effect" in _refusal(constant, reward_workers=workers)
    monkeypatch.setattr("sys.platform", "darwin")
    assert "reward_workers.max_memory has no effect\n  got:  512\n  need: Linux" in _refusal(reward_workers=workers)


def test_a_function_is_loaded_without_a_list_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list takes longer than anything else that a worker does before its first call."""
    monkeypatch.delattr(loading, "names")
    assert loading.load_reward("tests.loop.rewards:digits").convention.name == "purerl"
