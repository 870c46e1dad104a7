"""GDPO, group reward-decoupled normalization policy optimization: 2026 (2601.05242).

GRPO for several rewards. Added up first and normalized then, rewards with a large range drown the others, and rows with
the same sum of different rewards look the same. So each reward is normalized within the group by itself; then they are
added up, and their sum is whitened over the batch, so that its size does not depend on how many there are. Its mean is
0 already, for it is in every group.

    A_ik = (c_ik - mean_g c_k) / (std_g c_k + 1e-6)              c_ik: component k of row i
    A_i  = sum_k w_k A_ik
    Aw   = A / (std + 1e-8)                                      std of A over the counted rows of the whole batch
    loss = mean over rows of the mean over tokens of max(-Aw_i r_it, -Aw_i clip(r_it, 1 - clip_low, 1 + clip_high))

The rewards come as the field `components`, [rows, k]; `reward` is not read.

Choices, where libraries differ: standard deviations divide by the number of rows less 1; every row weighs the same in
the whitening, whatever its length; a group of one has advantage 0, exactly.

Differences from the paper:

1. A divergence from the reference (`kl_loss_coef`) and an entropy bonus may be added.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind, stateless, writes
from purerl.algos.estimators.components import component_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, per_token
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number, numbers
from purerl.algos.parts.whiten import EPS, deviation
from purerl.kernels.masks import any_true
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are whitened over the batch"}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of GDPO."""

    weights: tuple[float, ...] = numbers("weight of each component, in the order of the rewards; none: each weighs 1")
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, least=0, most=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, least=0)
    kl_loss_coef: float = number("weight of the divergence from the reference in the loss", 0.0, least=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, least=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """GDPO as `config` sets it."""
    policy = clipped_policy(
        per_token,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=config.kl_loss_coef,
        entropy_coef=config.entropy_coef,
    )
    advantage = stateless(writes("advantage", bind(_component_normalized_advantage, weights=config.weights)))
    return Algorithm(("components",), advantage, (policy,), min_group_size=2)


def _component_normalized_advantage(batch: TensorDict, *, weights: tuple[float, ...]) -> TokenFloat:
    counted = any_true(batch["mask"])
    advantage = component_normalized_advantage(batch["components"], batch["group"], counted, weights=weights)
    std = deviation(advantage.unsqueeze(-1), counted.unsqueeze(-1)).unsqueeze(-1)
    return broadcast_to_tokens(advantage / (std + EPS), batch["mask"])
