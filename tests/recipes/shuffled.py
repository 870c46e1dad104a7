"""DAPO with rewards that are shuffled within each group, so that they have no information."""

from __future__ import annotations

import torch
from attrs import frozen
from tensordict import TensorDict

from purerl.algos import dapo
from purerl.algos.algebra import Algorithm, chain, stateless
from purerl.batch import with_fields


@frozen
class Config:
    """No settings."""


def algorithm(config: Config) -> Algorithm:
    """DAPO with `shuffle` before its advantage."""
    original = dapo.algorithm()
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
