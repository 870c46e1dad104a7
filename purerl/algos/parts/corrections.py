"""Off-policy corrections: importance weights and rejection for rows that another policy sampled.

The rollout policy mu (`rollout_logp`) differs from the old policy (`old_logp`), the policy at the start of the update,
if the generator uses other kernels or another precision than the trainer, or if its weights are some steps old. At each
token the difference is lr = old_logp - rollout_logp, nats. There are two kinds of corrections, which can be combined:
weights multiply the loss by an importance ratio, so that means are taken under the old policy; rejection clears `mask`
at tokens or rows with a large difference.

    exp(lr_t)                                  the importance ratio of a token
    exp(sum_t lr_t)                            the importance ratio of a row
    truncated_ratio, banded_ratio              weights from a ratio: TIS, IcePop
    clamped_ratio                              a weight with two bounds
    k1, k2 or k3 of (rollout_logp, old_logp)   the difference at a token, for rejection
    row_sum, row_mean or row_max of it         the difference of a row; exp(-mean k1) is the geometric mean ratio

`with_corrections(algorithm, *corrections)` applies them before everything else that an algorithm does. A correction is
a function batch -> batch that multiplies `weight` or clears a part of `mask`. A rejected token or row has no effect on
the numerator, on the denominator, or on the baseline of its group. Calls can be nested:
with_corrections(with_corrections(algorithm, a), b) equals with_corrections(algorithm, b, a).

Metrics that it adds. All but the last are means over the counted tokens that remain:

    weight               the importance weight of the policy loss
    weight_square        its square; weight^2 / weight_square is the `effective_sample_size`
    chi2                 exp(2 lr) - 1, an estimate of the divergence chi^2(old || mu), without weights
    log_perplexity_gap   rollout_logp - old_logp, nats: log perplexity under the old policy minus the one under mu
    rejected_fraction    the fraction of the counted tokens that the corrections rejected

Sources: truncated importance sampling, Yao et al. 2025; IcePop (2510.18855); geometric rejection (2512.23075);
decoupled PPO (2110.00641, 2505.24298); sequence masking, DeepSeek-V3.2 (2512.02556).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.algebra import (
    Algorithm,
    Bound,
    Objective,
    Term,
    Weighted,
    bind,
    chain,
    of_fields,
    read_field,
    stateless,
)
from purerl.algos.parts.elementwise import clip
from purerl.algos.parts.log_ratios import log_ratio
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.surrogates import LOG_RATIO_BOUND, sequence_log_ratio, token_ratio
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.kernels.masks import any_true, count_true, masked
from purerl.types import RowFloat, Scalar, TensorDict, TokenBool, TokenFloat

__all__ = [
    "banded_ratio",
    "clamped_ratio",
    "effective_sample_size",
    "geometric_mean_weight",
    "mask_off_policy_sequences",
    "off_policy_tokens",
    "reject_rows",
    "reject_rows_with_outlier_token",
    "reject_tokens",
    "sequence_importance_ratio",
    "sequence_weight",
    "token_weight",
    "truncated_ratio",
    "weighted_loss",
    "with_corrections",
]


# --- equations ---------------------------------------------------------------------------------------------------


def sequence_importance_ratio(logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool) -> RowFloat:
    """Compute the importance ratio of each row: the product of the ratios of its counted tokens.

        R_i = exp(sum_t m_it (logp_it - old_logp_it))

    The sum is clamped to +-20 before `exp`. A row without counted tokens has the ratio 1. `sequence_ratio` (GSPO) takes
    the geometric mean instead of the product. Shapes: [rows, time] each, in nats; the result is [rows].
    """
    return sequence_log_ratio(logp, old_logp, mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def truncated_ratio(ratio: torch.Tensor, *, ratio_cap: float) -> torch.Tensor:
    """Compute the weight of truncated importance sampling (TIS).

        w = min(r, ratio_cap)

    The cap bounds the variance and introduces a bias. Shapes: any; the result has the shape of `ratio`.
    Source: Yao et al. 2025.

    >>> truncated_ratio(torch.tensor([[0.1, 9.0]]), ratio_cap=2.0)
    tensor([[0.1000, 2.0000]])
    """
    return ratio.clamp(max=ratio_cap)


def banded_ratio(ratio: torch.Tensor, *, min_ratio: float, max_ratio: float) -> torch.Tensor:
    """Compute the weight of IcePop: the ratio if it is in a band, else 0.

        w = r    if min_ratio <= r <= max_ratio
            0    else

    A token with the weight 0 stays in the denominator. Shapes: any; the result has the shape of `ratio`.
    Source: IcePop (2510.18855).

    >>> banded_ratio(torch.tensor([[0.1, 2.0, 9.0]]), min_ratio=0.5, max_ratio=5.0)
    tensor([[0., 2., 0.]])
    """
    return torch.where(_is_between(ratio, min_ratio, max_ratio), ratio, 0)


def clamped_ratio(ratio: torch.Tensor, *, min_ratio: float, max_ratio: float) -> torch.Tensor:
    """Compute a weight that is bounded on both sides.

        w = min(max(r, min_ratio), max_ratio)

    Unlike with `banded_ratio`, a token outside of the bounds keeps a weight. Shapes: any; the result has the shape of
    `ratio`.

    >>> clamped_ratio(torch.tensor([[0.1, 2.0, 9.0]]), min_ratio=0.5, max_ratio=5.0)
    tensor([[0.5000, 2.0000, 5.0000]])
    """
    return clip(ratio, min_ratio, max_ratio)


def _is_between(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return (x >= low) & (x <= high)


def effective_sample_size(weight: TokenFloat, mask: TokenBool) -> Scalar:
    """Compute the effective sample size of the weights of counted tokens, as a fraction of their number n.

        ESS = (sum_t w_t)^2 / (n sum_t w_t^2)

    The value is 1 if all weights are equal, 1/n if only one weight is not 0, and 0 if no token is counted or all
    weights are 0. Shapes: [rows, time] each; the result is a scalar.

    >>> effective_sample_size(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[True, True, True, True]]))
    tensor(0.5000)
    """
    counted = torch.atleast_2d(masked(weight, mask))
    total, squares = counted.sum((-2, -1)), counted.square().sum((-2, -1))
    divisor = count_true(mask).sum(-1) * squares
    return torch.where(divisor > 0, total.square() / torch.where(divisor > 0, divisor, 1), 0)


def off_policy_tokens(
    logp: TokenFloat, rollout_logp: TokenFloat, advantage: TokenFloat, mask: TokenBool, *, delta: float
) -> TokenBool:
    """Select the tokens that off-policy sequence masking removes from the policy loss.

        d_it = 1    if A_it < 0 and (1 / n_i) sum_t m_it (rollout_logp_it - logp_it) > delta
               0    else

    These are tokens with a negative advantage, in rows that the current policy finds less likely than the rollout
    policy did. n_i is the number of counted tokens of the row, and `delta` is in nats. The result is False at tokens
    that are not counted. Shapes: [rows, time] each.
    Source: off-policy sequence masking, DeepSeek-V3.2 (2512.02556).

    >>> logp, mu, mask = torch.tensor([[-5.0, -3.0]]), torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, True]])
    >>> off_policy_tokens(logp, mu, torch.tensor([[-1.0, 1.0]]), mask, delta=2.0)
    tensor([[ True, False]])
    """
    distance = row_mean(log_ratio(rollout_logp, logp.detach()), mask)
    return mask & (advantage < 0) & (distance > delta).unsqueeze(-1)


# --- corrections: batch -> batch ---------------------------------------------------------------------------------


def token_weight(weight: Callable[[torch.Tensor], torch.Tensor]) -> Bound:
    """Return a correction that multiplies `weight` by `weight(r_t)`, with r_t = exp(lr_t) at each token.

    The log-ratio is clamped to +-20. The result is 0 at tokens that are not counted.
    """
    return bind(_token_weight, weight=weight)


def _token_weight(batch: TensorDict, *, weight: Callable) -> TensorDict:
    factor = weight(token_ratio(batch["old_logp"], batch["rollout_logp"]))
    return with_fields(batch, weight=masked(batch["weight"] * factor, batch["mask"]))


def sequence_weight(weight: Callable[[torch.Tensor], torch.Tensor]) -> Bound:
    """Return a correction that multiplies `weight` by `weight(R_i)`, with R_i the importance ratio of the row.

    R_i is `sequence_importance_ratio`. The result is 0 at tokens that are not counted.
    """
    return bind(_sequence_weight, weight=weight)


def _sequence_weight(batch: TensorDict, *, weight: Callable) -> TensorDict:
    factor = weight(sequence_importance_ratio(batch["old_logp"], batch["rollout_logp"], batch["mask"]))
    return with_fields(batch, weight=batch["weight"] * broadcast_to_tokens(factor, batch["mask"]))


def geometric_mean_weight(weight: Callable[[torch.Tensor], torch.Tensor]) -> Bound:
    """Return a correction that multiplies `weight` by the geometric mean of `weight(r_t)` over the row.

    r_t is that of `token_weight`. A row with a token of weight 0 has the weight 0. The result is 0 at tokens that are
    not counted.
    """
    return bind(_geometric_mean_weight, weight=weight)


def _geometric_mean_weight(batch: TensorDict, *, weight: Callable) -> TensorDict:
    factors = weight(token_ratio(batch["old_logp"], batch["rollout_logp"]))
    mean = row_mean(factors.log(), batch["mask"]).exp()
    return with_fields(batch, weight=batch["weight"] * broadcast_to_tokens(mean, batch["mask"]))


def reject_tokens(measure: Callable, *, min_value: float, max_value: float) -> Bound:
    """Return a correction that rejects tokens: measure(rollout_logp, old_logp) outside of [min_value, max_value]."""
    measure = of_fields(measure, "rollout_logp", "old_logp")
    return bind(_reject_tokens, measure=measure, min_value=min_value, max_value=max_value)


def _reject_tokens(batch: TensorDict, *, measure: Callable, min_value: float, max_value: float) -> TensorDict:
    return with_fields(batch, mask=batch["mask"] & _is_between(measure(batch), min_value, max_value))


def reject_rows(measure: Callable, aggregate: Callable, *, min_value: float, max_value: float) -> Bound:
    """Return a correction that rejects rows by aggregate(measure(rollout_logp, old_logp), mask).

    A row is rejected if the value lies outside of [min_value, max_value]. With k1 and `row_mean`, this bounds the
    geometric mean of the ratios of the row (2512.23075).
    """
    measure = of_fields(measure, "rollout_logp", "old_logp")
    return bind(_reject_rows, measure=measure, aggregate=aggregate, min_value=min_value, max_value=max_value)


def _reject_rows(
    batch: TensorDict, *, measure: Callable, aggregate: Callable, min_value: float, max_value: float
) -> TensorDict:
    mask = batch["mask"]
    is_kept = _is_between(aggregate(measure(batch), mask), min_value, max_value)
    return with_fields(batch, mask=mask & is_kept.unsqueeze(-1))


def reject_rows_with_outlier_token(measure: Callable, *, min_value: float, max_value: float) -> Bound:
    """Return a correction that rejects a row if any of its counted tokens would be rejected by `reject_tokens`."""
    measure = of_fields(measure, "rollout_logp", "old_logp")
    return bind(_reject_rows_with_outlier_token, measure=measure, min_value=min_value, max_value=max_value)


def _reject_rows_with_outlier_token(
    batch: TensorDict, *, measure: Callable, min_value: float, max_value: float
) -> TensorDict:
    outlier = batch["mask"] & ~_is_between(measure(batch), min_value, max_value)
    return with_fields(batch, mask=batch["mask"] & ~any_true(outlier).unsqueeze(-1))


# --- algorithms --------------------------------------------------------------------------------------------------


def weighted_loss(loss: Callable[[TensorDict], TokenFloat]) -> Bound:
    """Return the loss `loss` times the field `weight`."""
    return bind(_weighted_loss, loss=loss)


def _weighted_loss(batch: TensorDict, *, loss: Callable) -> TokenFloat:
    return batch["weight"] * loss(batch)


def with_corrections(algorithm: Algorithm, *corrections: Callable[[TensorDict], TensorDict]) -> Algorithm:
    """Return `algorithm` with `corrections` before its estimator, and with `weighted_loss` as its policy loss.

    Only the term ``policy`` is weighted. A KL term or an entropy bonus is not.

    Raises: ConfigError for an algorithm whose policy has no such term, for example one that learns from pairs.
    """
    _require_policy_term(algorithm)
    first = stateless(bind(_correct, corrections=corrections))
    return algorithm._replace(
        reads=tuple(dict.fromkeys((*algorithm.reads, "old_logp", "rollout_logp"))),
        advantage=chain(first, algorithm.advantage),
        objectives=tuple(_with_weight(o) if o.role == "policy" else o for o in algorithm.objectives),
    )


def _require_policy_term(algorithm: Algorithm) -> None:
    terms = [term.name for objective in algorithm.objectives if objective.role == "policy" for term in objective.terms]
    if "policy" not in terms:
        got = f"the loss {' + '.join(terms)}" if terms else "an algorithm that trains no policy"
        raise ConfigError("has no effect", got=got, need="an algorithm with a policy gradient or a surrogate of it")


def _correct(batch: TensorDict, *, corrections: tuple[Callable, ...]) -> TensorDict:
    mask = batch["mask"]
    if "weight" not in batch.keys():
        batch = with_fields(batch, weight=mask.to(batch["old_logp"].dtype), rejected=torch.zeros_like(mask))
    for correction in corrections:
        batch = correction(batch)
    return with_fields(batch, rejected=batch["rejected"] | mask & ~batch["mask"])


def _with_weight(objective: Objective) -> Objective:
    if "weight" in objective.reads:
        return objective
    return objective._replace(
        reads=tuple(dict.fromkeys((*objective.reads, "old_logp", "rollout_logp", "weight", "rejected"))),
        terms=tuple(t._replace(loss=weighted_loss(t.loss)) if t.name == "policy" else t for t in objective.terms),
        metrics=bind(_metrics, metrics=objective.metrics),
    )


def _square(weight: TokenFloat) -> TokenFloat:
    return weight.square()


def _chi2(old_logp: TokenFloat, rollout_logp: TokenFloat) -> TokenFloat:
    return token_ratio(old_logp, rollout_logp).square() - 1


_correction_means = token_means(
    weight=read_field("weight"),
    weight_square=of_fields(_square, "weight"),
    chi2=of_fields(_chi2, "old_logp", "rollout_logp"),
    log_perplexity_gap=of_fields(log_ratio, "rollout_logp", "old_logp"),
)


def _metrics(batch: TensorDict, *, metrics: Callable) -> dict[str, Weighted]:
    rejected, remaining = batch["rejected"].sum((-2, -1)), batch["mask"].sum((-2, -1))
    rejected_fraction = Weighted(rejected, rejected + remaining)
    return {**metrics(batch), **_correction_means(batch), "rejected_fraction": rejected_fraction}


def mask_off_policy_sequences(algorithm: Algorithm, *, delta: float) -> Algorithm:
    """Return `algorithm` with a policy loss of 0 at `off_policy_tokens`.

    These tokens stay in the denominators, and in the other terms of the loss.

    Raises: ConfigError as `with_corrections`.
    """
    _require_policy_term(algorithm)
    return algorithm._replace(
        objectives=tuple(_mask_objective(o, delta) if o.role == "policy" else o for o in algorithm.objectives)
    )


def _mask_objective(objective: Objective, delta: float) -> Objective:
    masked = of_fields(off_policy_tokens, "logp", "rollout_logp", "advantage", "mask", delta=delta)
    terms = tuple(_mask_term(term, masked) if term.name == "policy" else term for term in objective.terms)
    reads = tuple(dict.fromkeys((*objective.reads, "rollout_logp", "advantage")))
    return objective._replace(reads=reads, terms=terms)


def _mask_term(term: Term, masked: Callable) -> Term:
    return term._replace(loss=bind(_masked_loss, loss=term.loss, masked=masked))


def _masked_loss(batch: TensorDict, *, loss: Callable, masked: Callable) -> TokenFloat:
    return torch.where(masked(batch), 0, loss(batch))
