"""The checks of the conformance suite for trainers: each raises AssertionError if a trainer does not conform."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Weighted
from purerl.batch import with_fields
from purerl.errors import InputError
from purerl.protocols import Metrics
from purerl.ranks import current_ranks
from purerl.testing.perturbations import mask_out_all_tokens, pad
from purerl.testing.suite import assert_raises, shown
from purerl.testing.trainer.exports import exported_model_is_trained
from purerl.testing.trainer.files import FILE_CHECKS
from purerl.testing.trainer.reference import (
    OBJECTIVES,
    TOKENWISE,
    Build,
    Case,
    Step,
    assert_close,
    first_steps,
    make_batch,
    make_step,
    reference_outputs,
    reference_training,
    scores_of,
    value_of,
    weights_of,
)
from purerl.testing.trainer.resources import builds, closing_trainers, shared_directory, take_steps
from purerl.testing.trainer.updates import gradients_are_divided_by_the_counts
from purerl.testing.trainer.weights import WEIGHT_CHECKS, scores_follow_the_weights

__all__ = ["CHECKS"]


# --- scores --------------------------------------------------------------------------------------------------------


def scores_equal_the_reference(case: Case) -> None:
    """Each token's own score, given all tokens before it, at the row's temperature, in the dtype of the batch."""
    batch = make_batch(case)
    for build in builds(case):
        trainer = build()
        scores = trainer.score(batch, ("logp", "entropy"))
        assert scores.batch_size == batch.batch_size, f"batch size {scores.batch_size}, need {batch.batch_size}"
        reference = reference_outputs(case, weights_of(trainer), batch)
        expected = {name: reference[name] for name in ("logp", "entropy")}
        assert_close("score", dict(scores.items()), expected, case.tolerance)
        for name, score in scores.items():
            assert not score.requires_grad, f"{name} has a gradient"
            assert score.dtype == batch["temperature"].dtype, f"{name} is {score.dtype}"
            assert not score[~batch["action"]].any(), f"{name} is not 0 where `action` is false"
        names = set(trainer.score(batch, ("entropy",)).keys())
        assert names == {"entropy"}, f"entropy was requested, got {sorted(names)}"


def other_declared_outputs_equal_the_reference(case: Case) -> None:
    """`sum_pi_squared` and `topk_logp`, if the trainer declares them; the latter also for given tokens."""
    batch, trainer = make_batch(case), case.build()
    declared = trainer.capabilities.outputs
    if "sum_pi_squared" in declared:
        scores = dict(trainer.score(batch, ("sum_pi_squared",)).items())
        expected = reference_outputs(case, weights_of(trainer), batch)["sum_pi_squared"]
        assert_close("score", scores, {"sum_pi_squared": expected}, case.tolerance)
    if {"topk_logp", "topk_tokens"} <= declared:
        scores = trainer.score(batch, ("topk_tokens", "topk_logp"))
        expected = reference_outputs(case, weights_of(trainer), batch, top_k=scores["topk_logp"].shape[-1])
        assert_close("score", {"topk_logp": scores["topk_logp"]}, {"topk_logp": expected["topk_logp"]}, case.tolerance)
        chosen = with_fields(batch, teacher_topk_tokens=(scores["topk_tokens"] + 1) % case.vocab_size)
        expected = reference_outputs(case, weights_of(trainer), chosen)["topk_logp"]
        scores = dict(trainer.score(chosen, ("topk_logp",)).items())
        assert_close("score of given tokens", scores, {"topk_logp": expected}, case.tolerance)


def undeclared_outputs_are_refused(case: Case) -> None:
    """`capabilities.outputs` contains logp and entropy; any other output raises InputError."""
    trainer = case.build()
    declared = trainer.capabilities.outputs
    assert {"logp", "entropy"} <= declared, f"capabilities.outputs is {sorted(declared)}"
    batch = make_batch(case)
    what = "score of the output 'no such output', which is not in `capabilities.outputs`"
    assert_raises(InputError, lambda: trainer.score(batch, ("no such output",)), what)


def scores_ignore_padding(case: Case) -> None:
    """Three more columns and one more row of padding change nothing."""
    batch = make_batch(case)
    rows, time = batch["tokens"].shape
    padded = scores_of(case.build(), pad(batch))
    inner = {name: score[:rows, :time] for name, score in padded.items()}
    assert_close("score of a padded batch", inner, scores_of(case.build(), batch), case.tolerance)
    for name, score in padded.items():
        assert not score[rows:].any(), f"{name} of a row of padding is not 0"
        assert not score[:, time:].any(), f"{name} of padding is not 0"


def scores_follow_the_order_of_rows(case: Case) -> None:
    """Permuted rows have permuted scores."""
    batch = make_batch(case)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    expected = {name: score[order] for name, score in scores_of(case.build(), batch).items()}
    assert_close("score of permuted rows", scores_of(case.build(), batch[order]), expected, case.tolerance)


def scoring_has_no_side_effects(case: Case) -> None:
    """Neither the weights nor the next step depend on it."""
    trainer, other = case.build(), case.build()
    (step,) = first_steps(case, OBJECTIVES[0], 1)
    scores_of(trainer, make_batch(case, 9))
    assert_close("weights after a score", weights_of(trainer), weights_of(other), 0)
    assert_close("weights after a score and a step", take_steps(trainer, [step])[0], take_steps(other, [step])[0], 0)


# --- steps ---------------------------------------------------------------------------------------------------------


def steps_equal_the_reference(case: Case) -> None:
    """Weights after three steps, and the metrics of each, for every variant and objective."""
    for build in builds(case):
        for objective in OBJECTIVES:
            _compare(case, build, first_steps(case, objective))


def _compare(case: Case, build: Build, steps: Sequence[Step]) -> None:
    """Compare weights first: a wrong gradient also has wrong metrics."""
    trainer = build()
    expected, expected_reports = reference_training(case, weights_of(trainer), steps)
    weights, reports = take_steps(trainer, steps)
    terms = [term.name for term in steps[0][1].terms]
    assert_close(f"weights after {len(steps)} steps of {terms}", weights, expected, case.tolerance)
    for report, expected_report in zip(reports, expected_reports, strict=True):
        _check_report(report, expected_report, case.tolerance)


def _check_report(report: Metrics, expected: Metrics, tolerance: float) -> None:
    """A report has the objective's metrics of the whole step, `skipped`, and only finite values."""
    for name, metric in report.items():
        assert isinstance(metric, Weighted), f"metric {name} is a {type(metric).__name__}, need a Weighted"
        assert abs(value := value_of(metric)) < float("inf"), f"metric {name}: got {shown(value)}, need a number"
    got, need = ({name: _pair(metrics[name]) for name in expected if name in metrics} for metrics in (report, expected))
    assert_close("metrics (total, weight)", got, need, tolerance)
    assert value_of(report["skipped"]) == 0, "an ordinary step is reported as skipped"


