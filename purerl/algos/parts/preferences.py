"""Preference learning: objectives of pairs of completions of the same prompt, a chosen and a rejected one.

The two completions are rows of one group, and `chosen` marks the preferred one. A loss is a function of the log-ratios
of both rows (`parts.pair_losses`). The log-ratio of a row is relative to an anchor policy, or to nothing:

    L_i = sum_t m_it (logp_it - anchor_it)     with relative_to(anchor)
    L_i = sum_t m_it logp_it                   with without_anchor

`per_token` divides one of them by the number of counted tokens of the row.

`pair_objective` is the weighted sum of the means over pairs of any such losses. A pair is a group with exactly one
counted chosen row and one counted rejected row. The rows of other groups have no effect on the value, the gradient or
the denominator.

Metrics: `accuracy`, the fraction of pairs in which the log-ratio of the chosen row is larger, and the means of
beta * L of the chosen rows (`chosen_reward`), of the rejected rows (`rejected_reward`), and of their difference
(`margin`).

A reward model scores each row instead. Its loss is a function of the difference and the sum of the two scores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.algebra import Bound, Objective, Term, Weighted, bind, of_fields, write_field
from purerl.algos.parts.editing import map_bound
from purerl.algos.parts.elementwise import logsigmoid
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.log_ratios import finite_logp
from purerl.algos.parts.reductions import sequence_mean_of_token_mean
from purerl.algos.parts.rows import broadcast_to_tokens, row_sum
from purerl.algos.parts.surrogates import sequence_log_ratio
from purerl.errors import ConfigError
from purerl.kernels.masks import any_true, as_mask, count_true, masked
from purerl.types import RowBool, RowFloat, RowInt, TensorDict, TokenBool, TokenFloat

__all__ = [
    "bradley_terry_loss",
    "centering_loss",
    "change_log_ratio",
    "change_pair_losses",
    "is_per_token",
    "log_ratio_of",
    "pair_difference",
    "pair_log_ratios",
    "pair_mask",
    "pair_objective",
    "per_token",
    "relative_to",
    "robust_loss",
    "sequence_logp",
    "shift_margins",
    "smoothed_loss",
    "without_anchor",
]


# --- equations ---------------------------------------------------------------------------------------------------


def pair_log_ratios(log_ratio: RowFloat, chosen: RowBool, group: RowInt) -> tuple[RowFloat, RowFloat]:
    """Return the log-ratio of the chosen row and that of the rejected row, for each row of a pair.

    Both rows of a pair get the same two values. They are those of a pair only for rows that `pair_mask` keeps. Shapes:
    [rows] each. Source: DPO (2305.18290).

    >>> pair_log_ratios(torch.tensor([-2.0, -5.0]), torch.tensor([True, False]), torch.tensor([4, 4]))
    (tensor([-2., -2.]), tensor([-5., -5.]))
    """
    return group_sum(masked(log_ratio, chosen), group), group_sum(masked(log_ratio, ~chosen), group)


def pair_difference(x: RowFloat, chosen: RowBool, group: RowInt) -> RowFloat:
    """Compute x of the chosen row minus x of the rejected row, for the pair of each row.

    Both rows of a pair get the same value. It is a difference only for rows that `pair_mask` keeps. Shapes: [rows].

    >>> pair_difference(torch.tensor([3.0, 1.0]), torch.tensor([True, False]), torch.tensor([4, 4]))
    tensor([2., 2.])
    """
    return group_sum(torch.where(as_mask(chosen), x, -x), group)


def pair_mask(chosen: RowBool, group: RowInt, mask: TokenBool) -> TokenBool:
    """Return `mask` without the rows of groups that are not a pair.

    A pair is a group with exactly one counted chosen row and one counted rejected row. Shapes: `chosen` and `group` are
    [rows], `mask` and the result are [rows, time].

    >>> chosen, mask = torch.tensor([True, False, True]), torch.tensor([[True], [True], [True]])
    >>> pair_mask(chosen, torch.tensor([1, 1, 2]), mask).squeeze(-1)
    tensor([ True,  True, False])
    """
    counted = any_true(mask)
    has_one = [group_sum((counted & kind).float(), group) == 1 for kind in (as_mask(chosen), ~chosen)]
    return mask & torch.stack(has_one).all(0).unsqueeze(-1)


def sequence_logp(logp: TokenFloat, mask: TokenBool) -> RowFloat:
    """Compute the log-probability of each row: the sum over its counted tokens, nats. [rows, time] -> [rows].

    >>> sequence_logp(torch.tensor([[-1.0, -2.0, -4.0]]), torch.tensor([[True, True, False]]))
    tensor([-3.])
    """
    return row_sum(finite_logp(logp), mask)


def smoothed_loss(chosen: RowFloat, rejected: RowFloat, *, loss: Callable, smoothing: float) -> RowFloat:
    """Compute the loss of each pair with smoothed labels.

        l = (1 - smoothing) loss(c, r) + smoothing loss(r, c)

    This is the expected loss if the label of a pair is wrong with probability `smoothing`. With the loss of DPO it is
    cDPO, whose minimum is at the margin with sigmoid(beta * margin) = 1 - smoothing. Shapes: [rows] each.
    Source: Mitchell 2023, "A note on DPO with noisy preferences".
    """
    return (1 - smoothing) * loss(chosen, rejected) + smoothing * loss(rejected, chosen)


def robust_loss(chosen: RowFloat, rejected: RowFloat, *, loss: Callable, smoothing: float) -> RowFloat:
    """Compute the loss of each pair without the bias of wrong labels.

        l = ((1 - smoothing) loss(c, r) - smoothing loss(r, c)) / (1 - 2 smoothing)

    If labels are wrong with probability `smoothing`, the expected value is the loss under correct labels. Shapes:
    [rows] each. Source: robust DPO (2403.00409).
    """
    difference = (1 - smoothing) * loss(chosen, rejected) - smoothing * loss(rejected, chosen)
    return difference / (1 - 2 * smoothing)


def bradley_terry_loss(difference: RowFloat, margin: RowFloat | float) -> RowFloat:
    """Compute the negative log-likelihood of each pair under the model of Bradley and Terry, with a margin.

        l = -log sigmoid(d - margin)

    `difference` d is the score of the chosen row minus that of the rejected row. With a margin m the difference must be
    larger by m for the same loss. The loss is finite for any difference. Shapes: [rows] each.
    Source: InstructGPT (2203.02155, eq. 1); the margin: Llama 2 (2307.09288, eq. 2).

    >>> bradley_terry_loss(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    tensor([0.6931, 0.1269])
    """
    return -logsigmoid(difference - margin)


def centering_loss(total: RowFloat) -> RowFloat:
    """Compute the square of the sum of both scores of each pair.

        l = (s_chosen + s_rejected)^2

    The loss of Bradley and Terry does not change if a constant is added to all scores. This one has its minimum where
    the mean of the two scores is 0. `total` is the sum of both scores. Shapes: [rows].
    Source: Eisenstein et al. 2023 (2312.09244, section 2).
    """
    return total.square()


# --- the log-ratio of a row ----------------------------------------------------------------------------------------

without_anchor = of_fields(sequence_logp, "logp", "mask")
"""A function of a batch: the log-probability of each row."""


def relative_to(anchor: str) -> Bound:
    """Return the function of a batch that computes the log-ratio of each row relative to the field `anchor`."""
    return of_fields(sequence_log_ratio, "logp", anchor, "mask")


def per_token(log_ratio: Callable[[TensorDict], RowFloat]) -> Bound:
    """Return the function of a batch that divides `log_ratio` by the number of counted tokens of each row."""
    return bind(_per_token, log_ratio=log_ratio)


def _per_token(batch: TensorDict, *, log_ratio: Callable) -> RowFloat:
    return log_ratio(batch) / count_true(batch["mask"]).clamp(min=1)


# --- objectives --------------------------------------------------------------------------------------------------


def pair_objective(
    log_ratio: Callable[[TensorDict], RowFloat],
    *losses: tuple[str, Callable, float],
    reads: tuple[str, ...],
    beta: float,
) -> Objective:
    """Return the objective sum_k weight_k * mean over pairs of loss_k(c, r), for (name, loss, weight) in `losses`.

    c and r are the values of `log_ratio` of the chosen and the rejected row. `reads` are the fields that it reads.
    """
    return Objective(
        role="policy",
        reads=(*reads, "chosen"),
        outputs=("logp",),
        # All tokens of a row have the same value, so the mean over its tokens is the value of the row. Both rows of a
        # pair have the same value, so the mean over rows is the mean over pairs.
        terms=tuple(
            Term(name, bind(_pair_loss, log_ratio=log_ratio, loss=loss), sequence_mean_of_token_mean, weight=weight)
            for name, loss, weight in losses
        ),
        prepare=write_field("mask", of_fields(pair_mask, "chosen", "group", "mask")),
        metrics=bind(_metrics, log_ratio=log_ratio, beta=beta),
        unit="group",
    )


def _pair_loss(batch: TensorDict, *, log_ratio: Callable, loss: Callable) -> TokenFloat:
    pair = pair_log_ratios(log_ratio(batch), batch["chosen"], batch["group"])
    return broadcast_to_tokens(loss(*pair), batch["mask"])


def _shifted(batch: TensorDict, *, log_ratio: Callable, shift: str) -> RowFloat:
    return log_ratio(batch) + torch.where(batch["chosen"], batch[shift], 0)


def _metrics(batch: TensorDict, *, log_ratio: Callable, beta: float) -> dict[str, Weighted]:
    counted = any_true(batch["mask"])
    pair = pair_log_ratios(beta * log_ratio(batch), batch["chosen"], batch["group"])
    chosen, rejected = (masked(reward, counted) for reward in pair)
    values = {
        "accuracy": counted & (chosen > rejected),
        "margin": chosen - rejected,
        "chosen_reward": chosen,
        "rejected_reward": rejected,
    }
    return {name: Weighted(value.sum(-1), counted.sum(-1)) for name, value in values.items()}


# --- changing an objective ---------------------------------------------------------------------------------------


def change_pair_losses(policy: Objective, change: Callable[[Callable], Callable]) -> Objective:
    """Return `policy` with change(loss) in place of each loss of a pair.

    Raises: ConfigError if it has none.
    """

    def changed(bound: Bound) -> Bound:
        if bound.function is not _pair_loss:
            return bound
        return bind(_pair_loss, **dict(bound.keywords) | {"loss": change(dict(bound.keywords)["loss"])})

    terms = map_bound(policy.terms, changed)
    if terms == policy.terms:
        raise ConfigError("has no effect", got="an algorithm without a loss of pairs", need="one, as in DPO")
    return policy._replace(terms=terms)


def change_log_ratio(policy: Objective, change: Callable[[Bound], Bound]) -> Objective:
    """Return `policy` with change(log_ratio) in place of the log-ratio of a row, in its losses and metrics.

    Raises: ConfigError if it has none.
    """

    def changed(bound: Bound) -> Bound:
        keywords = dict(bound.keywords)
        if "log_ratio" not in keywords or bound.function in (_per_token, _shifted):
            return bound
        return bind(bound.function, **keywords | {"log_ratio": change(keywords["log_ratio"])})

    changes = {name: map_bound(getattr(policy, name), changed) for name in ("terms", "metrics", "prepare")}
    if changes["terms"] == policy.terms:
        need = "a loss of the log-ratios of whole rows, as in DPO"
        raise ConfigError("has no effect", got="a loss without log-ratios of rows", need=need)
    return policy._replace(**changes)


def shift_margins(policy: Objective, field: str) -> Objective:
    """Return `policy` with `field` [rows] added to the log-ratios of chosen rows. Raises as `change_log_ratio`."""
    return change_log_ratio(policy, lambda log_ratio: bind(_shifted, log_ratio=log_ratio, shift=field))


def log_ratio_of(policy: Objective) -> Bound:
    """The log-ratio of a row in the first loss of pairs of `policy`. Raises: ConfigError if there is none."""
    for term in policy.terms:
        if isinstance(term.loss, Bound) and term.loss.function is _pair_loss:
            return dict(term.loss.keywords)["log_ratio"]
    raise ConfigError("has no effect", got="an algorithm without a loss of pairs", need="one, as in DPO")


def is_per_token(bound: Bound) -> bool:
    """Whether `bound` is a `per_token`.

    >>> is_per_token(per_token(without_anchor)), is_per_token(without_anchor)
    (True, False)
    """
    return bound.function is _per_token
