"""FlowRL, matching the distribution of rewards: Zhu et al. 2025 (2509.15207).

FlowRL does not maximize the reward. It trains the policy to sample each completion with a probability proportional to
p_ref * exp(beta * reward), where p_ref is its probability under the reference model. The normalizer of this
distribution is the partition function Z of the prompt. The policy learns it with an additional head (trajectory
balance).

    A_i  = (s_i - mean_g) / (std_g + 1e-6)
    e_i  = log Z_i + (1 / n_i) sum_t (logp_it - ref_logp_it) - beta * A_i
    w_i  = clip(exp(sum_t (sg(logp_it) - old_logp_it)), 1 - clip_low, 1 + clip_high)
    loss = (1 / rows) sum_i w_i e_i^2

The trainer computes `log_partition` at every token. Like a critic's value, it depends only on the preceding tokens. Its
value at the first counted token of row i is log Z_i. This value depends on the prompt alone, unless a correction has
rejected tokens before that token.

s_i is the sum of all rewards of row i, and n_i its number of tokens. g is its group: the N_g rows of one prompt. `rows`
is the number of rows of the optimizer step. Losses, means and counts cover only tokens where `mask` is 1. sg() stops
the gradient.

Choices that differ between libraries:

- Log-ratios are averaged over the tokens of a row (length normalization).
- The standard deviation divides by N_g - 1.
- In a group of one row, every advantage is 0.

Metrics, means over the tokens where `mask` is 1:

- `policy/approx_kl`: k3 estimate of KL(old policy || policy), nats.
- `policy/weight`: weight w_i.
- `policy/log_partition`: log Z, at every token.
- `policy/entropy`: entropy of the next-token distribution, nats.

Differences from the paper:

1. log Z is a linear function of the hidden state before the token. The authors use a head with three layers.
2. log Z is read at the start of the completion. The authors' code computes it from the mean of the prompt's last hidden
   states.
3. `clip_low` and `clip_high` are 0.2, the default of the library that the authors' code is built on (unverified).
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos.algebra import Algorithm, bind, read_field
from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.corrections import sequence_importance_ratio
from purerl.algos.parts.divergences import k1
from purerl.algos.parts.elementwise import clip
from purerl.algos.parts.policy import approx_kl, policy_objective
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens, first_counted, row_mean
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage
from purerl.types import RowFloat, TensorDict, TokenBool, TokenFloat

__all__ = ["EXEMPTIONS", "Config", "algorithm", "balance_loss", "clipped_row_weight"]

EXEMPTIONS = {
    "episode_invariance": "the regression is of the log-ratio of a row, which need not be the whole episode",
    "gradient_matches_finite_differences": "the weight is detached, so the gradient is not the derivative of the loss",
    "reinforce_gradient_on_policy": "it is a regression on the reference's log-probability and a partition function",
}


@frozen(kw_only=True)
class Config:
    """Hyperparameters of FlowRL."""

    beta: float = number("mean log-ratio per unit of advantage, in nats", 15.0, above=0)
    clip_low: float = number("the weight of a row is at least 1 - clip_low", 0.2, min=0, max=1)
    clip_high: float = number("the weight of a row is at most 1 + clip_high", 0.2, min=0, infinite="no upper bound")


def clipped_row_weight(
    logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool, *, clip_low: float, clip_high: float
) -> RowFloat:
    """clip(exp(sum_t (logp_t - old_logp_t)), 1 - clip_low, 1 + clip_high) of each row, without gradient: [rows]."""
    return clip(sequence_importance_ratio(logp.detach(), old_logp, mask), 1 - clip_low, 1 + clip_high)


def balance_loss(log_partition: RowFloat, log_ratio: RowFloat, advantage: RowFloat, *, beta: float) -> RowFloat:
    """(log_partition + log_ratio - beta * advantage)^2: the squared error of trajectory balance. Shapes: [rows].

    >>> import torch
    >>> balance_loss(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([0.5]), beta=2.0)
    tensor([4.])
    """
    return (log_partition + log_ratio - beta * advantage).square()


def algorithm(config: Config = Config()) -> Algorithm:
    """Build FlowRL from `config`."""
    clip = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    policy = policy_objective(
        bind(_balance_loss, beta=config.beta, **clip),
        sequence_mean_of_token_mean,
        reads=("old_logp", "ref_logp", "advantage"),
        metrics={
            "approx_kl": approx_kl,
            "weight": bind(_clipped_row_weight, **clip),
            "log_partition": read_field("log_partition"),
        },
    )
    outputs = (*policy.outputs, "log_partition")
    return Algorithm(
        reads=("reward",),
        advantage=outcome_advantage(group_normalized_advantage),
        objectives=(policy._replace(outputs=outputs),),
        min_group_size=2,
    )


def _balance_loss(batch: TensorDict, *, beta: float, clip_low: float, clip_high: float) -> TokenFloat:
    mask = batch["mask"]
    log_ratio = row_mean(k1(batch["logp"], batch["ref_logp"]), mask)
    error = balance_loss(
        first_counted(batch["log_partition"], mask), log_ratio, row_mean(batch["advantage"], mask), beta=beta
    )
    return broadcast_to_tokens(error, mask) * _clipped_row_weight(batch, clip_low=clip_low, clip_high=clip_high)


def _clipped_row_weight(batch: TensorDict, *, clip_low: float, clip_high: float) -> TokenFloat:
    mask = batch["mask"]
    weight = clipped_row_weight(batch["logp"], batch["old_logp"], mask, clip_low=clip_low, clip_high=clip_high)
    return broadcast_to_tokens(weight, mask)
