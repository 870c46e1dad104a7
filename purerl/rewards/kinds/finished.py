"""A reward for completions that end by themselves.

The reward is 1 if the model ended the completion, or the episode ended, and `when_truncated` if a limit cut it. As a
gate, it lets only finished completions have a reward: that is OpenRLHF's `reward.stop_properly_penalty_coef = 0`, which
OpenRLHF attributes to ProRL. Other values of this setting multiply the reward, or replace it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import setting

__all__ = ["Config", "build", "finished"]


@frozen(kw_only=True)
class Config:
    """Settings of the kind `finished`."""

    when_truncated: float = setting(
        "reward of a truncated completion", default=0.0, need="a finite number", valid=math.isfinite
    )

    def __attrs_post_init__(self) -> None:
        if self.when_truncated == 1:
            raise ConfigError("when_truncated", got=1.0, need="another reward than that of a finished completion, 1")


def finished(completion: str, example: Mapping[str, Any], *, truncated: bool, when_truncated: float) -> float:
    """1, or `when_truncated` if the completion was truncated.

    >>> finished("abc", {}, truncated=True, when_truncated=-0.5)
    -0.5
    """
    return when_truncated if truncated else 1.0


def build(config: Config) -> Callable[..., float]:
    """The reward function with the settings `config`."""
    return partial(finished, when_truncated=config.when_truncated)
