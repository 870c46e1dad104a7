"""Pairs that are matched by rank over the whole optimizer step, as in alignment by optimal transport (AOT).

With n pairs, and x_(k) the k-th smallest of the values x:

    c_k - r_k = P_(k) - R_(k)     with of = margins
    c_k - r_k = c_(k) - r_(k)     with of = completions

P_g is the margin of pair g under the policy, the difference of the log-probabilities of its completions, and R_g that
under the reference model. c and r are the log-ratios of the chosen and the rejected completions. Without this modifier,
DPO compares the two margins, and the two completions, of the same prompt. With it, a distribution is better than
another one at every rank, which is a weaker condition for each prompt (first-order stochastic dominance). With
completions, the chosen and the rejected ones need not answer the same prompts.

The order is that of the policy at the start of the update (`old_logp`), which is computed once for the whole optimizer
step. It then does not depend on micro-batches. TRL sorts the current values of a micro-batch.

TRL: the loss types aot (margins) and aot_unpaired (completions).

Source: AOT (2406.05882).
"""

from __future__ import annotations

import torch
from attrs import frozen

from purerl.algos.algebra import Algorithm, Bound, Objective, bind
from purerl.algos.parts import pair_losses
from purerl.algos.parts.editing import add_reads, change_policy, contains, policy_of
from purerl.algos.parts.groups import group_sum
from purerl.algos.parts.policy import add_preparation
from purerl.algos.parts.preferences import log_ratio_of, pair_difference, relative_to, sequence_logp, shift_margins
from purerl.algos.parts.settings import choice
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.kernels.masks import any_true, as_mask, masked
from purerl.types import RowBool, RowFloat, RowInt, TensorDict

__all__ = ["EXEMPTIONS", "Config", "modify", "rank_labels", "rank_matched_margin"]

EXEMPTIONS = {"group_independence": "pairs are matched by rank over the whole optimizer step"}

_NOT_OF_THE_MARGIN = {getattr(pair_losses, n) for n in ("nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down")}


@frozen(kw_only=True)
class Config:
    """Settings of the modifier `rank_matching`."""

    of: str = choice("what is sorted: the margins of pairs, or completions", ("margins", "completions"), "margins")


def rank_matched_margin(policy: RowFloat, reference: RowFloat, counted: RowBool) -> RowFloat:
    """Return, for the counted row with the k-th smallest value of `policy`, the k-th smallest value of `reference`.

    The k-th smallest value is that of the counted rows. Rows that are not counted get 0. Shapes: [rows] each.
    Source: AOT (2406.05882).

    >>> policy, reference = torch.tensor([5.0, 1.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])
    >>> rank_matched_margin(policy, reference, torch.tensor([True, True, True]))
    tensor([30., 10., 20.])
    """
    ordered = masked(reference, counted, torch.inf).sort(-1).values
    return masked(ordered.gather(-1, _ranks(policy, counted)), counted)


def rank_labels(log_ratio: RowFloat, chosen: RowBool, counted: RowBool) -> RowInt:
    """Return labels of groups with the chosen row and the rejected row that have the same rank among their kind.

    Rows that are not counted have the largest ranks. Shapes: [rows] each. Source: AOT (2406.05882).

    >>> log_ratio, chosen = torch.tensor([5.0, 2.0, 1.0, 7.0]), torch.tensor([True, False, True, False])
    >>> rank_labels(log_ratio, chosen, torch.tensor([True, True, True, True]))
    tensor([1, 0, 0, 1])
    """
    ranks = (_ranks(log_ratio, as_mask(counted) & kind) for kind in (as_mask(chosen), ~chosen))
    return torch.where(chosen, *ranks)


def _ranks(x: RowFloat, counted: RowBool) -> RowInt:
    return masked(x, counted, torch.inf).argsort(-1).argsort(-1)


def modify(config: Config, algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with pairs that are matched by rank.

    Raises: ConfigError for an algorithm without a loss of pairs; with margins, also for one without a reference model,
        with log-ratios per token, and with a loss of more than the margin.
    """
    log_ratio, terms = log_ratio_of(policy_of(algorithm)), policy_of(algorithm).terms
    if contains(policy_of(algorithm).prepare, _is_matched):
        raise ConfigError("has no effect", got="pairs that are matched by rank", need="pairs of the same prompt")
    if config.of == "completions":
        return change_policy(algorithm, bind(_with_preparation, prepare=bind(_match_completions, log_ratio=log_ratio)))
    if log_ratio != relative_to("ref_logp"):
        need = "log-ratios to a reference model, as in DPO"
        raise ConfigError("has no effect", got="another log-ratio of rows", need=need)
    if contains(terms, lambda bound: bound.function in _NOT_OF_THE_MARGIN):
        need = "a loss of the margin, such as sigmoid"
        raise ConfigError("has no effect", got="a loss of more than the margin", need=need)
    return change_policy(algorithm, bind(_with_matched_margins))


def _is_matched(bound: Bound) -> bool:
    return bound.function in (_match_completions, _match_margins)


def _with_preparation(policy: Objective, *, prepare: Bound) -> Objective:
    return add_preparation(add_reads(policy, "old_logp"), prepare)


def _match_completions(batch: TensorDict, *, log_ratio: Bound) -> TensorDict:
    before = with_fields(batch, logp=batch["old_logp"])
    return with_fields(batch, group=rank_labels(log_ratio(before), batch["chosen"], any_true(batch["mask"])))


def _with_matched_margins(policy: Objective) -> Objective:
    policy = _with_preparation(shift_margins(policy, "margin_shift"), prepare=bind(_match_margins))
    return add_reads(policy, "margin_shift")


def _match_margins(batch: TensorDict) -> TensorDict:
    mask, chosen, group = batch["mask"], batch["chosen"], batch["group"]
    totals = (sequence_logp(batch[name], mask) for name in ("old_logp", "ref_logp"))
    before, reference = (pair_difference(total, chosen, group) for total in totals)
    matched = rank_matched_margin(before, reference, any_true(mask) & chosen)
    return with_fields(batch, margin_shift=reference - group_sum(matched, group))
