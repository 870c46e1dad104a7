"""GAR, group advantage ranking: MiMo-V2.6 (section 4.3.2, equation 3), as in prime-rl.

Correct rows of a group have the same reward, whatever else is good or bad about them. GAR shares their advantages out
by a ranking that a judge has made of them. Their sum stays the same, so a ranking moves weight from one correct row to
another, and never to or from an incorrect one.

    A_i = s_i - mean_g
    f_i = min_factor + (1 - min_factor) w_i
    c_g = min(sum_g A_j / sum_g f_j A_j, max_scale)
    B_i = c_g f_i A_i    if A_i > 0
          A_i            else

w_i is the share of the other rows with A > 0 of the group that row i is ranked above, where a tie counts as half. The
sums are over these rows. The advantage is B minus its mean over the group, which is 0 unless the cap binds. s_i is the
sum of all rewards of row i; of a hack, it is the lowest score of its group, before the mean is taken.
The rest is as in `grpo`.

`ranking` is the component of the reward with this name, without its weight: give it the weight 0, so that it is not
part of the reward. A higher one is better. A row without it is not ranked, and has w = 1/2. With `hacks`, a row is a
hack if its component `hack` is at least 1/2. A reward function that gets the whole group can rank it:
`rewards = ["exact.py:exact", {function = "judge.py:ranking", weight = 0}]`.

Choices that differ between libraries:

- A row that alone is ranked has w = 1.
- Without any ranking, the advantage is that of Dr. GRPO.
- In a group of one row, every advantage is 0.

Differences from the source:

1. Only the equation was read. The defaults of `min_factor` and `max_scale`, and the loss of GRPO, are ours
   (unverified).
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind, stateless, write_field
from purerl.algos.estimators.ranking import ranked_advantage, with_hacks_at_minimum
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import flag, number
from purerl.kernels.masks import any_true
from purerl.types import RowFloat, TensorDict, TokenFloat

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of GAR: the settings of GRPO, and those of the ranking."""

    min_factor: float = number("factor of the row that is ranked last; 1: no effect", 0.5, above=0, max=1)
    max_scale: float = number(
        "largest factor that keeps the sum of the positive advantages of a group", 1.5, min=1, infinite="no maximum"
    )
    hacks: bool = flag("rows with a component hack of at least 1/2 have the lowest score of their group")


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GAR from `config`."""
    bounds = {"min_factor": config.min_factor, "max_scale": config.max_scale}
    advantage = bind(_ranked_advantage, score=_without_hacks if config.hacks else _score, **bounds)
    return grpo.algorithm(config)._replace(
        reads=("reward", "ranking", *(("hack",) if config.hacks else ())),
        advantage=stateless(write_field("advantage", advantage)),
    )


def _score(batch: TensorDict) -> RowFloat:
    return batch["reward"].sum(-1)


def _without_hacks(batch: TensorDict) -> RowFloat:
    return with_hacks_at_minimum(_score(batch), batch["hack"] >= 0.5, batch["group"], any_true(batch["mask"]))


def _ranked_advantage(batch: TensorDict, *, score: Callable[[TensorDict], RowFloat], **bounds: float) -> TokenFloat:
    mask = batch["mask"]
    advantage = ranked_advantage(score(batch), batch["ranking"], batch["group"], any_true(mask), **bounds)
    return broadcast_to_tokens(advantage, mask)
