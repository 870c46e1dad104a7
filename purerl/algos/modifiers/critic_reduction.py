"""The reduction of the critic's loss from tokens to a scalar.

    token_mean                    (1 / tokens) sum_it l_it
    token_sum                     sum_it l_it
    sequence_mean_of_token_mean   (1 / rows) sum_i (1 / n_i) sum_t l_it
    sequence_mean_of_token_sum    (1 / rows) sum_i sum_t l_it
    constant_norm                 (1 / (rows * length)) sum_i sum_t l_it

l_it is the loss of the critic at a token, for example the clipped value loss of PPO. Losses and counts cover only
tokens where `mask` is 1; `rows` and `tokens` are numbers of the whole optimizer step. The default of every algorithm
with a critic is the token mean.

verl calls the setting `critic.loss_agg_mode`. Sources: as in the modifier `reduction`.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term
from purerl.algos.modifiers.reduction import check_length, reduction_named
from purerl.algos.parts import reductions
from purerl.algos.parts.settings import choice, number
from purerl.errors import ConfigError

__all__ = ["Config", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `critic_reduction`."""

    by: str = choice("the reduction", reductions.__all__, "sequence_mean_of_token_mean")
    length: float = number("the constant of constant_norm", 0.0, min=0, unit="tokens")

    def __attrs_post_init__(self) -> None:
        check_length(self.by, self.length)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with another reduction of its critic's loss.

    Raises: ConfigError for an algorithm that trains no critic.
    """
    reduce = reduction_named(config.by, config.length)
    if not any(_is_value_loss(o, term) for o in algorithm.objectives for term in o.terms):
        raise ConfigError("has no effect", got="an algorithm without a critic", need="a critic, as in PPO and VAPO")

    def reduced(objective: Objective) -> Objective:
        terms = (t._replace(reduce=reduce) if _is_value_loss(objective, t) else t for t in objective.terms)
        return objective._replace(terms=tuple(terms))

    return algorithm._replace(objectives=tuple(map(reduced, algorithm.objectives)))


def _is_value_loss(objective: Objective, term: Term) -> bool:
    return objective.role == "critic" and term.name == "value"
