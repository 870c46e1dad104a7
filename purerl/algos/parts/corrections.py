"""Corrections for rows that another policy sampled: an engine with other arithmetic, or weights of some steps ago.

The policy that sampled is mu (`rollout_logp`), the one that the update begins with is old (`old_logp`); how far they
are apart at a token is lr = old_logp - rollout_logp. There are two remedies, and they go together: to *weigh* by an
importance ratio, so that means are those under the old policy, and to *reject* what is too far away.

    exp(lr_t), or of a row exp(sum_t lr_t)          the ratio; `truncated` above, or `banded`: 0 outside of a band
    k1, k2 or k3 of (rollout_logp, old_logp)        a measure of the distance, at each token
    row_sum, row_mean, row_max                      of a row; exp(-mean k1) is the geometric mean of its ratios

`corrected(algorithm, *corrections)` puts them ahead of everything else that an algorithm does. A correction is a
function batch -> batch that multiplies `weight` or clears part of `mask`. What is rejected leaves every effect:
numerator, denominator, and the baseline of its group. `weighted` multiplies a loss by `weight`. An algorithm that is
corrected already takes more of them: corrected(corrected(algorithm, a), b) is corrected(algorithm, b, a).

Metrics that it adds, means over counted tokens, so over what is left:

    weight, weight_square   effective_sample_size of the tokens is weight^2 / weight_square
    chi2                    exp(2 lr) - 1: the variance of the ratio, were nothing weighed
    log_perplexity_gap      rollout_logp - old_logp, nats: log of the perplexity under old less that under mu
    rejected                the share of tokens that the corrections took out, of those that counted before

Sources: truncated importance sampling, Yao et al. 2025; IcePop (2510.18855); geometric rejection (2512.23075);
decoupled PPO (2110.00641, 2505.24298); sequence masking, DeepSeek-V3.2 (2512.02556).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Bound, Objective, Term, Weighted, bind, chain, of_fields, read, stateless
from purerl.algos.parts.metrics import token_means
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean
from purerl.algos.parts.surrogates import LOG_RATIO_BOUND, sequence_log_ratio, token_ratio
from purerl.batch import with_fields
from purerl.kernels.masks import any_true, count_true
from purerl.types import RowFloat, Scalar, TokenBool, TokenFloat

__all__ = [
    "banded",
    "corrected",
    "effective_sample_size",
    "reject_rows",
    "reject_rows_with_token",
    "reject_tokens",
    "sequence_masked",
    "stale",
    "token_weight",
    "truncated",
    "weighted",
    "whole_row_ratio",
    "whole_row_weight",
]


# --- on tensors --------------------------------------------------------------------------------------------------


def whole_row_ratio(logp: TokenFloat, old_logp: TokenFloat, mask: TokenBool) -> RowFloat:
    """How much likelier each row has become as a whole: exp(sum_t (logp_t - old_logp_t)), the sum clamped to +-20."""
    return sequence_log_ratio(logp, old_logp, mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def truncated(ratio: Tensor, *, cap: float) -> Tensor:
    """min(ratio, cap), of tokens or of rows: TIS. The variance is bounded, at the price of a bias.

    >>> truncated(torch.tensor([[0.1, 9.0]]), cap=2.0)
    tensor([[0.1000, 2.0000]])
    """
    return ratio.clamp(max=cap)


def banded(ratio: Tensor, *, least: float, most: float) -> Tensor:
    """The ratio, of tokens or of rows, where it lies in [least, most], 0 elsewhere: IcePop. It counts in denominators.

    >>> banded(torch.tensor([[0.1, 2.0, 9.0]]), least=0.5, most=5.0)
    tensor([[0., 2., 0.]])
    """
    return torch.where((ratio >= least) & (ratio <= most), ratio, 0)


def effective_sample_size(weight: TokenFloat, mask: TokenBool) -> Scalar:
    """(sum w)^2 / (n sum w^2) over the counted tokens: the share of them that as good an equal-weight sample has.

    1 where all weights are equal, 1/n where one has all of it, 0 where nothing is counted or weighs anything.

    >>> effective_sample_size(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[True, True, True, True]]))
    tensor(0.5000)
    """
    counted = torch.where(mask, weight, 0)
    total, squares = counted.sum((-2, -1)), counted.square().sum((-2, -1))
    divisor = count_true(mask).sum(-1) * squares
    return torch.where(divisor > 0, total.square() / torch.where(divisor > 0, divisor, 1), 0)


def stale(
    logp: TokenFloat, rollout_logp: TokenFloat, advantage: TokenFloat, mask: TokenBool, *, delta: float
) -> TokenBool:
    """The tokens with A < 0 of rows with mean_t (rollout_logp - logp) > delta: bad, and by now unlikely enough.

    It follows the policy as it is now. Source: off-policy sequence masking, DeepSeek-V3.2 (2512.02556).

    >>> logp, mu, yes = torch.tensor([[-5.0, -3.0]]), torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, True]])
    >>> stale(logp, mu, torch.tensor([[-1.0, 1.0]]), yes, delta=2.0)
    tensor([[ True, False]])
    """
    distance = row_mean(rollout_logp - logp.detach(), mask)
    return mask & (advantage < 0) & (distance > delta).unsqueeze(-1)


# --- corrections: batch -> batch ---------------------------------------------------------------------------------


def token_weight(weigh: Callable[[Tensor], Tensor]) -> Bound:
    """Multiplies `weight` by `weigh` of the token ratio of old and mu, clamped as log-ratios are."""
    return bind(_token_weight, weigh=weigh)


def _token_weight(batch: TensorDict, *, weigh: Callable) -> TensorDict:
    ratio = weigh(token_ratio(batch["old_logp"], batch["rollout_logp"]))
    return with_fields(batch, weight=torch.where(batch["mask"], batch["weight"] * ratio, 0))


def whole_row_weight(weigh: Callable[[Tensor], Tensor]) -> Bound:
    """Multiplies `weight` by `weigh` of the row's ratio, the product of those of its counted tokens."""
    return bind(_whole_row_weight, weigh=weigh)


