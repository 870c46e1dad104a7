"""No policy loss at rows with a negative advantage that the current policy finds less likely than the rollout policy.

    d_i  = (1 / n_i) sum_t (rollout_logp_it - logp_it)
    l_it = 0       if A_it < 0 and d_i > delta
           p_it    else

p_it is the policy loss of the algorithm at token t of row i, A_it its advantage, and n_i the number of tokens of the
row. The gradient of such a row makes it less likely, although the current policy hardly samples it any more. d_i is an
estimate of the KL divergence per token, nats. It is computed with the current policy and changes during an update.

The row stays in the denominators, in the baseline of its group and in the other terms of the loss. The modifier
`rejection` removes a row from these too, and decides at the start of the update.

The paper does not publish `delta`. TRL calls it `off_policy_mask_threshold` and suggests 0.5.

Source: off-policy sequence masking, DeepSeek-V3.2 (2512.02556).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.parts.corrections import mask_off_policy_sequences, off_policy_tokens
from purerl.algos.parts.editing import contains, policy_of, surrogate_of
from purerl.algos.parts.settings import number
from purerl.errors import ConfigError

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {"episode_invariance": "the mean is over the tokens of a row, which need not be the whole episode"}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `off_policy_mask`."""

    delta: float = number(
        "rows with A < 0 are ignored if their mean of rollout_logp - logp exceeds this", 0.1, min=0, unit="nats"
    )


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` without the policy loss of off-policy rows with a negative advantage.

    Raises: ConfigError for an algorithm without a policy loss of an advantage, or that has this mask.
    """
    surrogate = surrogate_of(algorithm)
    if "advantage" not in policy_of(algorithm).reads:
        raise ConfigError("has no effect", got="a policy loss without an advantage", need="an advantage, as in GRPO")
    if contains(surrogate.loss, lambda bound: bound.function is off_policy_tokens):
        raise ConfigError("has no effect", got="an algorithm with an off-policy mask", need="one without it")
    return mask_off_policy_sequences(algorithm, delta=config.delta)
