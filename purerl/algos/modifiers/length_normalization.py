"""Log-ratios of rows that are divided by the number of tokens of the row.

    L_i <- L_i / n_i

L_i is the log-ratio of row i in a loss of pairs, a sum over its n_i counted tokens. Without this
modifier, a longer completion has a larger log-ratio, and a loss that increases it also increases the length.

TRL: the loss types sigmoid_norm and ipo. In SimPO and ORPO it is part of the definition. A good `beta` is about n_i
times as large as without.

Sources: SimPO (2405.14734); length-normalized DPO in Tulu 3 (2411.15124).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.parts.editing import change_policy, contains, policy_of
from purerl.algos.parts.preferences import change_log_ratio, is_per_token, per_token
from purerl.errors import ConfigError

__all__ = ["Config", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `length_normalization`: none."""


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with log-ratios per token.

    Raises: ConfigError for an algorithm without log-ratios of rows, and for one that divides them by lengths.
    """
    if contains(policy_of(algorithm).terms, is_per_token):
        raise ConfigError("has no effect", got="log-ratios that are divided by lengths", need="sums over tokens")
    return change_policy(algorithm, lambda policy: change_log_ratio(policy, per_token))
