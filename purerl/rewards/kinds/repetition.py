"""A penalty for repeated n-grams of tokens.

    r = -penalty (1 - u / m)

u is the number of different n-grams of the completion, and m the number of all of them. The reward is 0 if no n-gram
is repeated, or if the completion is shorter than n, and close to -penalty if it repeats one token.

TRL calls it `get_repetition_penalty_reward(ngram_size, max_penalty)`, where `max_penalty` is -penalty. The paper adds a
penalty to the reward of each token of a repeated n-gram. Here the reward of the completion has their share.

Source: Yeo et al. 2025 (2502.03373), appendix C.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from purerl.settings import above_zero, at_least, setting

__all__ = ["Config", "build", "repetition"]


@frozen(kw_only=True)
class Config:
    """Settings of the kind `repetition`."""

    ngram_size: int = setting("number of tokens of an n-gram", unit="tokens", default=3, **at_least(1))
    penalty: float = setting("the penalty if all n-grams are equal", default=1.0, **above_zero())


def repetition(
    completion: str, example: Mapping[str, Any], *, tokens: Sequence[int], ngram_size: int, penalty: float
) -> float:
    """The penalty for repeated n-grams in `tokens`.

    >>> repetition("", {}, tokens=[5, 5, 5, 5, 5], ngram_size=2, penalty=1.0)
    -0.75
    """
    ngrams = [*zip(*(tokens[start:] for start in range(ngram_size)), strict=False)]
    return penalty * (len({*ngrams}) / len(ngrams) - 1) if ngrams else 0.0


def build(config: Config) -> Callable[..., float]:
    """The reward function with the settings `config`."""
    return partial(repetition, ngram_size=config.ngram_size, penalty=config.penalty)