def _pair(metric: Weighted) -> Tensor:
    return torch.tensor([float(part) for part in metric], dtype=torch.float64)


def a_unit_may_exceed_the_token_budget(case: Case) -> None:
    """A batch that is one group, with an objective that couples its rows."""
    batch = make_batch(case)
    batch = with_fields(batch, group=torch.zeros_like(batch["group"]))
    for build in builds(case):
        _compare(case, build, [make_step(OBJECTIVES[2], batch)])


def fewer_rows_than_ranks(case: Case) -> None:
    """One row; on several ranks some have no rows."""
    _compare_scores_and_step(case, make_batch(case)[:1])


def prefixes_shared_on_one_rank(case: Case) -> None:
    """A group with a long common prompt, and as many tokens in groups of one row: another rank has nothing to share."""
    layout = (*[(1, "." * 14 + "aa")] * 4, *[(label, "." * 14 + "aa") for label in (2, 3, 4, 5)])
    batch = make_batch(case, layout=layout)
    tokens = batch["tokens"].clone()
    tokens[:4, :14] = tokens[0, :14]
    _compare_scores_and_step(case, with_fields(batch, tokens=tokens))


def _compare_scores_and_step(case: Case, batch: TensorDict) -> None:
    for build in builds(case):
        trainer = build()
        expected = reference_outputs(case, weights_of(trainer), batch)
        assert_close("score", scores_of(trainer, batch), {n: expected[n] for n in ("logp", "entropy")}, case.tolerance)
        _compare(case, build, [make_step(TOKENWISE, batch)])


def equal_calls_give_equal_bits(case: Case) -> None:
    """Two trainers that were built and called alike have the same weights."""
    for build in builds(case):
        steps = first_steps(case, TOKENWISE)
        assert_close("weights", take_steps(build(), steps)[0], take_steps(build(), steps)[0], 0)


