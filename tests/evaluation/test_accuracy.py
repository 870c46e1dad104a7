"""The reward function that decides whether a completion is correct."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from purerl.config.check import check
from purerl.errors import ConfigError, RewardError
from purerl.evaluation.accuracy import (
    describe_accuracy,
    describe_components,
    is_correct,
    select_accuracy_rewards,
)
from purerl.evaluation.settings import Evaluate
from purerl.rewards.outcomes import Failure, Outcome
from purerl.rewards.results import RewardResult, combine
from purerl.rewards.settings import Gate, Reward
from tests.loop.small import fake

NAMES, GATES = ["a.py:exact", "b:length", "c:exact"], ["b:Tag.closed"]


def _select(
    name: str | None, names: Sequence[str] = NAMES, gates: Sequence[str] = GATES, models: Sequence[str] = ()
) -> list[str]:
    return [*select_accuracy_rewards(Evaluate(max_tokens=1, accuracy_reward=name), names, gates, models)]


def test_a_full_name_or_a_short_name_selects_a_reward_or_a_gate_and_all_rewards_are_the_default() -> None:
    assert [_select(name) for name in (None, "c:exact", "length", "closed", "length[short]")] == [
        NAMES,
        ["c:exact"],
        ["b:length"],
        ["b:Tag.closed"],
        ["b:length[short]"],
    ]
    assert _select(None, models=["a.py:exact"]) == NAMES[1:], "scores of any scale"
    assert _select(None, []) == GATES
    assert _select(None, [], []) == []
    assert _select("exact", ["a:exact"], ["a:exact"]) == ["a:exact"], "a gate that is also a reward"


def test_the_first_reward_that_applies_to_the_row_decides() -> None:
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
    start, end = "a completion is correct if ", " gives at least 1"
    assert describe_accuracy(["m:tagged"]) == f"{start}m:tagged{end}"
    assert describe_accuracy(["m:tagged[a b]"]) == f"{start}the component a b of m:tagged{end}"
    assert describe_accuracy(["m:a", "m:b"]) == f"{start}the first one of m:a, m:b that applies to its row{end}"
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
        _select("exact", [], [])


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


def test_a_component_can_be_selected() -> None:
    outcomes: dict[str, Outcome] = {"m:grade": {"format": 1.0, "correct": 0.0}, "m:length": {"length": 1.0}}
    result = combine(outcomes, {"m:grade": Reward("m:grade"), "m:length": Reward("m:length")}, {})
    names = ("m:grade", "m:grade[format]", "m:grade[correct]", "m:length[length]", "m:other[x]")
    assert [is_correct(result, [name]) for name in names] == [True, True, False, True, None]
    with pytest.raises(RewardError) as caught:
        is_correct(result, ["m:grade[corect]"])
    assert str(caught.value) == (
        "'m:grade' gives no component 'corect', which evaluate.accuracy_reward names\n"
        "  got:  format, correct\n  need: one of these\n  do:   did you mean 'correct'?"
    )


def test_components_that_do_not_decide_are_named() -> None:
    one = RewardResult({}, {}, by_function={"m:a": {"a": 1.0}, "m:b": {}, "environment": {"calls": 1.0, "x": 0.0}})
    two = RewardResult({}, {}, by_function={"m:a": {"a": 1.0}, "m:b": {"format": 1.0, "correct": 0.0}})
    assert describe_components([one], ["m:a", "m:b", "environment"]) is None
    assert describe_components([one, two], ["m:b[format]", "m:a"]) is None
    note = describe_components([one, two], ["m:a", "m:b"])
    assert note is not None
    assert note.startswith("accuracy: of the components format, correct of m:b, the first one, format, decides; ")
    assert note.endswith('evaluate.accuracy_reward = "m:b[correct]"')


def test_function_with_weight_0_and_a_gate_can_decide() -> None:
    outcomes: dict[str, Outcome] = {"m:grade": {"grade": 1.0}, "m:length": {"length": 0.1}, "m:tag": {"tag": 0.0}}
    rewards = {"m:length": Reward("m:length"), "m:grade": Reward("m:grade", weight=0.0)}
    result = combine(outcomes, rewards, {"m:tag": Gate("m:tag")})
    assert (result.reward, is_correct(result, ["m:grade"]), is_correct(result, ["m:tag"])) == (0.0, True, False)
