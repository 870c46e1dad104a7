"""Advantages for slime, by its hook for rewards.

    # my_rewards.py
    from purerl.adapters.frameworks.slime import reward_post_process

    post_process = reward_post_process("gpg")

and `--custom-reward-post-process-path my_rewards.post_process`, with the default `--advantage-estimator grpo`, which
gives the processed reward of a sample to each of its tokens. There are no losses for `--custom-loss-function-path`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from purerl.adapters.frameworks.availability import SLIME, estimator_of, estimator_refusals, require
from purerl.adapters.frameworks.compose import compose, require_effect
from purerl.adapters.frameworks.tensors import estimate, number
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.rows import at_last_action
from purerl.composition import build_algorithm
from purerl.errors import BatchError, ConfigError

__all__ = ["advantages_of_samples", "reward_post_process"]

_SAME_AT_EACH_TOKEN = ("grpo", "gspo", "cispo")
"""Values of slime's ``--advantage-estimator``."""


def reward_post_process(
    algorithm: Any, modifiers: Sequence[Any] = ()
) -> Callable[[Any, Sequence[Any]], tuple[list[float], list[float]]]:
    """Return a function (args, samples) -> (raw rewards, advantages) for slime's ``--custom-reward-post-process-path``.

    It reads of each sample ``get_reward_value(args)``, `group_index`, `response_length`, and `loss_mask` if it is set.
    A sample with `remove_sample` counts in the baselines of the others, as in slime.

    Raises: ConfigError if slime does not pass what the algorithm needs, and for settings that do not change its
        advantages. The function raises ConfigError for an algorithm whose advantages differ between the tokens of a
        sample, and for an `advantage_estimator` of slime that computes something else from them; BatchError for a
        reward that is no number, a `loss_mask` of another length than the response, and as `estimate`.
    """
    composition = compose(algorithm, modifiers)
    built = build_algorithm(composition)
    require("this algorithm in slime", [*estimator_refusals(built, SLIME)])
    require_effect(algorithm, modifiers, on="advantages in slime", part=estimator_of)

    def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        if (estimator := getattr(args, "advantage_estimator", "grpo")) not in _SAME_AT_EACH_TOKEN:
            need = f"{', '.join(_SAME_AT_EACH_TOKEN)}: they give the number of a sample to each of its tokens"
            raise ConfigError("advantage_estimator of slime", got=estimator, need=need)
        if not samples:
            raise BatchError("samples of slime", got="none", need="at least one")
        rewards = [_reward(sample.get_reward_value(args), index) for index, sample in enumerate(samples)]
        masks = [_mask(sample, index) for index, sample in enumerate(samples)]
        groups = [sample.group_index for sample in samples]
        labels = None if None in groups else groups
        return rewards, advantages_of_samples(built, rewards, masks, labels, name=str(composition))

    return post_process


def advantages_of_samples(
    algorithm: Algorithm,
    rewards: Sequence[float],
    masks: Sequence[Sequence[int]],
    groups: Sequence[Any] | None,
    *,
    name: str,
) -> list[float]:
    """Return the advantage of each sample, from its reward, the mask of its tokens and the label of its prompt.

    groups   labels, or None if there are none

    Raises: BatchError as `estimate`. ConfigError if the advantages differ between the counted tokens of a sample.
    """
    mask = torch.nn.utils.rnn.pad_sequence([torch.tensor(m, dtype=torch.bool) for m in masks], batch_first=True)
    reward = at_last_action(torch.tensor(rewards, dtype=torch.float64), mask)
    advantage = estimate(algorithm, reward, mask, groups, name=name)["advantage"]
    high = advantage.masked_fill(~mask, -torch.inf).amax(-1)
    low = advantage.masked_fill(~mask, torch.inf).amin(-1)
    if ((high - low) > 1e-9 * (1 + high.abs())).any():
        need = "the same advantage at each token of a sample: slime has one number for a sample"
        raise ConfigError(f"advantages of {name!r}", got="several advantages in a sample", need=need)
    return torch.where(mask.any(-1), high, 0).tolist()


def _reward(value: Any, index: int) -> float:
    do = "set --reward-key to choose one of several rewards" if isinstance(value, dict) else "score each sample"
    return number(value, f"reward of sample {index} of slime", do=do)


def _mask(sample: Any, index: int) -> Sequence[int]:
    mask = [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
    if len(mask) != sample.response_length:
        need = f"{sample.response_length}, its response_length"
        raise BatchError(f"loss_mask of sample {index} of slime", got=f"{len(mask)} numbers", need=need)
    return mask
