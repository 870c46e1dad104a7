"""Bounds of the total reward of a row, before advantages are computed.

    s'_i = clip(s_i, low, high)

s_i is the total reward of row i; the difference is added to the reward of its last action token. `clip` of a reward in
the configuration bounds each component by itself, before its weight. The greedy score of ReMax is clipped like the
scores.

Modifiers of rewards that are later in the list run earlier. With ["kl_reward", "reward_clip"], the KL penalty is
subtracted from clipped rewards; in the other order, it is clipped too.

TRL's RLOO trainer calls it `reward_clip_range`, OpenRLHF `reward.clip_range` with -10 and 10 by default. OpenRLHF clips
after it has subtracted the baseline of the group, if the algorithm has one.

Source: DQN clips rewards to [-1, 1], Mnih et al. 2013 (1312.5602).
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind, stateless
from purerl.algos.parts.editing import prepend_transform, require_field
from purerl.algos.parts.rows import at_last_action
from purerl.algos.parts.settings import number, require_below
from purerl.batch import with_fields
from purerl.types import TensorDict

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {
    "no_reward_lost": "two rewards beyond a bound are equal",
    "reward_shift_invariance": "the bounds do not shift with the rewards",
    "reward_scale_equivariance": "the bounds do not scale with the rewards",
}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `reward_clip`."""

    high: float = number("largest total reward of a row", 10.0)
    low: float = number("smallest total reward of a row", -10.0)

    def __attrs_post_init__(self) -> None:
        require_below(self, "low", "high")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with bounds of the total reward.

    Raises: ConfigError for an algorithm that does not compute advantages from rewards.
    """
    require_field(algorithm, "reward", "an algorithm that computes advantages from rewards")
    fields = tuple(name for name in ("greedy_score",) if name in algorithm.reads)
    return prepend_transform(algorithm, stateless(bind(_clipped, low=config.low, high=config.high, fields=fields)))


def _clipped(batch: TensorDict, *, low: float, high: float, fields: tuple[str, ...]) -> TensorDict:
    score = batch["reward"].sum(-1)
    rows: dict[str, Any] = {name: batch[name].clamp(low, high) for name in fields}
    change = at_last_action(score.clamp(low, high) - score, batch["action"])
    return with_fields(batch, reward=batch["reward"] + change, **rows)
