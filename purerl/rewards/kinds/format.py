r"""A reward for completions that match a regular expression.

The reward is `matched` if the whole completion matches `pattern`, and `otherwise` if it does not. The default pattern
is TRL's `think_format_reward`: the completion starts with one block `<think>...</think>`, and anything may follow. The
format of DeepSeek-R1 (2501.12948, table 1) is the pattern `<think>.*?</think>\s*<answer>.*?</answer>`. As a gate, it
lets only well-formed completions have a reward.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import setting

__all__ = ["Config", "Format", "build"]

_FINITE = {"need": "a finite number", "valid": math.isfinite}


@frozen(kw_only=True)
class Config:
    """Settings of the kind `format`."""

    pattern: str = setting(
        "regular expression of Python that the whole completion must match; a dot matches line breaks too",
        default="<think>(?!.*<think>).*?</think>.*",
    )
    matched: float = setting("reward of a completion that matches", default=1.0, **_FINITE)
    otherwise: float = setting("reward of every other completion", default=0.0, **_FINITE)

    def __attrs_post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            need = f"a regular expression of Python: {error}"
            raise ConfigError("pattern", got=repr(self.pattern), need=need) from error
        if self.matched == self.otherwise:
            raise ConfigError("otherwise", got=self.otherwise, need="another number than matched")


@frozen
class Format:
    """The reward function of the kind `format`.

    >>> reward = build(Config())
    >>> reward("<think>9 * 8</think> 72", {}), reward("72", {})
    (1.0, 0.0)
    """

    pattern: re.Pattern[str]
    matched: float
    otherwise: float

    def __call__(self, completion: str, example: Mapping[str, Any]) -> float:
        return self.matched if self.pattern.fullmatch(completion) else self.otherwise


def build(config: Config) -> Format:
    """The reward function with the settings `config`."""
    return Format(re.compile(config.pattern, re.DOTALL), config.matched, config.otherwise)
