"""KTO, Kahneman-Tversky optimization: Ethayarajh et al. 2024 (2402.01306).

KTO learns from completions that are labeled as desirable or undesirable, one by one. It needs no pairs. The log-ratio
of policy and reference model is an implicit reward, as in DPO. It is compared with a reference point: the KL divergence
of the policy from the reference model. As with gains and losses that people perceive, the further a reward is from the
reference point, the less a change of it matters.

    L_i  = sum_t (logp_it - ref_logp_it)
    z    = max(0, (1 / M) sum_j sum_t (old_logp_jt - ref_logp_jt))
    l_i  = desirable_weight (1 - sigmoid(beta (L_i - z)))      if i is desirable
           undesirable_weight (1 - sigmoid(beta (z - L_i)))    else
    loss = (1 / rows) sum_i l_i

The sum over j is over M mismatched rows: prompts with the completion of another prompt. They have no loss of their own.
`rows` is the number of the other rows of the optimizer step. Losses, means and counts cover only tokens where `mask`
is 1.

A data set has the columns `prompt`, `completion` and `label`. The loop makes a mismatched row for each completion: its
prompt with the completion of the next draw.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, not averaged.
- z is a constant of the optimizer step, over all of its mismatched rows. In TRL, each micro-batch has its own.

Metrics, means over rows with a loss:

- `policy/reference_point`: z, nats.
- `policy/desirable_reward`, `policy/undesirable_reward`: beta * L of the desirable and of the undesirable rows.

Differences from the paper:

1. z is estimated with the policy at the start of the update. In the first optimizer step of an update, it is the
   current policy.
2. A mismatched completion is that of the next draw. The paper shifts the completions of a micro-batch by one.
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, Term, Weighted, bind, identity, of_fields, write_field
from purerl.algos.parts.labels import kto_loss, matched_tokens, mismatched_kl
from purerl.algos.parts.policy import add_preparation
from purerl.algos.parts.preferences import relative_to
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens
from purerl.algos.parts.settings import number
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.kernels.masks import any_true
from purerl.types import RowBool, RowFloat, TensorDict, TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "the loss is of the log-ratio of a row, which need not be the whole episode",
    "group_independence": "the reference point is a mean over the whole optimizer step",
    "reinforce_gradient_on_policy": "it learns from labels and has no advantage",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of KTO."""

    beta: float = number("a larger beta keeps the policy closer to the reference model", 0.1, above=0)
    desirable_weight: float = number("factor of the loss of desirable completions", 1.0, above=0)
    undesirable_weight: float = number("factor of the loss of undesirable completions", 1.0, above=0)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build KTO from `config`."""
    weights = {"desirable_weight": config.desirable_weight, "undesirable_weight": config.undesirable_weight}
    labeled = Objective(
        role="policy",
        reads=("old_logp", "ref_logp", "desirable", "mismatched", "reference_point"),
        outputs=("logp",),
        # All tokens of a row have the same value, so the mean over its tokens is the value of the row.
        terms=(Term("labels", bind(_kto_loss, beta=config.beta, **weights), sequence_mean_of_token_mean),),
        prepare=write_field("reference_point", of_fields(_mismatched_kl, "old_logp", "ref_logp", "mismatched", "mask")),
        metrics=bind(_metrics, beta=config.beta),
        unit="group",  # so that each mini-batch has mismatched rows
    )
    labeled = add_preparation(labeled, write_field("mask", of_fields(matched_tokens, "mismatched", "mask")))
    return Algorithm(reads=(), advantage=identity, objectives=(labeled,))


_log_ratio = relative_to("ref_logp")


def _mismatched_kl(old_logp: TokenFloat, ref_logp: TokenFloat, mismatched: RowBool, mask: TokenBool) -> RowFloat:
    return mismatched_kl(sequence_log_ratio(old_logp, ref_logp, mask), mismatched, any_true(mask))


def _kto_loss(batch: TensorDict, **settings: float) -> TokenFloat:
    loss = kto_loss(_log_ratio(batch), batch["desirable"], batch["reference_point"], **settings)
    return broadcast_to_tokens(loss, batch["mask"])


def _metrics(batch: TensorDict, *, beta: float) -> dict[str, Weighted]:
    counted, reward = any_true(batch["mask"]), beta * _log_ratio(batch)
    rows = {
        "reference_point": (counted, batch["reference_point"]),
        "desirable_reward": (counted & batch["desirable"], reward),
        "undesirable_reward": (counted & ~batch["desirable"], reward),
    }
    return {
        name: Weighted(torch.where(where, value, 0).sum(-1), where.sum(-1)) for name, (where, value) in rows.items()
    }