def _whole_row_weight(batch: TensorDict, *, weigh: Callable) -> TensorDict:
    ratio = weigh(whole_row_ratio(batch["old_logp"], batch["rollout_logp"], batch["mask"]))
    return with_fields(batch, weight=batch["weight"] * broadcast_to_tokens(ratio, batch["mask"]))


def reject_tokens(measure: Callable, *, least: float, most: float) -> Bound:
    """Clears `mask` at tokens at which measure(rollout_logp, old_logp) is not in [least, most]."""
    return bind(_reject_tokens, measure=of_fields(measure, "rollout_logp", "old_logp"), least=least, most=most)


def _inside(x: Tensor, least: float, most: float) -> Tensor:
    return (x >= least) & (x <= most)


def _reject_tokens(batch: TensorDict, *, measure: Callable, least: float, most: float) -> TensorDict:
    return with_fields(batch, mask=batch["mask"] & _inside(measure(batch), least, most))


def reject_rows(measure: Callable, aggregate: Callable, *, least: float, most: float) -> Bound:
    """Clears `mask` in rows of which aggregate(measure(rollout_logp, old_logp), mask) is not in [least, most].

    With k1 and `row_mean` it is the geometric mean of a row's ratios that is held in a band.
    """
    return bind(
        _reject_rows,
        measure=of_fields(measure, "rollout_logp", "old_logp"),
        aggregate=aggregate,
        least=least,
        most=most,
    )


def _reject_rows(batch: TensorDict, *, measure: Callable, aggregate: Callable, least: float, most: float) -> TensorDict:
    mask = batch["mask"]
    return with_fields(batch, mask=mask & _inside(aggregate(measure(batch), mask), least, most).unsqueeze(-1))


def reject_rows_with_token(measure: Callable, *, least: float, most: float) -> Bound:
    """Clears `mask` in rows with any counted token at which measure(rollout_logp, old_logp) is not in [least, most]."""
    return bind(_reject_rows_with_token, measure=of_fields(measure, "rollout_logp", "old_logp"), least=least, most=most)


