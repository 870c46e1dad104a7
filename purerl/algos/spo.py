"""SPO, single-stream policy optimization: Xu and Ding 2025 (2509.13232).

SPO needs one completion per prompt and no critic. The baseline is the success rate of the prompt, tracked over earlier
batches; older results have less weight. Advantages are whitened over the whole batch. There are no groups, so there are
no groups without variance.

    v_i   = alpha / (alpha + beta)
    A_i   = s_i - v_i
    Aw_i  = (A_i - mean(A)) / (std(A) + 1e-8)
    loss  = (1 / tokens) sum_it max(-Aw_i r_it, -Aw_i clip(r_it, 1 - clip_low, 1 + clip_high))
    alpha <- decay * alpha + sum_j s_j
    beta  <- decay * beta + sum_j (1 - s_j)

s_i is the sum of all rewards of row i. alpha and beta are the tracked successes and failures of its prompt, before the
batch. The sums over j are over the rows of the prompt in the batch. mean(A) and std(A) are over the rows of the batch.
`tokens` is the number of tokens of the optimizer step. The ratio and the metrics are as in `grpo`.

At first, alpha = beta = 1 / (2 (1 - decay)): a success rate of 1/2, with the weight that the tracker has in the long
run.

A prompt is identified by `example`, its index in the data set. Indices from `prompts` on share the entries of earlier
ones (`example` modulo `prompts`). Scores are clamped to [0, 1] before they are tracked.

Choices that differ between libraries:

- The standard deviation divides by the number of rows minus 1. Every row has the same weight in it.
- If a prompt has several rows in a batch, they have the same baseline, and the earlier counts decay once.

Differences from the paper:

1. `decay` is constant. In the paper it is 2^(-D / D_half), clipped to [0.875, 0.96]. D is the divergence of the policy
   from the one that was last used for the prompt.
2. The initial success rate is 1/2. The paper estimates it from completions that are sampled beforehand.
3. Prompts are drawn in the order of the data set. The paper prefers prompts with a success rate near 1/2.
4. The clip offsets are GRPO's (unverified).
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm, Transform, bind
from purerl.algos.estimators.trackers import table_lookup, update_beta_counts
from purerl.algos.modifiers import reduction
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import integer, number
from purerl.algos.parts.whiten import whiten_rows
from purerl.batch import with_fields
from purerl.composition import with_modifiers
from purerl.kernels.masks import any_true
from purerl.types import TensorDict

__all__ = ["EXEMPTIONS", "Config", "algorithm", "tracked_advantage"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the whole batch",
    "reward_shift_invariance": "the baseline comes from earlier batches and does not depend on the shift",
}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of SPO: the settings of GRPO, and those of the tracker."""

    decay: float = number("decay of a prompt's counts per batch in which it is drawn", 0.9, above=0, max=0.999)
    prompts: int = integer("number of prompts that are tracked; the size of the data set", 65536, min=1)


def tracked_advantage(*, decay: float, prompts: int) -> Transform:
    """Write `advantage`: the score minus the success rate of the prompt, whitened over rows.

    Reads `reward` and `example`. State: alpha and beta, the tracked successes and failures, float64 [prompts] each.
    """
    return Transform(
        bind(_initial_counts, decay=decay, prompts=prompts), bind(_tracked_advantage, decay=decay, prompts=prompts)
    )


def _initial_counts(*, decay: float, prompts: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.full((prompts,), 0.5 / (1 - decay), dtype=torch.float64)
    return count, count.clone()


def _tracked_advantage(
    state: tuple[torch.Tensor, torch.Tensor], batch: TensorDict, *, decay: float, prompts: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], TensorDict]:
    alpha, beta = state
    score, mask, key = batch["reward"].sum(-1), batch["mask"], batch["example"] % prompts
    counted = any_true(mask)
    advantage = whiten_rows(score - table_lookup(alpha / (alpha + beta), key).to(score.dtype), counted)
    state = update_beta_counts(alpha, beta, score, key, counted, decay=decay)
    return state, with_fields(batch, advantage=broadcast_to_tokens(advantage, mask))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build SPO from `config`."""
    advantage = tracked_advantage(decay=config.decay, prompts=config.prompts)
    base = with_modifiers(grpo.algorithm(config), reduction.Config(by="token_mean"))
    return base._replace(reads=("reward", "example"), advantage=advantage, min_group_size=1)
