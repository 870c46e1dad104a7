"""Modifiers that are not part of purerl, for tests. Their names are addresses of classes in this module."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.parts.settings import number
from purerl.errors import ConfigError


class Scaled:
    """A modifier of one's own: it multiplies the weight of the policy loss."""

    @frozen(kw_only=True)
    class Config:
        """The Config of `Scaled`."""

        factor: float = number("the factor", 2.0, above=0)
        size: float = number("nothing", 1.0)

    @staticmethod
    def modify(config: Any, algorithm: Algorithm) -> Algorithm:
        """Multiply the weight of every term."""
        if config.size > 5:
            raise ConfigError("size", got=config.size, need="at most 5")
        [policy] = algorithm.objectives
        terms = tuple(term._replace(weight=config.factor * term.weight) for term in policy.terms)
        return algorithm._replace(objectives=(policy._replace(terms=terms),))


class Plain:
    """A modifier without settings."""

    @frozen
    class Config:
        """The Config of `Plain`."""

    @staticmethod
    def modify(config: Any, algorithm: Algorithm) -> Algorithm:
        """Refuse every algorithm."""
        raise ConfigError("this is not possible")
