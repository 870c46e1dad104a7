"""Algorithms with rewards that are shuffled within each group, so that they have no information."""

from __future__ import annotations

from typing import Literal

import torch
from attrs import frozen
from tensordict import TensorDict

from purerl.algos import dapo, gigpo
from purerl.algos.algebra import Algorithm, chain, stateless
from purerl.batch import with_fields
from purerl.settings import setting


@frozen
class Config:
    """The algorithm that gets the shuffled rewards: `base`, with its default settings."""

    base: Literal["dapo", "gigpo"] = setting("an algorithm", default="dapo")


def algorithm(config: Config) -> Algorithm:
    """The algorithm `config.base` with `shuffle` before its advantage."""
    original = {"dapo": dapo, "gigpo": gigpo}[config.base].algorithm()
    return original._replace(advantage=chain(stateless(shuffle), original.advantage))


def shuffle(batch: TensorDict) -> TensorDict:
    """Permute the rewards of each group. A reward is placed at the last action token of its new row."""
    group, rows = batch["group"], len(batch)
    random = torch.rand(rows, generator=torch.Generator().manual_seed(int(batch["row"][0])))
    sources, targets = random.argsort(), torch.arange(rows)
    sources = sources[group[sources].argsort(stable=True)]
    targets = targets[group[targets].argsort(stable=True)]
    score = torch.empty(rows).index_copy(0, targets, batch["reward"].sum(-1)[sources])
    position = torch.arange(batch["action"].shape[1])
    last = position == torch.where(batch["action"], position, -1).amax(-1, keepdim=True)
    return with_fields(batch, reward=torch.where(last, score[:, None], 0))
