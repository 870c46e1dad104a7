"""A bound of the clipped surrogate where the advantage is negative.

    l_it = max(-A_i min(r_it, ratio), -A_i clip(r_it, 1 - clip_low, 1 + clip_high))

The clipped surrogate of PPO has no bound if A < 0 and the ratio r is large: the loss is -A r. With this modifier, such
a token has no gradient beyond `ratio`. Where A > 0 nothing changes, because r is already clipped at 1 + clip_high.

Two papers write the same function in different ways: dual clip (ratio 3) as min(clipped surrogate, -A ratio) where
A < 0, and the two-sided clip of INTELLECT-2 (ratio 4) as above. verl calls the bound `clip_ratio_c`, TRL `delta`.

Sources: dual clip (1912.09729); two-sided clip, INTELLECT-2 (2505.07291).
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound, bind
from purerl.algos.parts.editing import change_surrogate, map_bound, surrogate_of
from purerl.algos.parts.policy import clip_surrogate_of
from purerl.algos.parts.settings import number
from purerl.errors import ConfigError
from purerl.types import TensorDict, TokenFloat

__all__ = ["Config", "modify"]


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `dual_clip`."""

    ratio: float = number("largest ratio of a token with a negative advantage", 3.0, above=1)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with dual clip.

    Raises: ConfigError for an algorithm without a clipped surrogate, and if `ratio` is not above its upper clip bound.
    """

    def capped(bound: Bound) -> Bound:
        keywords = dict(bound.keywords)
        if bound.function is not clip_surrogate_of:
            return bound
        if config.ratio <= 1 + keywords["clip_high"]:
            need = f"above the upper clip bound, {1 + keywords['clip_high']:g}"
            raise ConfigError("has no effect", got=f"ratio = {config.ratio:g}", need=need)
        return bind(clip_surrogate_of, **keywords | {"ratio": bind(_capped, ratio=keywords["ratio"], cap=config.ratio)})

    surrogate = surrogate_of(algorithm)
    loss = map_bound(surrogate.loss, capped)
    if loss == surrogate.loss:
        raise ConfigError("has no effect", got="a loss without a clip", need="a clipped surrogate, as in PPO and GRPO")
    return change_surrogate(algorithm, lambda term: term._replace(loss=loss))


def _capped(batch: TensorDict, *, ratio: Callable, cap: float) -> TokenFloat:
    return ratio(batch).clamp(max=cap)
