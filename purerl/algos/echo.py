"""ECHO, GRPO that also predicts the output of its tools.

An episode has many tokens that the policy did not choose: what tools and environments have answered. They say what the
actions led to, and a policy gradient ignores them. ECHO adds their cross-entropy to the loss of GRPO.

    loss = loss of grpo - observation_coef * (1 / tokens) sum_it logp_it

The sum is over the tokens of the answers, and `tokens` is their number in the optimizer step. The rest is as in `grpo`.

Choices that differ between libraries:

- All tokens of a row after its first action token that are no action are answers: also those of the chat template
  around them. What the modifier `observation_loss` says holds here.

The differences from the paper are those of `grpo`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import observation_loss
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["EXEMPTIONS", "Config", "algorithm", "composition"]

EXEMPTIONS = observation_loss.EXEMPTIONS


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of ECHO: the settings of GRPO, and the coefficient of the answers."""

    observation_coef: float = number("coefficient of the negative log-likelihood of the answers", 0.1, min=0)


def composition(config: Config) -> Composition:
    """ECHO as GRPO with modifiers."""
    coef = config.observation_coef
    return Composition(base_settings(config, grpo.Config), (observation_loss.Config(coef=coef),) if coef else ())


def algorithm(config: Config = Config()) -> Algorithm:
    """Build ECHO from `config`."""
    return build_algorithm(composition(config))
