"""An algorithm that is not part of purerl, and is another one with a modifier, for tests."""

from __future__ import annotations

from attrs import frozen

from purerl.algos import luspo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import entropy_bonus
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["Config", "algorithm", "composition"]


@frozen(kw_only=True)
class Config(luspo.Config):
    """The settings of LUSPO, and the coefficient of the bonus."""

    bonus: float = number("coefficient of the entropy", 0.01, above=0)


def composition(config: Config) -> Composition:
    """LUSPO with an entropy bonus."""
    return Composition(base_settings(config, luspo.Config), (entropy_bonus.Config(coef=config.bonus),))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build the algorithm from `config`."""
    return build_algorithm(composition(config))