def all_ranks_give_the_same_answers(case: Case) -> None:
    """Scores, metrics and weights are the same, bit for bit, on every rank."""
    ranks = current_ranks()
    for build in builds(case):
        trainer = build()
        scores = scores_of(trainer, make_batch(case))
        weights, reports = take_steps(trainer, first_steps(case, TOKENWISE))
        numbers = [float(part) for report in reports for metric in report.values() for part in metric]
        tensors = (*scores.values(), *weights.values(), torch.tensor(numbers, dtype=torch.float64))
        digest = hashlib.sha256(b"".join(tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()
        digests = ranks.gather(digest)
        assert len(set(digests)) == 1, f"scores, metrics or weights differ between ranks: {digests}"


def an_empty_step_changes_nothing(case: Case) -> None:
    """A step in which no token is counted, or without rows: nothing changes, and `skipped` is 1."""
    batch = make_batch(case)
    for empty in (mask_out_all_tokens(batch), batch[:0]):
        _check_no_op(case, make_step(TOKENWISE, empty))
    score = case.build().score(batch[:0], ("logp",))["logp"]
    assert score.shape == batch[:0]["tokens"].shape, f"score without rows: shape {list(score.shape)}"


def a_nonfinite_gradient_is_skipped(case: Case) -> None:
    """One counted token with an advantage of NaN or infinity: nothing changes, and `skipped` is 1."""
    batch = make_batch(case)
    first = tuple(batch["mask"].nonzero()[0].tolist())
    for value in (torch.nan, torch.inf):
        advantage = batch["advantage"].clone()
        advantage[first] = value
        _check_no_op(case, make_step(TOKENWISE, with_fields(batch, advantage=advantage)))


def a_zero_gradient_is_skipped_by_all_ranks_or_none(case: Case) -> None:
    """All advantages are 0, and the loss has no other term. If the step is reported as skipped, nothing changes."""
    batch = make_batch(case)
    step = make_step(OBJECTIVES[0], with_fields(batch, advantage=torch.zeros_like(batch["advantage"])))
    for build in builds(case):
        reports = current_ranks().gather(value_of(build().step(*step)["skipped"]))
        assert len({*reports}) == 1, f"skipped differs between ranks: {reports}"
        if reports[0]:
            _check_no_op(case._replace(build=build), step)


def _check_no_op(case: Case, step: Step) -> None:
    """Assert that `step` between two others changes neither weights nor momentum, and is reported as skipped."""
    before, after = first_steps(case, TOKENWISE, 2)
    trainer, without = case.build(), case.build()
    assert_close("weights of two trainers", take_steps(trainer, [before])[0], take_steps(without, [before])[0], 0)
    report = trainer.step(*step)
    assert_close("weights after the step", weights_of(trainer), weights_of(without), 0)
    assert value_of(report["skipped"]) == 1, "a step that changes nothing is not reported as skipped"
    assert_close("weights one step later", take_steps(trainer, [after])[0], take_steps(without, [after])[0], 0)


def arguments_are_not_modified(case: Case) -> None:
    """Neither `score` nor `step` writes to the batch."""
    ((batch, objective, counts),) = first_steps(case, TOKENWISE, 1)
    copy = batch.clone()
    trainer = case.build()
    scores_of(trainer, batch)
    trainer.step(batch, objective, counts)
    assert_close("the batch", dict(batch.items()), dict(copy.items()), 0)


def an_exported_trainer_can_be_closed(case: Case) -> None:
    """`export` writes files, and `close` succeeds afterwards."""
    with shared_directory() as directory, closing(case.build()) as trainer:
        take_steps(trainer, first_steps(case, TOKENWISE, 1))
        trainer.export(directory)
        written = current_ranks().gather(any(directory.iterdir()))
    assert any(written), "export wrote no file"


# These leave the trainers that they build open.
_OPEN = (
    equal_calls_give_equal_bits,
    scoring_has_no_side_effects,
    arguments_are_not_modified,
    scores_equal_the_reference,
    other_declared_outputs_equal_the_reference,
    undeclared_outputs_are_refused,
    scores_ignore_padding,
    scores_follow_the_order_of_rows,
    gradients_are_divided_by_the_counts,
    steps_equal_the_reference,
    a_unit_may_exceed_the_token_budget,
    fewer_rows_than_ranks,
    prefixes_shared_on_one_rank,
    all_ranks_give_the_same_answers,
    an_empty_step_changes_nothing,
    a_nonfinite_gradient_is_skipped,
    a_zero_gradient_is_skipped_by_all_ranks_or_none,
    *WEIGHT_CHECKS,
    *FILE_CHECKS,
    scores_follow_the_weights,
)

CHECKS = (*map(closing_trainers, _OPEN), an_exported_trainer_can_be_closed, closing_trainers(exported_model_is_trained))
"""Every check, in the order in which they run: of several failures, the first one is the cause."""
