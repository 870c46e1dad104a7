"""A bound of the advantage.

    A'_it = clip(A_it, -bound, bound)

A_it is the advantage of the algorithm, in its own units: standard deviations in GRPO, rewards in Dr. GRPO. It is
clipped after the other steps that compute it, so after the whitening of PPO. The one correct row of a large group then
has at most `bound` times the gradient of a row with the advantage 1. The targets of a critic are not clipped.

ROLL and LightRFT call it `advantage_clip`. We know of no paper.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind, chain, stages_of, stateless, write_field
from purerl.algos.parts.editing import require_advantage
from purerl.algos.parts.settings import number
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {
    "no_reward_lost": "two advantages beyond the bound are equal, although their rewards differ",
    "reward_scale_equivariance": "the bound does not scale with the rewards",
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `advantage_clip`."""

    bound: float = number("largest absolute value of an advantage", 5.0, above=0)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a bound of its advantage.

    Raises: ConfigError for an algorithm without an advantage.
    """
    require_advantage(algorithm)
    clipped = stateless(write_field("advantage", bind(_clipped, bound=config.bound)))
    return algorithm._replace(advantage=chain(*stages_of(algorithm.advantage), clipped))


def _clipped(batch: TensorDict, *, bound: float) -> TokenFloat:
    return batch["advantage"].clamp(-bound, bound)
