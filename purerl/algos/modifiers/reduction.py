"""The reduction of the policy loss from tokens to a scalar.

    token_mean                    (1 / tokens) sum_it l_it
    token_sum                     sum_it l_it
    sequence_mean_of_token_mean   (1 / rows) sum_i (1 / n_i) sum_t l_it
    sequence_mean_of_token_sum    (1 / rows) sum_i sum_t l_it
    constant_norm                 (1 / (rows * length)) sum_i sum_t l_it
    prompt_mean                   (1 / prompts) sum_g (1 / n_g) sum_(i in g) sum_t l_it

Losses and counts cover only tokens where `mask` is 1; `rows`, `tokens` and `prompts` are numbers of the whole optimizer
step. n_i is the number of tokens of row i, and n_g that of all rows of prompt g in the step. prompt_mean is the formula
of the DAPO paper, token_mean the code of its authors: they differ if prompts have different numbers of tokens.

Terms that are parts of the same loss of a token get the same new reduction: the penalties of DRO, KL-Cov and importance
policy optimization, a KL term, and an entropy bonus. A KL term or an entropy bonus with a `reduction` of its own keeps
it. So does the imitation loss of VAPO, which covers other tokens.

Sources: DAPO (2503.14476) for token_mean and prompt_mean, GRPO (2402.03300) for sequence_mean_of_token_mean, Dr. GRPO
(2503.20783) for constant_norm.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, bind, write_field
from purerl.algos.parts import reductions
from purerl.algos.parts.editing import add_reads, add_scales, change_policy, surrogate_of
from purerl.algos.parts.groups import prompt_weight
from purerl.algos.parts.policy import add_preparation
from purerl.algos.parts.settings import choice, number
from purerl.errors import ConfigError
from purerl.types import RowFloat, TensorDict

__all__ = ["Config", "check_length", "modify", "reduction_named"]

_PROMPT_MEAN = "prompt_mean"


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `reduction`."""

    by: str = choice("the reduction", (*reductions.__all__, _PROMPT_MEAN), "token_mean")
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

    Raises: ConfigError for an algorithm without a policy loss, and for a loss that is defined for rows or groups.
    """
    surrogate_of(algorithm)
    is_prompt_mean = config.by == _PROMPT_MEAN
    reduce = reductions.token_mean if is_prompt_mean else reduction_named(config.by, config.length)

    def changed(term: Term) -> Term:
        if term.name != "policy" and not term.follows_policy:
            return term
        return add_scales(term._replace(reduce=reduce), *["prompt_weight"] * is_prompt_mean)

    def reduced(policy: Objective) -> Objective:
        whole = "groups" if policy.unit == "group" else "rows" if any(map(_is_penalty_of_rows, policy.terms)) else None
        if whole:
            got = f"a loss that is defined for whole {whole}"
            raise ConfigError("has no effect", got=got, need="a loss of single tokens")
        policy = policy._replace(terms=tuple(map(changed, policy.terms)))
        return _with_prompt_weight(policy) if is_prompt_mean else policy

    return change_policy(algorithm, reduced)


def _is_penalty_of_rows(term: Term) -> bool:
    return term.name == "penalty" and not term.follows_policy


def _with_prompt_weight(policy: Objective) -> Objective:
    write = write_field("prompt_weight", bind(_prompt_weight_of))
    return add_reads(add_preparation(policy, write), "prompt_weight")


def _prompt_weight_of(batch: TensorDict) -> RowFloat:
    return prompt_weight(batch["group"], batch["mask"]).to(batch["advantage"].dtype)
