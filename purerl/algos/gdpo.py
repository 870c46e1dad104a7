"""GDPO, group reward-decoupled normalization policy optimization: 2026 (2601.05242).

GDPO is GRPO for several reward functions. If the rewards are summed before they are normalized, a reward with a large
range dominates the others, and rows with the same sum of different rewards are treated alike. GDPO normalizes each
reward within the group, sums the results, and whitens the sum over the batch. The scale of the advantage then does not
depend on the number of rewards.

    A_ik = (c_ik - mean_g(c_k)) / (std_g(c_k) + 1e-6)
    A_i  = sum_k w_k A_ik
    Aw_i = A_i / (std(A) + 1e-8)
    l_it = max(-Aw_i r_it, -Aw_i clip(r_it, 1 - clip_low, 1 + clip_high))

c_ik is reward k of row i, from the field `components`, [rows, k]; the field `reward` is not read. w_k is the weight of
reward k. std(A) is over the rows of the whole batch. Whitening subtracts no mean, because the mean of A is 0 in every
group. The rest is as in `grpo`.

Choices that differ between libraries:

- Standard deviations divide by the number of rows minus 1.
- Every row has the same weight in the whitening, independent of its length.
- In a group of one row, every advantage is exactly 0.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, bind, stateless, write_field
from purerl.algos.estimators.components import component_normalized_advantage
from purerl.algos.parts.elementwise import add_eps
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import numbers
from purerl.algos.parts.whiten import EPS, standard_deviation
from purerl.kernels.masks import any_true
from purerl.types import TensorDict, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are whitened over the whole batch"}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of GDPO: the settings of GRPO, and the weights."""

    weights: tuple[float, ...] = numbers(
        "weight of each reward, in the order of the reward functions; by default each is 1"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GDPO from `config`."""
    advantage = stateless(write_field("advantage", bind(_component_normalized_advantage, weights=config.weights)))
    return grpo.algorithm(config)._replace(reads=("components",), advantage=advantage)


def _component_normalized_advantage(batch: TensorDict, *, weights: tuple[float, ...]) -> TokenFloat:
    counted = any_true(batch["mask"])
    advantage = component_normalized_advantage(batch["components"], batch["group"], counted, weights=weights)
    std = standard_deviation(advantage.unsqueeze(-1), counted.unsqueeze(-1)).unsqueeze(-1)
    return broadcast_to_tokens(advantage / add_eps(std, EPS), batch["mask"])
