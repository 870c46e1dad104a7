"""Gymnasium-style environments with text."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.adapters.gymnasium import GymnasiumEnvironment, last_line
from purerl.errors import ConfigError, DataError
from tests.adapters.episodes import contents
from tests.adapters.gymnasium_environments import Guess

MODULE = "tests.adapters.gymnasium_environments"


def test_an_episode_until_the_end_of_the_task() -> None:
    environment = GymnasiumEnvironment(f"{MODULE}:Guess", parse="purerl.adapters.gymnasium:last_line")
    assert contents(environment.reset({"options": {"number": 7}}, seed=1)) == ["Guess."]
    turn = environment.step("I say\n 3 \n", [])
    assert (contents(turn), turn.reward, turn.done) == (["higher"], 0.0, False)
    last = environment.step("7", [])
    assert (contents(last), last.reward, last.done, last.truncated) == (["right"], 1.0, True, False)


def test_limit_of_the_environment_is_a_truncation() -> None:
    environment = GymnasiumEnvironment(Guess, {"limit": 1})
    environment.reset({"options": '{"number": 7}'}, seed=1)
    last = environment.step("3", [])
    assert (last.reward, last.done, last.truncated) == (0.0, True, True)


def test_seed_is_that_of_the_sample_or_of_the_example() -> None:
    environment = GymnasiumEnvironment(Guess)

    def number(example: dict[str, Any], seed: int) -> int:
        environment.reset(example, seed)
        return environment._environment.number

    assert len({number({}, seed) for seed in range(20)}) > 3
    assert len({number({"seed": 5}, seed) for seed in range(20)}) == 1


def test_text_without_an_action_is_answered_without_a_step() -> None:
    environment = GymnasiumEnvironment(Guess, parse=last_line)
    environment.reset({}, seed=1)
    turn = environment.step(" \n", [])
    assert contents(turn) == ["Invalid action: the answer is blank"]
    assert (turn.reward, turn.done, environment._environment.turns) == (None, False, 0)


def test_close_closes_the_environment() -> None:
    environment = GymnasiumEnvironment(Guess)
    environment.close()
    assert environment._environment.closed


def test_observations_that_are_not_text_need_a_function() -> None:
    with pytest.raises(ConfigError, match="set show"):
        GymnasiumEnvironment(f"{MODULE}:Numbers").reset({}, seed=1)
    environment = GymnasiumEnvironment(f"{MODULE}:Numbers", show=f"{MODULE}:spoken")
    assert contents(environment.reset({}, seed=1)) == ["You see 0."]


@pytest.mark.parametrize("options", ["[1]", "{", 3])
def test_options_that_are_no_mapping_are_refused(options: object) -> None:
    with pytest.raises(DataError, match="options"):
        GymnasiumEnvironment(Guess).reset({"options": options}, seed=1)


# --- with gymnasium itself ---------------------------------------------------------------------------------------


def test_environment_that_is_registered_with_gymnasium() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    environment = GymnasiumEnvironment(
        "FrozenLake-v1", {"is_slippery": False}, f"{MODULE}:as_integer", f"{MODULE}:spoken"
    )
    assert contents(environment.reset({"seed": 3}, seed=1)) == ["You see 0."]
    assert "Invalid action: 7 is not in Discrete(4)" in contents(environment.step("7", []))[0]
    turns = [environment.step(str(action), []) for action in (1, 1, 2, 2, 1, 2)]
    assert [turn.done for turn in turns] == [False] * 5 + [True]
    assert (turns[-1].reward, turns[-1].truncated) == (1.0, False)
    environment.close()
    assert isinstance(environment._environment.unwrapped, gymnasium.Env)


def test_text_spaces_of_gymnasium() -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Spelled(Guess, gymnasium.Env):
        action_space = gymnasium.spaces.Text(max_length=1, charset="0123456789")
        observation_space = gymnasium.spaces.Text(max_length=20)

    environment = GymnasiumEnvironment(Spelled)
    environment.reset({"options": {"number": 7}}, seed=1)
    assert "Invalid action: 'seven'" in contents(environment.step("seven", []))[0]
    assert environment.step("7", []).reward == 1.0


def test_unknown_id_is_refused() -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match="FrozenLak"):
        GymnasiumEnvironment("FrozenLak-v1")