def _reject_rows_with_token(batch: TensorDict, *, measure: Callable, least: float, most: float) -> TensorDict:
    broken = batch["mask"] & ~_inside(measure(batch), least, most)
    return with_fields(batch, mask=batch["mask"] & ~any_true(broken).unsqueeze(-1))


# --- algorithms --------------------------------------------------------------------------------------------------


def weighted(loss: Callable[[TensorDict], TokenFloat]) -> Bound:
    """`loss` times `weight`."""
    return bind(_weighted, loss=loss)


def _weighted(batch: TensorDict, *, loss: Callable) -> TokenFloat:
    return batch["weight"] * loss(batch)


def corrected(algorithm: Algorithm, *corrections: Callable[[TensorDict], TensorDict]) -> Algorithm:
    """`algorithm` with `corrections` ahead of its estimator, and its policy's surrogate `weighted`.

    The term called ``policy`` is what is weighed: a divergence or a bonus beside it is not.
    """
    first = stateless(bind(_correct, corrections=corrections))
    return algorithm._replace(
        reads=tuple(dict.fromkeys((*algorithm.reads, "old_logp", "rollout_logp"))),
        advantage=chain(first, algorithm.advantage),
        objectives=tuple(_corrected(o) if o.role == "policy" else o for o in algorithm.objectives),
    )


def _correct(batch: TensorDict, *, corrections: tuple[Callable, ...]) -> TensorDict:
    before = batch["mask"]
    if "weight" not in batch.keys():
        batch = with_fields(batch, weight=before.to(batch["old_logp"].dtype), rejected=torch.zeros_like(before))
    for correction in corrections:
        batch = correction(batch)
    return with_fields(batch, rejected=batch["rejected"] | before & ~batch["mask"])


def _corrected(objective: Objective) -> Objective:
    if "weight" in objective.reads:
        return objective
    return objective._replace(
        reads=tuple(dict.fromkeys((*objective.reads, "old_logp", "rollout_logp", "weight", "rejected"))),
        terms=tuple(t._replace(loss=weighted(t.loss)) if t.name == "policy" else t for t in objective.terms),
        metrics=bind(_metrics, own=objective.metrics),
    )


def _square(weight: TokenFloat) -> TokenFloat:
    return weight.square()


def _excess(old_logp: TokenFloat, rollout_logp: TokenFloat) -> TokenFloat:
    return token_ratio(old_logp, rollout_logp).square() - 1


def _difference(rollout_logp: TokenFloat, old_logp: TokenFloat) -> TokenFloat:
    return rollout_logp - old_logp


_means = token_means(
    weight=read("weight"),
    weight_square=of_fields(_square, "weight"),
    chi2=of_fields(_excess, "old_logp", "rollout_logp"),
    log_perplexity_gap=of_fields(_difference, "rollout_logp", "old_logp"),
)


def _metrics(batch: TensorDict, *, own: Callable) -> dict[str, Weighted]:
    lost, left = batch["rejected"].sum((-2, -1)), batch["mask"].sum((-2, -1))
    return {**own(batch), **_means(batch), "rejected_fraction": Weighted(lost, lost + left)}


def sequence_masked(algorithm: Algorithm, *, delta: float) -> Algorithm:
    """`algorithm` without the policy loss of tokens that are `stale`; their divergence and their count stay."""
    return algorithm._replace(
        objectives=tuple(_sequence_masked(o, delta) if o.role == "policy" else o for o in algorithm.objectives)
    )


def _sequence_masked(objective: Objective, delta: float) -> Objective:
    gone = of_fields(stale, "logp", "rollout_logp", "advantage", "mask", delta=delta)
    terms = tuple(_without(term, gone) if term.name == "policy" else term for term in objective.terms)
    reads = tuple(dict.fromkeys((*objective.reads, "rollout_logp", "advantage")))
    return objective._replace(reads=reads, terms=terms)


def _without(term: Term, gone: Callable) -> Term:
    return term._replace(loss=bind(_kept, loss=term.loss, gone=gone))


def _kept(batch: TensorDict, *, loss: Callable, gone: Callable) -> TokenFloat:
    return torch.where(gone(batch), 0, loss(batch))
