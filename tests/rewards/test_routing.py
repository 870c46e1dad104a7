"""Rewards for some data sources: to which rows they apply, and what happens to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from purerl.config.overrides import apply
from purerl.config.structure import to_dict
from purerl.errors import ConfigError
from purerl.recipes.addition import addition
from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rewards.routing import applies, check_coverage, check_effect, routes_of
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Gate, Reward

from . import own_kinds

SOURCES = ("gsm8k", "math_dapo", "math_500", "code")
LENGTH = "tests.rewards.functions:length"
ROWS = "tests.rewards.functions:number_of_rows"


def _inputs(sources: Sequence[str | None] = SOURCES) -> list[RewardInput]:
    """Completions of one character more each, of rows with these data sources."""
    columns = [{} if source is None else {"data_source": source} for source in sources]
    return [RewardInput(str(k), "c" * (k + 1), {"prompt": "p", **each}) for k, each in enumerate(columns)]


def _run(*rewards: Any, gates: Any = (), inputs: Sequence[RewardInput] = (), **options: Any) -> list[RewardResult]:
    with RewardRunner(rewards, gates, functions={}, timeout=60.0, num_workers=2, **options) as runner:
        return runner.run(inputs or _inputs())


# --- which rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ((), [True] * 4),
        ((("gsm8k",),), [True, False, False, False]),
        ((("gsm8k", "math_*"),), [True, True, True, False]),
        ((("math_???",),), [False, False, True, False]),
        ((("GSM8K",),), [False] * 4),
        ((("math_*", "code"), ("*a*", "code")), [False, True, True, True]),
        ((("math_*",), ("*dapo",)), [False, True, False, False]),
    ],
)
def test_every_route_must_have_the_data_source(routes: Any, expected: list[bool]) -> None:
    assert [applies(routes, item.example) for item in _inputs()] == expected


def test_a_row_without_a_data_source_has_only_rewards_for_all_rows() -> None:
    assert applies((), {})
    assert not applies((("gsm8k",),), {})
    assert applies((("7",),), {"data_source": 7}), "a number is compared as a string"


def test_a_kind_may_be_for_some_data_sources() -> None:
    assert routes_of(Reward(config=own_kinds.ForMath.Config())) == (("math_*",),)
    assert routes_of(Reward(config=own_kinds.ForMath.Config(), data_source=["*dapo"])) == (("*dapo",), ("math_*",))
    assert routes_of(Reward(LENGTH)) == ()


# --- rewards and gates -------------------------------------------------------------------------------------------


def test_a_reward_adds_nothing_to_rows_that_it_does_not_apply_to() -> None:
    rewards = [
        Reward(LENGTH, data_source="math_*", weight=10.0),
        Reward("tests.rewards.functions:constant"),
        Reward(config=own_kinds.ForMath.Config(), data_source=("math_500",)),
    ]
    results = _run(*rewards)
    assert [result.components for result in results] == [
        {"constant": 1.0},
        {"length": 2.0, "constant": 1.0},
        {"length": 3.0, "constant": 1.0, "ForMath": 1.0},
        {"constant": 1.0},
    ]
    assert [result.reward for result in results] == [1.0, 21.0, 32.0, 1.0]
    assert [*results[0].by_function.values()] == [{}, {"constant": 1.0}, {}]


def test_a_gate_lets_rows_pass_that_it_does_not_apply_to() -> None:
    gate = Gate("tests.rewards.functions:returns_zero", data_source=("math_*",))
    results = _run("tests.rewards.functions:constant", gates=[gate])
    assert [result.reward for result in results] == [1.0, 0.0, 0.0, 1.0]


def test_a_function_is_not_called_on_other_rows() -> None:
    fails = Reward("tests.rewards.functions:raises_key_error", data_source=("math_*",))
    results = _run("tests.rewards.functions:constant", fails)
    assert [result.reward for result in results] == [1.0, None, None, 1.0]
    assert {result.failure.kind for result in results if result.failure} == {"raised"}


def test_a_function_for_many_completions_gets_those_that_it_applies_to() -> None:
    everywhere = Reward(ROWS, name="everywhere")
    results = _run(Reward(ROWS, data_source=("math_*",)), everywhere)
    assert [result.components for result in results] == [
        {"everywhere": 4.0},
        {"number_of_rows": 2.0, "everywhere": 4.0},
        {"number_of_rows": 2.0, "everywhere": 4.0},
        {"everywhere": 4.0},
    ]


def test_functions_of_this_process_and_of_workers_are_routed_alike() -> None:
    seen: list[str] = []

    def here(completion: str, example: Any) -> float:
        seen.append(completion)
        return 1.0

    rewards = [Reward("m:here", data_source=("gsm8k",)), Reward(LENGTH, data_source=("math_*", "code"))]
    with RewardRunner(rewards, functions={"m:here": here}, timeout=60.0, num_workers=1) as runner:
        results = runner.run(_inputs())
    assert seen == ["c"]
    assert [result.components for result in results] == [{"here": 1.0}, *({"length": k} for k in (2.0, 3.0, 4.0))]


def test_a_row_to_which_no_reward_applies_is_a_missing_sample() -> None:
    reward, gate = Reward(LENGTH, data_source=("math_*",)), "tests.rewards.functions:constant"
    results = _run(reward, gates=[gate])
    assert [result.reward for result in results] == [None, 2.0, 3.0, None]
    failure = results[0].failure
    assert (failure.function, failure.kind, failure.traceback) == (
        "rewards",
        "do not apply",
        "none is for the data_source 'gsm8k'\n",
    )


def test_without_a_reward_a_row_is_not_missing_if_something_else_rewards_it() -> None:
    first, second, *_ = _run(Reward(LENGTH, data_source=("math_*",)), needs_reward=False)
    assert (first.failure, first.reward, first.is_inapplicable) == (None, None, True)
    assert (second.reward, second.is_inapplicable) == (2.0, False)
    (none,) = _run("tests.rewards.functions:returns_none", inputs=_inputs(["a"]), needs_reward=False)
    assert not none.is_inapplicable


# --- settings and data -------------------------------------------------------------------------------------------


def test_data_sources_are_written_as_a_string_or_a_list() -> None:
    settings = 'rewards=[{function = "a:b", data_source = "x"}, {function = "a:c", data_source = ["y", "z_*"]}]'
    config = apply(addition(), [settings])
    assert [reward.data_source for reward in config.rewards] == [("x",), ("y", "z_*")]
    written = to_dict(config)["rewards"]
    assert [reward["data_source"] for reward in written] == [["x"], ["y", "z_*"]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[]", "rewards.data_source\n  got:  ()\n  need: at least one name or pattern"),
        ('[""]', "rewards.data_source\n  got:  ('',)\n  need: at least one name or pattern"),
        ("3", "rewards.data_source\n  got:  3\n  need: a list, in square brackets"),
        ("[3]", "rewards.data_source\n  got:  3\n  need: a string"),
    ],
)
def test_invalid_data_source_is_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(addition(), [f'rewards=[{{function = "a:b", data_source = {value}}}]'])
    assert str(caught.value).startswith(message)


def test_rows_without_a_reward_are_refused() -> None:
    sources = {"gsm8k": 1, "math_dapo": 20, "code": 3000, None: 2}
    with pytest.raises(ConfigError) as caught:
        check_coverage([(("gsm8k", "math_*"),), (("coding",),)], sources, "train.parquet")
    assert str(caught.value) == (
        "no reward applies to some rows of 'train.parquet'\n"
        "  got:  the data_source 'code' (3,000 rows), None (2 rows)\n"
        "  need: a reward for each row; those of this run are for coding, gsm8k, math_*\n"
        '  do:   set data_source = ["code", ...] of a reward, or leave these rows out'
    )
    check_coverage([(("gsm8k", "math_*"),), ()], sources, "train.parquet")


def test_a_reward_that_is_only_logged_does_not_count() -> None:
    rewards = [Reward(LENGTH, data_source="math_*"), Reward("tests.rewards.functions:constant", weight=0.0)]
    runner = RewardRunner(rewards, functions={}, timeout=1.0, num_workers=1)
    with pytest.raises(ConfigError, match=r"the data_source 'code' \(1 rows\)"):
        runner.check_sources({"math_1": 1, "code": 1}, "f")
    only_logged = RewardRunner([Reward(LENGTH, weight=0.0)], functions={}, timeout=1.0, num_workers=1)
    only_logged.check_sources({"code": 1}, "f")
    others = RewardRunner(rewards, functions={}, timeout=1.0, num_workers=1, needs_reward=False)
    others.check_sources({"code": 1}, "f")


def test_a_pattern_without_rows_is_refused() -> None:
    rewards = [Reward("m:f", data_source=("gsm8k", "mth_*")), Gate("m:g")]
    with pytest.raises(ConfigError) as caught:
        check_effect(rewards, SOURCES)
    assert str(caught.value) == (
        "data_source of the reward 'm:f' has no effect\n  got:  'mth_*'\n"
        "  need: a value, or a pattern of values, in the column data_source: code, gsm8k, math_500, math_dapo\n"
        "  do:   did you mean 'math_500'?"
    )


def test_a_routed_reward_needs_the_column() -> None:
    runner = RewardRunner([Reward(LENGTH, data_source="a")], functions={}, timeout=1.0, num_workers=1)
    runner.check_columns(["prompt", "data_source"])
    with pytest.raises(ConfigError, match="got:  prompt\n  need: also data_source\n"):
        runner.check_columns(["prompt"])
