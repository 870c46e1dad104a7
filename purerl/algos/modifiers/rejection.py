"""Rejection of tokens or rows whose probability differs between the rollout policy and the old policy.

    d_it = measure(rollout_logp_it, old_logp_it)

The difference d_it of a token, or the differences of a row of n_i tokens, decide:

    token       a token is rejected if d_it is outside of [min_value, max_value]
    row_sum     a row is rejected if sum_t d_it is outside of these bounds
    row_mean    a row is rejected if (1 / n_i) sum_t d_it is; with k1, exp(-mean) is the geometric mean of the ratios
    row_max     a row is rejected if max_t d_it is
    any_token   a row is rejected if any of its d_it is; for all measures but k1 this equals row_max

A rejected token or row has no effect at all: neither on the numerator and the denominator of a loss, nor on the
baseline of its group. With x = rollout_logp - old_logp, nats:

    k1          x, with either sign: it needs a `min_value` below 0
    k2          x^2 / 2
    k3          exp(-x) + x - 1; 0.5 is a ratio of 2.36 or 0.30 between the two policies
    binary_kl   the larger KL divergence, of both directions, of the distribution "this token, or any other", as in KPop

All but k1 are at least 0, so that `min_value` has no effect on them and must be 0. An unchanged policy has d = 0, which
is always within the bounds.

verl: `rollout_rs`: token_k1, seq_sum_k1, seq_mean_k1, seq_max_k2, and so on; there, the bounds of k1 are ratios, and
here they are their logarithms. The metrics are those of `parts.corrections`, for example `rejected_fraction`.

Source: geometric rejection (2512.23075).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound
from purerl.algos.parts.corrections import reject_rows, reject_rows_with_outlier_token, reject_tokens, with_corrections
from purerl.algos.parts.divergences import k1, k2, k3
from purerl.algos.parts.rows import row_max, row_mean, row_sum
from purerl.algos.parts.settings import choice, number
from purerl.algos.parts.weights import symmetric_binary_kl
from purerl.errors import ConfigError

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {
    "group_independence": "a rejected token leaves the denominators, which are those of the whole optimizer step",
    "no_reward_lost": "the reward of a rejected row has no effect",
    "small_groups_have_zero_advantage": "rejected rows leave their group, which can then be too small",
}

_AGGREGATES = {"row_sum": row_sum, "row_mean": row_mean, "row_max": row_max}
_MEASURES = {"k1": k1, "k2": k2, "k3": k3, "binary_kl": symmetric_binary_kl}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `rejection`."""

    level: str = choice("what is rejected, and by which value", ("token", *_AGGREGATES, "any_token"), "token")
    measure: str = choice("the difference of the two policies at a token", _MEASURES, "k3")
    max_value: float = number("a larger difference is rejected", 0.5, above=0, unit="nats")
    min_value: float = number("a smaller difference is rejected; only for k1", 0.0, max=0, unit="nats")

    def __attrs_post_init__(self) -> None:
        if (self.measure == "k1") != (self.min_value < 0):
            need = f"0: {self.measure} is at least 0" if self.min_value else "a number below 0: k1 has either sign"
            raise ConfigError("min_value", got=f"{self.min_value:g}, with measure = {self.measure}", need=need)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` without the tokens or rows that `config` rejects.

    Raises: ConfigError for an algorithm without a policy gradient or a surrogate of it.
    """
    return with_corrections(algorithm, _correction(config))


def _correction(config: Config) -> Bound:
    measure, bounds = _MEASURES[config.measure], dict(min_value=config.min_value, max_value=config.max_value)
    if config.level == "token":
        return reject_tokens(measure, **bounds)
    if config.level == "any_token":
        return reject_rows_with_outlier_token(measure, **bounds)
    return reject_rows(measure, _AGGREGATES[config.level], **bounds)
