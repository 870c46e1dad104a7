"""Settings of the trainer and of the generator for tests."""

from __future__ import annotations

import math
from typing import ClassVar

from attrs import field, frozen

from purerl.errors import ConfigError

__all__ = ["GeneratorConfig", "TrainerConfig"]


@frozen(kw_only=True)
class TrainerConfig:
    """Settings of the fake trainer."""

    PLUGIN: ClassVar[str] = "purerl.backends.fake.trainer"

    vocab_size: int = field(default=16, metadata={"help": "number of tokens"})
    lr: float = field(default=1.0, metadata={"help": "learning rate; constant"})
    top_k: int = field(default=4, metadata={"help": "number of most likely tokens in the output topk_tokens"})

    def __attrs_post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ConfigError("vocab_size", got=self.vocab_size, need="at least 1")
        if not self.lr > 0:
            raise ConfigError("lr", got=self.lr, need="above 0")
        if not 1 <= self.top_k <= self.vocab_size:
            raise ConfigError("top_k", got=self.top_k, need=f"from 1 to vocab_size, {self.vocab_size}")


@frozen(kw_only=True)
class GeneratorConfig:
    """Settings of the fake generator."""

    PLUGIN: ClassVar[str] = "purerl.backends.fake.generator"

    vocab_size: int = field(default=16, metadata={"help": "number of tokens"})
    max_sequence_length: int = field(default=4096, metadata={"help": "tokens of the longest sequence"})
    max_collected: int = field(default=4, metadata={"help": "completions per call of collect", "may_change": True})
    in_process: bool = field(default=True, metadata={"help": "decode in collect; false: in a thread of its own"})
    seconds_per_token: float = field(
        default=0.0, metadata={"help": "time of a decoding step, in which every request gets a token"}
    )
    error_rate: float = field(
        default=0.0,
        metadata={"help": 'share of requests that finish with "error" after some of their tokens; their seed decides'},
    )

    def __attrs_post_init__(self) -> None:
        for name in ("vocab_size", "max_sequence_length", "max_collected"):
            if getattr(self, name) < 1:
                raise ConfigError(name, got=getattr(self, name), need="at least 1")
        if not 0 <= self.seconds_per_token < math.inf:
            raise ConfigError("seconds_per_token", got=self.seconds_per_token, need="0 or above, and finite")
        if not 0 <= self.error_rate <= 1:
            raise ConfigError("error_rate", got=self.error_rate, need="a number from 0 to 1")
