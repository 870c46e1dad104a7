"""FlowRL: Zhu et al. 2025, Matching Reward Distributions for LLM Reasoning (2509.15207).

Instead of going for the highest reward alone, the policy is to sample each completion as often as its reward says: with
a probability proportional to the reference's times exp(beta * reward). What makes the two sides of that equation equal
is the prompt's partition function Z, which the policy learns along with it, by a head of its own: trajectory balance.

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    e_i  = log Z_i + (1 / n_i) sum_t (logp_it - ref_logp_it) - beta * A_i
    w_i  = clip(exp(sum_t (sg(logp_it) - old_logp_it)), 1 - clip_low, 1 + clip_high)
    loss = mean over rows of w_i e_i^2

`log_partition` is an output at each token, like a critic's value a function of what precedes it; a row's log Z is the
one at its first counted token: a function of the prompt alone, unless a correction has rejected what stood before it.

Choices, where libraries differ: log-probabilities are averaged over counted tokens (length normalization); the
standard deviation divides by N_g - 1; a group of one has A = 0.

Metrics, each a mean over counted tokens: `kl`, how far the policy has moved, k3, nats; `weight`; `log_partition`, at
every token; `entropy`, nats.

Differences from the paper:

1. log Z is read where the completion begins. The authors' code takes it from the mean of the prompt's last hidden
   states.
2. `clip_low` and `clip_high` are 0.2 each, which is the default of the code that theirs is built on [unverified].
"""

from __future__ import annotations

from attrs import frozen
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, bind, read
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.corrections import whole_row_ratio
from purerl.algos.parts.policy import moved, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens, first_counted, row_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import RowFloat, TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "balance_loss", "clipped_row_weight"]

EXEMPTIONS = {
    "gradient_matches_finite_differences": "the gradient of a row's weight is stopped",
    "reinforce_gradient_on_policy": "it regresses on the reference's log-probability and a partition function",
}


@frozen(kw_only=True)
class Config:
    """The hyper-parameters of FlowRL."""

    beta: float = number("nats of mean log-ratio per unit of advantage", 15.0, above=0)
    clip_low: float = number("how far a row's weight may fall below 1", 0.2, least=0, most=1)
    clip_high: float = number("how far a row's weight may rise above 1", 0.2, least=0)


def clipped_row_weight(
    logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool, *, clip_low: float, clip_high: float
) -> RowFloat:
    """clip(exp(sum_t (logp - old_logp)), 1 - clip_low, 1 + clip_high), without gradient."""
    return whole_row_ratio(logp.detach(), old_logp, mask).clamp(1 - clip_low, 1 + clip_high)


def balance_loss(log_partition: RowFloat, log_ratio: RowFloat, advantage: RowFloat, *, beta: float) -> RowFloat:
    """(log Z + log-ratio - beta * A)^2: by how much the balance of flows is off, squared.

    >>> import torch
    >>> balance_loss(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([0.5]), beta=2.0)
    tensor([4.])
    """
    return (log_partition + log_ratio - beta * advantage).square()


def algorithm(config: Config = Config()) -> Algorithm:
    """FlowRL as `config` sets it."""
    clip = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    policy = policy_objective(
        bind(_loss, beta=config.beta, **clip),
        sequence_mean_of_token_mean,
        reads=("old_logp", "ref_logp", "advantage"),
        metrics={"approx_kl": moved, "weight": bind(_weight, **clip), "log_partition": read("log_partition")},
        kl_loss_coef=0.0,
        entropy_coef=0.0,
    )
    outputs = (*policy.outputs, "log_partition")
    return Algorithm(
        ("reward",),
        outcome_advantage(group_normalized_advantage),
        (policy._replace(outputs=outputs),),
        min_group_size=2,
    )


def _loss(batch: TensorDict, *, beta: float, clip_low: float, clip_high: float) -> TokenFloat:
    mask = batch["mask"]
    log_ratio = row_mean(batch["logp"] - batch["ref_logp"], mask)
    error = balance_loss(
        first_counted(batch["log_partition"], mask), log_ratio, row_mean(batch["advantage"], mask), beta=beta
    )
    return broadcast_to_tokens(error, mask) * _weight(batch, clip_low=clip_low, clip_high=clip_high)


def _weight(batch: TensorDict, *, clip_low: float, clip_high: float) -> TokenFloat:
    mask = batch["mask"]
    weight = clipped_row_weight(batch["logp"], batch["old_logp"], mask, clip_low=clip_low, clip_high=clip_high)
    return broadcast_to_tokens(weight, mask)
