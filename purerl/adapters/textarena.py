"""Games of TextArena for one or several players, as environments of purerl.

`TextArenaEnvironment("TicTacToe-v0", num_players=2)` is a game that the policy plays against itself: each player has a
conversation and a reward of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from purerl.adapters.packages import load
from purerl.envs.protocol import Observation, ToolCall
from purerl.errors import ConfigError, nearest
from purerl.plugins import locate

__all__ = ["TextArenaEnvironment"]


class TextArenaEnvironment:
    """One episode of a game of TextArena.

    game         id of the game, such as ``TicTacToe-v0``; its variants with observation wrappers, ``-train`` and
                 others, repeat the whole history in each observation
    num_players  number of players; all of them are the policy
    arguments    arguments of the game
    parse        makes the action of the text of a turn; a function or its address. If not given, it is the whole text:
                 the games look for their own format in it

    What the players read, the rules first, are messages of the user. The rewards of a game come with its last turn, for
    every player. An example may have a column `seed`: all samples of its prompt then start in the same state.

    TextArena draws from Python's global random generator. Each episode has a state of it to itself, so games in one
    thread do not disturb each other.

    Raises: ConfigError if TextArena is not installed, or there is no such game.
    """

    def __init__(
        self,
        game: str,
        num_players: int = 1,
        arguments: Mapping[str, Any] | None = None,
        parse: str | Callable[[str], str] | None = None,
    ):
        textarena, known = load("textarena", "textarena"), load("textarena.envs.registration", "textarena").ENV_REGISTRY
        raw = f"{game}-raw" if f"{game}-raw" in known else game
        if raw not in known:
            raise ConfigError(f"unknown game {game!r} of TextArena", do=nearest(game, known))
        self._num_players = num_players
        self._parse = locate(parse) if isinstance(parse, str) else parse
        self._random = random.getstate()
        with self._own_random_numbers():
            self._game = textarena.make(raw, **(arguments or {}))

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        """Start a game, with the column `seed` of the example if it has one, and otherwise with `seed`."""
        own_seed = seed if example.get("seed") is None else int(example["seed"])
        self._random = random.Random(own_seed).getstate()
        with self._own_random_numbers():
            self._game.reset(num_players=self._num_players, seed=own_seed)
            return self._observation()

    def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        action = text if self._parse is None else self._parse(text)
        with self._own_random_numbers():
            done, _ = self._game.step(action)
            if not done:
                return self._observation()
            rewards, _ = self._game.close()
        reward = None if rewards is None else {int(player): float(value) for player, value in rewards.items()}
        return Observation(reward=reward[0] if reward is not None and self._num_players == 1 else reward, done=True)

    def close(self) -> None:
        return None

    def _observation(self) -> Observation:
        """The observation of the player who takes the next turn: messages that this player has not read yet."""
        player, messages = self._game.get_observation()
        own = [text if sender < 0 else f"[Player {sender}] {text}" for sender, text, _ in messages if sender != player]
        text = "\n".join(own)
        return Observation(messages=[{"role": "user", "content": text}], player=player)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        before = random.getstate()
        random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(before)
