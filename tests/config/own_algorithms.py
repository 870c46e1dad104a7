"""Algorithms and a modifier that are not part of purerl, for tests of what their losses compute."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from tensordict import TensorDict

from purerl.algos import rloo
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.editing import change_surrogate
from purerl.types import TokenFloat


def minus_advantage_times_logp(batch: TensorDict) -> TokenFloat:
    """The policy gradient, written without a function of purerl."""
    return -batch["advantage"] * batch["logp"]


def own_ratio(batch: TensorDict) -> TokenFloat:
    """The importance ratio, written without a function of purerl."""
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"]).clamp(-20, 20).exp()


def with_loss(algorithm: Algorithm, loss: Any, *reads: str) -> Algorithm:
    """`algorithm` with `loss` as its policy loss."""
    return change_surrogate(algorithm, lambda term: term._replace(loss=loss), *reads)


class Gradient:
    """An algorithm with a policy gradient, which declares that it reads `old_logp`."""

    @frozen
    class Config:
        """The Config of `Gradient`."""

    @staticmethod
    def algorithm(config: Any) -> Algorithm:
        """RLOO with a loss of its own."""
        return with_loss(rloo.algorithm(), minus_advantage_times_logp, "old_logp")


class Ratio:
    """As an algorithm or as a modifier: RLOO, or any other algorithm, with a ratio of its own."""

    @frozen
    class Config:
        """The Config of `Ratio`."""

    @staticmethod
    def algorithm(config: Any) -> Algorithm:
        """RLOO with an importance ratio."""
        return with_loss(rloo.algorithm(), own_ratio, "old_logp")

    @staticmethod
    def modify(config: Any, algorithm: Algorithm) -> Algorithm:
        """Replace the policy loss by one with an importance ratio."""
        return with_loss(algorithm, own_ratio, "old_logp")
