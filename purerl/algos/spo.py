"""SPO, single-stream policy optimization: Xu and Ding 2025 (2509.13232).

One completion for each prompt, and no critic: the baseline is the prompt's own rate of success, remembered from the
times that it was drawn before, older ones weighing less. Advantages are whitened over the whole batch, so there is no
group that could be without variance.

    v    = alpha / (alpha + beta)                                of the row's prompt, before the batch
    A    = whitened (s - v)                                      over the counted rows of the whole batch
    loss = token mean of max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
    alpha = decay * alpha + sum of s,   beta = decay * beta + sum of (1 - s)       over the prompt's rows

At first alpha = beta = 1 / (1 - decay) / 2: a rate of one half, that weighs as much as all that will be remembered.

A prompt is known by `example`, its index in the data set; indices from `prompts` on share the places of earlier ones.
Scores below 0 or above 1 are remembered as 0 or 1.

Choices, where libraries differ: the standard deviation divides by the number of rows less 1; every row weighs the same
in it. If a prompt has several rows in a batch, all of them have the same baseline and the older ones decay once.

Differences from the paper:

1. `decay` is constant. The paper's is 2^(-D / D_half), clipped to [0.875, 0.96], with D the divergence of the policy
   from the one that acted on the prompt last.
2. The first rate is one half; the paper estimates it from completions drawn beforehand.
3. Prompts are drawn as the data set has them; the paper prefers those with a rate near one half.
4. The bounds of the clip are GRPO's [unverified]. An entropy bonus may be added.
"""

from __future__ import annotations

import torch
from attrs import frozen
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Transform, bind
from purerl.algos.estimators.trackers import table_lookup, update_beta_counts
from purerl.algos.parts.policy import clipped_policy, token_level_ratio
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import integer, number
from purerl.algos.parts.whiten import whiten_rows
from purerl.batch import with_fields
from purerl.kernels.masks import any_true

__all__ = ["EXEMPTIONS", "Config", "algorithm", "tracked_advantage"]

EXEMPTIONS = {
    "group_independence": "advantages are whitened over the batch",
    "reward_shift_invariance": "the baseline is the prompt's rate of success so far, and does not see the shift",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of SPO."""

    decay: float = number("what is kept of a prompt's counts when it is drawn again", 0.9, above=0, max=0.999)
    prompts: int = integer("how many prompts are remembered: the size of the data set", 65536, min=1)
    clip_low: float = number("how far the ratio may fall below 1 before it is clipped", 0.2, min=0, max=1)
    clip_high: float = number("how far the ratio may rise above 1 before it is clipped", 0.2, min=0)
    entropy_coef: float = number("weight of the entropy bonus", 0.0, min=0)


def tracked_advantage(*, decay: float, prompts: int) -> Transform:
    """Writes `advantage`: the score less the prompt's rate of success, whitened over rows.

    State: alpha and beta, [prompts] each. Reads `reward` and `example`.
    """
    return Transform(bind(_even, decay=decay, prompts=prompts), bind(_tracked_advantage, decay=decay, prompts=prompts))


def _even(*, decay: float, prompts: int) -> tuple[Tensor, Tensor]:
    half = torch.full((prompts,), 0.5 / (1 - decay), dtype=torch.float64)
    return half, half.clone()


def _tracked_advantage(
    state: tuple[Tensor, Tensor], batch: TensorDict, *, decay: float, prompts: int
) -> tuple[tuple[Tensor, Tensor], TensorDict]:
    alpha, beta = state
    score, mask, key = batch["reward"].sum(-1), batch["mask"], batch["example"] % prompts
    counted = any_true(mask)
    advantage = whiten_rows(score - table_lookup(alpha / (alpha + beta), key).to(score.dtype), counted)
    state = update_beta_counts(alpha, beta, score, key, counted, decay=decay)
    return state, with_fields(batch, advantage=broadcast_to_tokens(advantage, mask))


def algorithm(config: Config = Config()) -> Algorithm:
    """SPO as `config` sets it."""
    policy = clipped_policy(
        token_level_ratio,
        token_mean,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_loss_coef=0.0,
        entropy_coef=config.entropy_coef,
    )
    advantage = tracked_advantage(decay=config.decay, prompts=config.prompts)
    return Algorithm(("reward", "example"), advantage, (policy,))
