"""A reward for correct answers that depends on the length of the completion, by a cosine.

    r = long + (short - long) (1 + cos(pi min(n / max_tokens, 1))) / 2

n is the number of tokens of the completion. `short` and `long` are the rewards of the shortest and of the longest
completion: `correct_short` and `correct_long` if it is correct, `wrong_short` and `wrong_long` if it is not. By default
a correct completion should be short, and a wrong one long: the model may think longer about what it cannot solve. With
`exceeded`, this is the reward of every completion of at least `max_tokens` tokens.

The default rewards are those of TRL's `get_cosine_scaled_reward`, which has no `exceeded`. The paper has 2, 1, -10, 0
and `exceeded = -10`. Whether the completion is correct is the metric `logged/correct`.

Source: Yeo et al. 2025 (2502.03373), appendix C.1.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.rewards.adapters import Call, LoadedReward, RewardInput, RowCheck
from purerl.rewards.components import to_components
from purerl.rewards.loading import load_reward
from purerl.rewards.loading import row_check as row_check_of
from purerl.rewards.sources import columns_of
from purerl.settings import at_least, setting

__all__ = ["Config", "CosineLength", "build", "check", "columns", "row_check"]

_FINITE = {"need": "a finite number", "valid": math.isfinite}


@frozen(kw_only=True)
class Config:
    """Settings of the kind `cosine_length`."""

    correctness: str = setting(
        "the function that decides whether a completion is correct, as module:function or file.py:function: its first "
        "component is at least 1"
    )
    max_tokens: int = setting(
        "length at which the reward is that of the longest completion", unit="tokens", **at_least(1)
    )
    correct_short: float = setting("reward of the shortest correct completion", default=1.0, **_FINITE)
    correct_long: float = setting("reward of the longest correct completion", default=0.5, **_FINITE)
    wrong_short: float = setting("reward of the shortest wrong completion", default=-1.0, **_FINITE)
    wrong_long: float = setting("reward of the longest wrong completion", default=-0.5, **_FINITE)
    exceeded: float | None = setting(
        "reward of a completion of at least max_tokens tokens; if not given, that of the longest one",
        default=None,
        **_FINITE,
    )

    def __attrs_post_init__(self) -> None:
        if self.correct_short == self.correct_long and self.wrong_short == self.wrong_long and self.exceeded is None:
            raise ConfigError("correct_long", got=self.correct_long, need="a reward that depends on the length")


@frozen
class CosineLength:
    """The reward function of the kind `cosine_length`."""

    config: Config
    correctness: LoadedReward

    def __call__(
        self,
        completion: str,
        example: Mapping[str, Any],
        *,
        messages: Sequence[Mapping[str, Any]],
        tokens: Sequence[int],
        log_metric: Callable[..., None],
    ) -> float | Awaitable[float | None] | None:
        item = RewardInput("", completion, example, messages=messages, tokens=tokens)
        returned = self.correctness.convention.call(self.correctness, [item], Call(1))
        if inspect.isawaitable(returned):
            return self._await(returned, len(tokens), log_metric)
        return self._reward(returned, len(tokens), log_metric)

    async def _await(self, returned: Awaitable[Any], length: int, log_metric: Callable[..., None]) -> float | None:
        return self._reward(await returned, length, log_metric)

    def _reward(self, returned: Any, length: int, log_metric: Callable[..., None]) -> float | None:
        [value] = self.correctness.convention.parse(returned, Call(1))
        components = {} if value is None else to_components(self.correctness.name, value)
        if not components:
            return None
        is_correct = next(iter(components.values())) >= 1
        log_metric("correct", float(is_correct))
        return scaled(self.config, length, is_correct=is_correct)


def scaled(config: Config, length: int, *, is_correct: bool) -> float:
    """The reward of a completion of `length` tokens.

    >>> config = Config(correctness="purerl.rewards.math:boxed", max_tokens=100)
    >>> scaled(config, 0, is_correct=True), round(scaled(config, 50, is_correct=False), 6)
    (1.0, -0.75)
    """
    if config.exceeded is not None and length >= config.max_tokens:
        return config.exceeded
    correct, wrong = (config.correct_short, config.correct_long), (config.wrong_short, config.wrong_long)
    short, long = correct if is_correct else wrong
    return long + (short - long) * (1 + math.cos(math.pi * min(length / config.max_tokens, 1))) / 2


def check(config: Config) -> None:
    """Raise ConfigError if the function that decides what is correct cannot be called."""
    load_reward(config.correctness)


def columns(config: Config) -> list[tuple[str, ...]]:
    """The columns that the function reads."""
    return columns_of(load_reward(config.correctness))


def row_check(config: Config) -> RowCheck | None:
    """The check of a row that the function declares."""
    return row_check_of(load_reward(config.correctness).function)


def build(config: Config) -> CosineLength:
    """The reward function with the settings `config`."""
    return CosineLength(config, load_reward(config.correctness))
