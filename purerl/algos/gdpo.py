"""GDPO, group reward-decoupled normalization policy optimization: 2026 (2601.05242).

GDPO is GRPO for several reward functions. If the rewards are summed before they are normalized, a reward with a large
range dominates the others, and rows with the same sum of different rewards are treated alike. GDPO normalizes each
reward within the group, sums the results, and whitens the sum over the batch. The scale of the advantage then does not
depend on the number of rewards.

    A_ik = (c_ik - mean_g(c_k)) / (std_g(c_k) + 1e-6)
    A_i  = sum_k w_k A_ik
    Aw_i = A_i / (std(A) + 1e-8)
    r_it = exp(logp_it - old_logp_it)
    l_it = max(-Aw_i r_it, -Aw_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss = (1 / rows) sum_i (1 / n_i) sum_t l_it

c_ik is reward k of row i, from the field `components`, [rows, k]; the field `reward` is not read. w_k is the weight of
reward k. std(A) is over the rows of the whole batch. Whitening subtracts no mean, because the mean of A is 0 in every
group.

n_i is the number of tokens of row i, and g its group: the rows of one prompt. Losses, means and counts cover only
tokens where `mask` is 1.

Choices that differ between libraries:

- Standard deviations divide by the number of rows minus 1.
- Every row has the same weight in the whitening, independent of its length.
- In a group of one row, every advantage is exactly 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind, stateless, write_field
from purerl.algos.estimators.components import component_normalized_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number, numbers
from purerl.algos.parts.whiten import EPS, standard_deviation
from purerl.kernels.masks import any_true
from purerl.types import TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "advantages are whitened over the whole batch"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of GDPO."""

    weights: tuple[float, ...] = numbers(
        "weight of each reward, in the order of the reward functions; by default each is 1"
    )
    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build GDPO from `config`."""
    policy = clipped_policy(
        token_level_ratio,
        sequence_mean_of_token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    advantage = stateless(write_field("advantage", bind(_component_normalized_advantage, weights=config.weights)))
    return Algorithm(("components",), advantage, (policy,), min_group_size=2)


def _component_normalized_advantage(batch: TensorDict, *, weights: tuple[float, ...]) -> TokenFloat:
    counted = any_true(batch["mask"])
    advantage = component_normalized_advantage(batch["components"], batch["group"], counted, weights=weights)
    std = standard_deviation(advantage.unsqueeze(-1), counted.unsqueeze(-1)).unsqueeze(-1)
    return broadcast_to_tokens(advantage / (std + EPS), batch["mask"])
