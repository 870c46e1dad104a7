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

from purerl.adapters.frameworks.availability import SLIME, estimator_refusals, require
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.tensors import estimate
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.rows import at_last_action
from purerl.composition import build_algorithm
from purerl.errors import ConfigError

__all__ = ["advantages_of_samples", "reward_post_process"]


def reward_post_process(
    algorithm: Any, modifiers: Sequence[Any] = ()
) -> Callable[[Any, Sequence[Any]], tuple[list[float], list[float]]]:
    """Return a function (args, samples) -> (raw rewards, advantages) for slime's ``--custom-reward-post-process-path``.

    It reads of each sample ``get_reward_value(args)``, `group_index`, `response_length`, and `loss_mask` if it is set.

    Raises: ConfigError if slime does not pass what the algorithm needs. The function raises ConfigError for an
        algorithm whose advantages differ between the tokens of a sample.
    """
    composition = compose(algorithm, modifiers)
    built = build_algorithm(composition)
    require("this algorithm in slime", [*estimator_refusals(built, SLIME)])

    def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        rewards = [float(sample.get_reward_value(args)) for sample in samples]
        masks = [_mask(sample) for sample in samples]
        groups = [sample.group_index for sample in samples]
        return rewards, advantages_of_samples(built, rewards, masks, groups, name=str(composition))

    return post_process


def advantages_of_samples(
    algorithm: Algorithm, rewards: Sequence[float], masks: Sequence[Sequence[int]], groups: Sequence[Any], *, name: str
) -> list[float]:
    """Return the advantage of each sample, from its reward, the mask of its tokens and the label of its prompt.

    Raises: ConfigError if the advantages differ between the counted tokens of a sample.
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


def _mask(sample: Any) -> Sequence[int]:
    return [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
