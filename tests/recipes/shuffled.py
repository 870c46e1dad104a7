"""DAPO whose rewards are shuffled inside each group: same rewards, same spread, and nothing to learn from them."""

from __future__ import annotations

import torch
from attrs import frozen
from tensordict import TensorDict

from purerl.algos import dapo
from purerl.algos.algebra import Algorithm, chain, stateless
from purerl.batch import with_fields


@frozen
class Config:
    """Nothing to set."""


def algorithm(config: Config) -> Algorithm:
    """DAPO, after a transform that deals the rewards of a group anew."""
    honest = dapo.algorithm()
    return honest._replace(advantage=chain(stateless(shuffle), honest.advantage))


def shuffle(batch: TensorDict) -> TensorDict:
    """Each row gets the reward of a random row of its group, each reward once, on its own last action token."""
    group, rows = batch["group"], len(batch)
    random = torch.rand(rows, generator=torch.Generator().manual_seed(int(batch["row"][0])))
    there, here = random.argsort(), torch.arange(rows)
    there = there[group[there].argsort(stable=True)]
    here = here[group[here].argsort(stable=True)]
    score = torch.empty(rows).index_copy(0, here, batch["reward"].sum(-1)[there])
    time = torch.arange(batch["action"].shape[1])
    last = time == torch.where(batch["action"], time, -1).amax(-1, keepdim=True)
    return with_fields(batch, reward=torch.where(last, score[:, None], 0))
