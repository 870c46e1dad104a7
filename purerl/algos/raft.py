"""RAFT++, reward-ranked fine-tuning with a clipped ratio: Xiong et al. 2025 (2504.11343).

RAFT (2304.06767) samples several completions of a prompt and fine-tunes on those with the highest reward, as SFT does.
Completions with a lower reward only decide which ones these are. RAFT++ has the importance ratio and the clip of PPO,
for several optimizer steps with the same rows. In the first one, both are the same.

    A_i  = rows / best_rows    if s_i = max_g > min_g
           0                   else
    r_it = exp(logp_it - old_logp_it)
    loss = -(1 / rows) sum_i (1 / n_i) sum_t A_i min(r_it, 1 + clip_high)

`rows` is the number of rows, and `best_rows` that of the rows with the best score of their group: the loss is a mean
over them. n_i is the number of tokens of row i. s_i is the sum of all rewards of row i. g is its group: the N_g rows of
one prompt. Losses, means and counts cover only tokens where `mask` is 1.

Choices that differ between libraries:

- Rows that tie for the highest reward are all used.
- A group with equal rewards is not used. With rewards of 0 and 1, these are prompts that are never solved, and those
  that always are.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/ratio`: importance ratio r_it. `policy/clip_fraction`, `policy/clip_fraction_low` and
  `policy/clip_fraction_high`: fractions of tokens that are clipped.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. The paper (of RAFT++) also uses prompts of which every completion is correct.
2. `best_rows` is the number in the whole batch, of several optimizer steps. The paper divides by that of the rows that
   are used.
3. `clip_high` is that of PPO (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm
from purerl.algos.estimators.group_relative import best_of_group_advantage
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {"group_independence": "the weight of the best rows depends on their number in the whole batch"}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of RAFT++."""

    clip_high: float = number(
        "upper clip offset: the ratio is clipped above 1 + clip_high", 0.2, min=0, infinite="not clipped"
    )


def algorithm(config: Config = Config()) -> Algorithm:
    """Build RAFT++ from `config`."""
    policy = clipped_policy(token_level_ratio, sequence_mean_of_token_mean, clip_low=1.0, clip_high=config.clip_high)
    return Algorithm(
        reads=("reward",), advantage=outcome_advantage(best_of_group_advantage), objectives=(policy,), min_group_size=2
    )
