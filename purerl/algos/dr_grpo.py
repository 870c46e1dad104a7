"""Dr. GRPO, GRPO done right: Liu et al. 2025, Understanding R1-Zero-Like Training (2503.20783).

GRPO has two biases. Dividing by the standard deviation of a group gives more weight to very easy and very hard prompts.
Dividing the loss of a row by its length favors short correct completions and long incorrect ones. Dr. GRPO removes both
divisions. Its gradient is the gradient of the expected reward, times a constant.

    A_i  = s_i - mean_g
    r_it = exp(logp_it - old_logp_it)
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - clip_low, 1 + clip_high))
    loss = (1 / (rows * norm_length)) sum_it l_it

s_i is the sum of all rewards of row i. g is its group: the N_g rows of one prompt. `rows` is the number of rows of the
optimizer step. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- `norm_length` is the same for every batch. A batch of long completions therefore has a larger loss.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it.
- `policy/clip_fraction`: fraction of tokens whose loss is clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind
from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import constant_norm
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["Config", "algorithm"]


@frozen(kw_only=True)
class Config:
    """Hyperparameters of Dr. GRPO."""

    clip_low: float = number("lower clip offset: the ratio is clipped below 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0)
    norm_length: float = number(
        "constant that divides the sum over tokens, for example the maximum length", 1024, above=0, unit="tokens"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build Dr. GRPO from `config`."""
    policy = clipped_policy(
        token_level_ratio,
        bind(constant_norm, length=config.norm_length),
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    return Algorithm(("reward",), outcome_advantage(group_centered_advantage), (policy,), min_group_size=2)
