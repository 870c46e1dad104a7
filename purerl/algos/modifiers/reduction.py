"""The reduction of the policy loss from tokens to a scalar.

    token_mean                    (1 / tokens) sum_it l_it
    token_sum                     sum_it l_it
    sequence_mean_of_token_mean   (1 / rows) sum_i (1 / n_i) sum_t l_it
    sequence_mean_of_token_sum    (1 / rows) sum_i sum_t l_it
    constant_norm                 (1 / (rows * length)) sum_i sum_t l_it

Losses and counts cover only tokens where `mask` is 1; `rows` and `tokens` are numbers of the whole optimizer step.

A KL term or an entropy bonus that is reduced like the policy loss gets the same new reduction. A term of its own, such
as the penalty of KL-Cov, keeps its reduction.

Sources: DAPO (2503.14476) for token_mean, GRPO (2402.03300) for sequence_mean_of_token_mean, Dr. GRPO (2503.20783) for
constant_norm.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, bind
from purerl.algos.parts import reductions
from purerl.algos.parts.editing import change_policy, surrogate_of
from purerl.algos.parts.settings import choice, number
from purerl.errors import ConfigError

__all__ = ["Config", "check_length", "modify", "reduction_named"]

_TERMS = ("policy", "ref_kl", "entropy")


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `reduction`."""

    by: str = choice("the reduction", reductions.__all__, "token_mean")
    length: float = number("the constant of constant_norm", 0.0, min=0, unit="tokens")

    def __attrs_post_init__(self) -> None:
        check_length(self.by, self.length)


def check_length(by: str, length: float) -> None:
    """Raise ConfigError if `length` is set for another reduction than constant_norm, or not set for it."""
    if (by == "constant_norm") != (length > 0):
        need = "a number above 0" if by == "constant_norm" else "constant_norm: other reductions have no length"
        raise ConfigError("length", got=f"{length:g}, with by = {by}", need=need)


def reduction_named(by: str, length: float) -> Callable:
    """The reduction called `by`, with `length` if it has one."""
    reduce = getattr(reductions, by)
    return bind(reduce, length=length) if length else reduce


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with another reduction of its policy loss.

    Raises: ConfigError for an algorithm without a policy loss, and for a loss that couples the rows of a group.
    """
    reduce, before = reduction_named(config.by, config.length), surrogate_of(algorithm).reduce

    def reduced(policy: Objective) -> Objective:
        if policy.unit == "group":
            need = "a loss of single tokens"
            raise ConfigError("has no effect", got="a loss that is defined for whole groups", need=need)
        terms = (t._replace(reduce=reduce) if t.name in _TERMS and t.reduce == before else t for t in policy.terms)
        return policy._replace(terms=tuple(terms))

    return change_policy(algorithm, reduced)
