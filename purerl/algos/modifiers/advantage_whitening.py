"""Whitening of the advantage over the counted tokens of the batch.

    A'_it = (A_it - mean(A)) / (std(A) + eps)

A_it is the advantage of the algorithm. mean(A) and std(A) are over the counted tokens of the whole batch of rollouts,
not of an optimizer step or a micro-batch, so a long row has a larger weight in them than a short one. The standard
deviation of n values has the divisor n - ddof. The targets of a critic are not whitened.

verl's `masked_whiten` and ROLL's `whiten_advantages` divide by sqrt(var(A) + 1e-8), with ddof 1. OpenRLHF's and
NeMo-RL's REINFORCE++ have ddof 0. An algorithm that whitens its advantage at the end, with ddof 1, gets the settings of
the modifier.

Sources: the authors' code of PPO (it is not in the paper); Andrychowicz et al. 2020 (2006.05990); REINFORCE++
(2501.03262).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, Transform, chain, stages_of
from purerl.algos.parts.editing import is_whitened, require_advantage
from purerl.algos.parts.settings import integer, number
from purerl.algos.parts.transforms import whiten_advantage, whitening
from purerl.algos.parts.whiten import EPS
from purerl.errors import ConfigError

__all__ = ["EXEMPTIONS", "Config", "modify"]

EXEMPTIONS = {"group_independence": "advantages are whitened over the whole batch"}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `advantage_whitening`."""

    eps: float = number("added to the standard deviation before the division", EPS, above=0, max=1e-3)
    ddof: int = integer("0 or 1: the standard deviation of n values has the divisor n - ddof", 1, min=0)

    def __attrs_post_init__(self) -> None:
        if self.ddof > 1:
            raise ConfigError("ddof", got=self.ddof, need="0 or 1")


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with its advantage whitened.

    A whitening that is its last step is replaced.

    Raises: ConfigError for an algorithm without an advantage, and if its last step is the same whitening.
    """
    require_advantage(algorithm)
    stages, last, whitened = stages_of(algorithm.advantage), _whitening(config), is_whitened(algorithm.advantage)
    if whitened and stages[-1] == last:
        need = "an algorithm that does not whiten its advantage at the end, or another eps or ddof"
        raise ConfigError("has no effect", got="an advantage that is already whitened", need=need)
    return algorithm._replace(advantage=chain(*(stages[:-1] if whitened else stages), last))


def _whitening(config: Config) -> Transform:
    """The transform of PPO for the default settings: equal algorithms are equal values."""
    return whiten_advantage if config == Config() else whitening(eps=config.eps, ddof=config.ddof)
