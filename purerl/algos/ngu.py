"""NGU, advantages by the success rate of a prompt: as in prime-rl, 2026.

In a group-relative advantage, a correct row of a prompt that is nearly always solved counts as much as one of a prompt
that has hardly ever been solved, if their groups are alike. NGU counts the attempts at each prompt over the whole run.
A correct row has the advantage 1 minus the success rate of its prompt, and the incorrect rows of the group share the
opposite.

    A_i = 1 - S / N                      if row i is correct
          -(1 - S / N) k / (N_g - k)     else
    S   <- S + sum_j c_j
    N   <- N + sum_j 1

Row i is correct, c_i = 1, if the sum of its rewards is at least `threshold`. k is the number of correct rows of its
group. S and N are the successes and attempts of its prompt, after the batch: the sums over j are over the rows of the
prompt in the batch. If all rows of a group are correct, or none, every advantage is 0. The rest is as in `grpo`.

A prompt is identified by `example`, its index in the data set. Indices from `prompts` on share the entries of earlier
ones (`example` modulo `prompts`).

Choices that differ between libraries:

- The history of a prompt includes the batch itself (unverified). When a prompt is drawn for the first time, its rows
  have the deviation from their mean as advantage.

Differences from the source:

1. Only the equation of the advantage was read. The loss is that of GRPO; prime-rl's own is the preset
   `importance@prime_rl`.
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, Transform, bind
from purerl.algos.estimators.history import history_advantage
from purerl.algos.estimators.trackers import sum_by_entry, table_lookup
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import integer, number
from purerl.batch import with_fields
from purerl.kernels.masks import any_true
from purerl.types import TensorDict

__all__ = ["EXEMPTIONS", "Config", "algorithm", "history_of_prompts"]

EXEMPTIONS = {
    "reward_shift_invariance": "a row is correct or not, by the absolute value of its reward",
    "reward_scale_equivariance": "a row is correct or not, by the absolute value of its reward",
    "group_independence": "groups of the same prompt have one history",
}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of NGU: the settings of GRPO, and those of the history."""

    threshold: float = number("a row is correct if the sum of its rewards is at least this", 0.5, unit="reward")
    prompts: int = integer("number of prompts that have a history of their own; the size of the data set", 65536, min=1)


def history_of_prompts(*, threshold: float, prompts: int) -> Transform:
    """Write `advantage`, by `history_advantage`.

    Reads `reward` and `example`. State: the successes and attempts of each prompt, float64 [prompts] each.
    """
    return Transform(bind(_no_attempts, prompts=prompts), bind(_add_batch, threshold=threshold, prompts=prompts))


def _no_attempts(*, prompts: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(prompts, dtype=torch.float64), torch.zeros(prompts, dtype=torch.float64)


def _add_batch(
    state: tuple[torch.Tensor, torch.Tensor], batch: TensorDict, *, threshold: float, prompts: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], TensorDict]:
    score, mask, key = batch["reward"].sum(-1), batch["mask"], batch["example"] % prompts
    counted, is_correct = any_true(mask), score >= threshold
    added = (sum_by_entry(state[0], x.to(score.dtype), key, counted) for x in (is_correct, counted))
    successes, attempts = (before + new for before, new in zip(state, added, strict=True))
    rate = table_lookup(successes / attempts.clamp(min=1), key).to(score.dtype)
    advantage = history_advantage(is_correct, rate, batch["group"], counted)
    return (successes, attempts), with_fields(batch, advantage=broadcast_to_tokens(advantage, mask))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build NGU from `config`."""
    advantage = history_of_prompts(threshold=config.threshold, prompts=config.prompts)
    return grpo.algorithm(config)._replace(reads=("reward", "example"), advantage=advantage)
