"""Advantage estimators for SkyRL.

    from purerl.adapters.frameworks.skyrl import advantage_estimator

    AdvantageEstimatorRegistry.register("purerl_gpg", advantage_estimator("gpg"))

and `trainer.algorithm.advantage_estimator=purerl_gpg`. AdvantageEstimatorRegistry is SkyRL's. There are no losses: a
policy loss of SkyRL gets no denominators of the whole mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from purerl.adapters.frameworks.availability import SKYRL, estimator_of, estimator_refusals, require
from purerl.adapters.frameworks.compose import compose, require_effect
from purerl.adapters.frameworks.tensors import estimate
from purerl.composition import build_algorithm

__all__ = ["advantage_estimator"]


def advantage_estimator(algorithm: Any, modifiers: Sequence[Any] = ()) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an advantage estimator for SkyRL: (token_level_rewards, response_mask, index) -> (advantages, returns).

    It is called with these names, and ignores what else SkyRL passes. All tensors are [rows, time]; `index` has the
    label of the prompt of each row.

    Raises: ConfigError if SkyRL does not pass what the algorithm needs, and for settings that do not change its
        advantages. The estimator raises BatchError as `estimate`.
    """
    composition = compose(algorithm, modifiers)
    built = build_algorithm(composition)
    require("this algorithm in SkyRL", [*estimator_refusals(built, SKYRL)])
    require_effect(algorithm, modifiers, on="advantages in SkyRL", part=estimator_of)

    def estimator(token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: Any) -> tuple[Tensor, Tensor]:
        batch = estimate(built, token_level_rewards, response_mask, index, name=str(composition))
        advantage = batch["advantage"]
        return advantage, batch["returns"] if "returns" in batch.keys() else advantage

    return estimator
