"""Games of TextArena."""

from __future__ import annotations

import random

import pytest

from purerl.adapters.textarena import TextArenaEnvironment
from purerl.errors import ConfigError
from tests.adapters.episodes import contents

pytest.importorskip("textarena")


def test_two_players_take_turns_and_both_get_a_reward() -> None:
    environment = TextArenaEnvironment("TicTacToe-v0", num_players=2)
    first = environment.reset({}, seed=1)
    assert first.player == 0
    assert "You are Player 0" in contents(first)[0]
    second = environment.step("I take [4]", [])
    assert (second.player, second.done, second.reward) == (1, False, None)
    assert "You are Player 1" in contents(second)[0]
    assert "[Player 0] I take [4]" in contents(second)[0]
    third = environment.step("[0]", [])
    assert third.player == 0
    assert "You are Player" not in contents(third)[0], "the rules are shown once"
    assert "I take [4]" not in contents(third)[0], "a player does not read its own turn"
    assert environment.step("[1]", []).player == 1
    again = environment.step("not a move", [])
    assert again.player == 1, "an invalid move is repeated"
    assert "invalid move" in contents(again)[0]
    environment.step("[3]", [])
    last = environment.step("[7]", [])
    assert (last.done, last.reward) == (True, {0: 1.0, 1: -1.0})


def test_one_player_gets_a_number_as_reward() -> None:
    environment = TextArenaEnvironment("GuessTheNumber-v0", arguments={"max_turns": 20})
    environment.reset({}, seed=3)
    turns = [environment.step(f"[{number}]", []) for number in range(1, 21) if not environment._game.state.done]
    assert turns[-1].done
    assert turns[-1].reward == 1.0
    assert all("higher" in contents(turn)[0] for turn in turns[:-1])


def _rules(environment: TextArenaEnvironment, example: dict[str, int], seed: int) -> int:
    environment.reset(example, seed)
    return environment._game.state.game_state["game_number"]


def test_episodes_depend_only_on_their_seed() -> None:
    first, second = TextArenaEnvironment("GuessTheNumber-v0"), TextArenaEnvironment("GuessTheNumber-v0")
    before = random.getstate()
    numbers = [_rules(first, {}, seed) for seed in range(30)]
    assert numbers == [_rules(second, {}, seed) for seed in range(30)]
    assert len({*numbers}) > 5
    assert len({_rules(first, {"seed": 7}, seed) for seed in range(30)}) == 1
    assert random.getstate() == before, "the generator of the process is left as it was"


def test_games_that_draw_during_the_game_do_not_disturb_each_other() -> None:
    def play(environment: TextArenaEnvironment, other: TextArenaEnvironment | None) -> list[str]:
        texts = contents(environment.reset({}, seed=4))
        for move in ("up", "left", "up", "left", "down"):
            if other is not None:
                other.reset({}, seed=len(texts))
                other.step("[left]", [])
                random.random()
            texts += contents(environment.step(f"[{move}]", []))
        return texts

    alone = play(TextArenaEnvironment("2048-v0"), None)
    assert play(TextArenaEnvironment("2048-v0"), TextArenaEnvironment("2048-v0")) == alone


def test_unknown_game_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'TicTacToe-v0"):
        TextArenaEnvironment("TicTacTo-v0")
