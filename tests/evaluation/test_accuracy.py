"""Which reward function decides whether a completion is correct."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.evaluation.accuracy import describe_accuracy, is_correct, select_accuracy_rewards
from purerl.evaluation.settings import Evaluate
from purerl.rewards.outcomes import Failure, Outcome
from purerl.rewards.results import RewardResult, combine
from purerl.rewards.settings import Gate, Reward
from tests.loop.small import fake

NAMES = ["a.py:exact", "b:length", "c:exact", "b:Tag.closed"]


def _select(name: str | None, names: list[str] = NAMES, routed: Sequence[str] = ()) -> list[str]:
    return [*select_accuracy_rewards(Evaluate(max_tokens=1, accuracy_reward=name), names, routed)]


def test_a_full_name_or_a_short_name_selects_a_reward_or_a_gate_and_the_first_one_is_the_default() -> None:
    assert [_select(name) for name in (None, "c:exact", "length", "closed")] == [
        ["a.py:exact"],
        ["c:exact"],
        ["b:length"],
        ["b:Tag.closed"],
    ]
    assert _select(None, []) == []
    assert _select("exact", ["a:exact", "a:exact"]) == ["a:exact"], "a gate that is also a reward"


def test_of_rewards_for_some_data_sources_the_first_one_that_applies_decides() -> None:
    assert _select(None, routed=NAMES[:2]) == NAMES[:3]
    assert _select(None, routed=[NAMES[0], NAMES[2]]) == NAMES[:2], "the second one applies to every row"
    assert _select(None, routed=NAMES) == NAMES
    assert _select("length", routed=NAMES) == ["b:length"]
    rewards = {name: Reward(name) for name in ("m:a", "m:b")}
    for values, expected in (([1.0, 0.0], True), ([None, 0.0], False), ([None, 1.0], True), ([None, None], None)):
        outcomes = {name: {} if v is None else {"x": v} for name, v in zip(rewards, values, strict=True)}
        assert is_correct(combine(outcomes, rewards, {}), [*rewards]) is expected


@pytest.mark.parametrize(
    ("total", "components", "expected"),
    [
        (-0.2, {"valid_calls": 1.0}, False),
        (1.0, {"valid_calls": 0.0}, True),
        (sum([0.1] * 10), {}, True),
        (0.999, {}, False),
        (2.0, {}, True),
        (None, {"valid_calls": 1.0}, None),
    ],
)
def test_the_sum_of_its_rewards_decides_in_an_environment(
    total: float | None, components: dict[str, float], expected: bool | None
) -> None:
    values = {**components, **({} if total is None else {"environment": total})}
    result = RewardResult(values, {"environment": total or 0.0}, by_function={"environment": values})
    assert is_correct(result, ["environment"]) is expected
    with_function = RewardResult(values, {"x": 1.0}, by_function={"environment": values, "m:tagged": {"tagged": 1.0}})
    assert is_correct(with_function, ["m:tagged", "environment"]) is True


def test_a_sentence_names_the_function_that_decides() -> None:
    assert describe_accuracy([]) is None
    rest = " gives at least 1; of several components, the first one counts"
    assert describe_accuracy(["m:tagged"]) == "a completion is correct if m:tagged" + rest
    several = "a completion is correct if the first one of m:a, m:b that applies to its row"
    assert describe_accuracy(["m:a", "m:b"]) == several + rest
    environment = "an episode is correct if the sum of the rewards of its environment is at least 1"
    assert describe_accuracy(["environment"]) == environment


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lenght", "got:  'lenght'\n  need: {need}\n  do:   did you mean 'length'?"),
        ("c:exakt", "got:  'c:exakt'\n  need: {need}\n  do:   did you mean 'c:exact'?"),
        (
            "exact",
            "got:  'exact', the short name of several functions\n  need: one reward function or gate\n  {do}",
        ),
    ],
)
def test_unknown_or_ambiguous_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _select(name)
    need, do = "one of the reward functions or gates", "do:   use a full name: a.py:exact or c:exact"
    assert str(caught.value) == f"evaluate.accuracy_reward\n  {message.format(need=need, do=do)}"


def test_name_without_any_function_has_no_effect() -> None:
    with pytest.raises(ConfigError, match="accuracy_reward has no effect"):
        _select("exact", [])


def test_unknown_name_is_refused_with_the_configuration() -> None:
    evaluate = Evaluate(data="missing.parquet", max_tokens=1, accuracy_reward="digit")
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        check(fake(evaluate=evaluate))


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"m:grade": {"grade": 1.0}, "m:length": {"length": 0.1}}, True),
        ({"m:grade": {"grade": 0.5}, "m:length": {"length": 1.0}}, False),
        ({"m:grade": {"grade": 7.5}, "m:length": {"length": 0.0}}, True),
        ({"m:grade": {"correct": 1.0, "style": 0.5}, "m:length": {"length": 0.0}}, True),
        ({"m:grade": {"style": 0.5, "correct": 1.0}, "m:length": {"length": 0.0}}, False),
        ({"m:grade": {"score": 0.5}, "m:length": {"score": 0.5}}, False),
        ({"m:grade": {}, "m:length": {"length": 1.0}}, None),
        ({"m:grade": {"grade": 1.0}, "m:length": None}, None),
        ({"m:grade": {"grade": 1.0}, "m:length": Failure("m:length", "raised", "")}, None),
    ],
    ids=["correct although another reward is low", "incorrect although another reward is high", "above 1",
         "first of several components", "first of several components is low", "components with equal names",
         "does not apply", "no reward", "failed"],
)  # fmt: skip
def test_first_component_of_the_function_decides(outcomes: dict[str, Outcome], expected: bool | None) -> None:
    rewards = {"m:grade": Reward("m:grade"), "m:length": Reward("m:length", weight=0.2)}
    assert is_correct(combine(outcomes, rewards, {}), ["m:grade"]) is expected


def test_function_with_weight_0_and_a_gate_can_decide() -> None:
    outcomes: dict[str, Outcome] = {"m:grade": {"grade": 1.0}, "m:length": {"length": 0.1}, "m:tag": {"tag": 0.0}}
    rewards = {"m:length": Reward("m:length"), "m:grade": Reward("m:grade", weight=0.0)}
    result = combine(outcomes, rewards, {"m:tag": Gate("m:tag")})
    assert (result.reward, is_correct(result, ["m:grade"]), is_correct(result, ["m:tag"])) == (0.0, True, False)
