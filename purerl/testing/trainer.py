"""Is a trainer one? A conformance suite for `purerl.protocols.Trainer`, for any engine and any optimizer.

A trainer is compared with the plainest one there is: a forward pass over every token, softmax, the loss of the whole
step at once, autograd, and an optimizer of torch's. What the engine does instead (micro-batches, padding, heads that
see action tokens only, chunks, shards) is its private business, and must not show.

    check_trainer(build, vocabulary=64, logits=logits, optimizer=partial(torch.optim.SGD, lr=0.1))

Each check is a function of `Case` that raises AssertionError and says what is wrong; `CHECKS` holds them all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, Term, Weighted, compute_loss, prepare_step
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, token_mean, token_sum
from purerl.batch import STRUCTURE, with_fields
from purerl.errors import CheckpointError
from purerl.protocols import Metrics, Trainer
from purerl.testing.batches import example_batch
from purerl.testing.perturbations import mask_out_all_tokens, pad

__all__ = ["CHECKS", "Case", "check_trainer"]

Build = Callable[[], Trainer]
Weights = Mapping[str, Tensor]
Logits = Callable[[Weights, Tensor], Tensor]
Step = tuple[TensorDict, Objective, dict[str, Counts]]


class Case(NamedTuple):
    """What is checked, and what it is compared with: the arguments of `check_trainer`."""

    build: Build
    vocabulary: int
    logits: Logits
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    variants: Sequence[Build]
    tolerance: float


def check_trainer(
    build: Build,
    *,
    vocabulary: int,
    logits: Logits,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
    variants: Sequence[Build] = (),
    tolerance: float = 1e-9,
) -> None:
    """Raise AssertionError unless what `build` makes is a trainer. Other roles are its engine's to test.

    build        makes a trainer of a policy, the same every time. It computes in float64, so that `tolerance` is tight;
                 its learning rate is constant, and it does not clip
    vocabulary   how many token ids there are, at least 9
    logits       (weights, tokens [rows, time]) -> [rows, time, vocabulary]: the model, written plainly and
                 differentiable in `weights`, which are what `Trainer.weights` yields
    optimizer    parameters -> the torch optimizer that says what a step does with a gradient. Let it depend on the
                 gradient's scale (AdamW does once eps is not small), or a wrong scale goes unseen
    variants     make the same trainer with other settings that must not show, such as the size of a micro-batch
    tolerance    relative and absolute, of scores, metrics and weights
    """
    case = Case(build, vocabulary, logits, optimizer, variants, tolerance)
    for check in CHECKS:
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error


# --- examples ----------------------------------------------------------------------------------------------------

# Ragged rows, tool output between action tokens, tokens that are masked out, a row without action, a group without
# counted tokens, irregular and sparse groups that are not together. See `purerl.testing.batches`.
_LAYOUT = (
    (3, "..aaa.aax"),
    (-7, "..a"),
    (2**40, "...xx"),
    (3, "...axaaaaa."),
    (5, "."),
    (3, "..a..aa"),
    (-7, "..aaaa"),
    (11, ".aaaaaaa"),
)


def _batch(case: Case, seed: int = 0) -> TensorDict:
    batch = example_batch(("old_logp", "advantage", "temperature"), _LAYOUT, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, case.vocabulary, batch["tokens"].shape, generator=draw)
    temperature = batch["temperature"].index_fill(0, torch.tensor(0), 0.0)  # the first row was decoded greedily
    return with_fields(batch, tokens=torch.where(batch["attention_mask"], tokens, 0), temperature=temperature)


def _surrogate(batch: TensorDict) -> Tensor:
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"]).clamp(-5, 1).exp()


def _entropy(batch: TensorDict) -> Tensor:
    return batch["entropy"]


def _against_group(batch: TensorDict) -> Tensor:
    """Half the square by which a row's log-probability exceeds its group's mean: it couples the rows of a group."""
    row = batch["logp"].sum(-1)
    same = (batch["group"][:, None] == batch["group"]).to(row.dtype)
    gap = row - same @ row / same.sum(-1)
    return gap[:, None].square() / 2 / batch["mask"].sum(-1, keepdim=True).clamp(min=1) * batch["mask"]


def _means(batch: TensorDict) -> dict[str, Weighted]:
    return {"entropy": Weighted((batch["entropy"] * batch["mask"]).sum(), batch["mask"].sum())}


_READS = ("old_logp", "advantage")
_POLICY = Term("policy", _surrogate, token_mean)
_ALL = Term("all", _surrogate, token_mean, where="action")
_BONUS = Term("bonus", _entropy, sequence_mean_of_token_mean, weight=-0.3)
_GROUP = Term("group", _against_group, token_sum, weight=0.1)

_OBJECTIVES = (
    Objective("policy", _READS, ("logp",), (_POLICY, _ALL), metric_outputs=("entropy",), metrics=_means),
    Objective("policy", _READS, ("logp", "entropy"), (_POLICY, _BONUS), metrics=_means),
    Objective("policy", _READS, ("logp",), (_GROUP,), metric_outputs=("entropy",), metrics=_means, unit="group"),
    # A term of what is only watched: nothing may be learned from it.
    Objective("policy", _READS, ("logp",), (_POLICY, _BONUS), metric_outputs=("entropy",), metrics=_means),
)


def _steps(case: Case, objective: Objective, count: int = 3) -> list[Step]:
    """The first `count` steps of a run."""
    prepared = [prepare_step(objective, _batch(case, seed)) for seed in range(count)]
    return [(batch, objective, _twice(counts)) for batch, counts in prepared]


def _twice(counts: Mapping[str, Counts]) -> dict[str, Counts]:
    """Counts of a step of which another rank has as many tokens and rows."""
    return {name: Counts(2 * count.tokens, 2 * count.rows) for name, count in counts.items()}


# --- the plain trainer -------------------------------------------------------------------------------------------


def _outputs(case: Case, weights: Weights, batch: TensorDict) -> dict[str, Tensor]:
    """`logp` and `entropy` by a forward pass over everything."""
    temperature = torch.where(batch["temperature"] == 0, 1, batch["temperature"])
    log_p = (case.logits(weights, batch["tokens"]) / temperature[:, None, None]).log_softmax(-1)
    before, tokens, action = log_p[:, :-1], batch["tokens"][:, 1:], batch["action"][:, 1:]
    logp = before.gather(-1, tokens[..., None])[..., 0]
    entropy = -(before.exp() * before).sum(-1)
    blank = torch.zeros_like(batch["old_logp"][:, :1])
    return {n: torch.cat([blank, torch.where(action, x, 0)], 1) for n, x in {"logp": logp, "entropy": entropy}.items()}


def _plain(case: Case, weights: Weights, steps: Iterable[Step]) -> tuple[dict[str, Tensor], list[Metrics]]:
    """The weights after `max_steps`, and the metrics of each."""
    learned = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    optimizer, reports = case.optimizer(list(learned.values())), []
    for batch, objective, counts in steps:
        found = _outputs(case, learned, batch)
        watched = {name: found[name].detach() for name in objective.metric_outputs}
        part = with_fields(
            batch.select(*STRUCTURE, *objective.reads), **{n: found[n] for n in objective.outputs}, **watched
        )
        loss, metrics = compute_loss(objective, part, counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reports.append(metrics)
    return {name: weight.detach() for name, weight in learned.items()}, reports


# --- comparing ---------------------------------------------------------------------------------------------------


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    """A copy: what a trainer yields may change under our hands when it goes on."""
    return {name: weight.detach().clone() for name, weight in trainer.weights()}


def _value(metric: Weighted) -> float:
    return float(metric.total) / (float(metric.weight) or 1.0)


def _pair(metric: Weighted) -> Tensor:
    return torch.tensor([float(part) for part in metric], dtype=torch.float64)


def _close(what: str, got: Mapping[str, Tensor], need: Mapping[str, Tensor], tolerance: float) -> None:
    """Same names, same shapes, same values up to `tolerance`."""
    assert set(got) == set(need), f"{what}: got {sorted(got)}, need {sorted(need)}"
    for name in need:
        ours, theirs = got[name], need[name].to(got[name].dtype)
        assert ours.shape == theirs.shape, f"{what}, {name}: shape {list(ours.shape)}, need {list(theirs.shape)}"
        if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
            gap = (ours - theirs).abs()
            place = torch.unravel_index(gap.nan_to_num(torch.inf).argmax(), gap.shape) if gap.ndim else ()
            place = tuple(int(index) for index in place)
            raise AssertionError(f"{what}, {name} at {list(place)}: got {ours[place]:.6g}, need {theirs[place]:.6g}")


def _score(trainer: Trainer, batch: TensorDict) -> dict[str, Tensor]:
    scores = trainer.score(batch, ("logp", "entropy"))
    return {name: scores[name] for name in ("logp", "entropy")}


def _train(trainer: Trainer, steps: Iterable[Step]) -> tuple[dict[str, Tensor], list[Metrics]]:
    reports = [trainer.step(*step) for step in steps]
    return _weights(trainer), reports


# --- the checks --------------------------------------------------------------------------------------------------


def scores_are_those_of_the_plain_forward_pass(case: Case) -> None:
    """Each token's own, given all before it, at the row's temperature (0 counts as 1), in the batch's dtype."""
    batch = _batch(case)
    for build in (case.build, *case.variants):
        trainer = build()
        got = trainer.score(batch, ("logp", "entropy"))
        assert got.batch_size == batch.batch_size, f"batch size {got.batch_size}, need {batch.batch_size}"
        _close("score", dict(got.items()), _outputs(case, _weights(trainer), batch), case.tolerance)
        for name, score in got.items():
            assert not score.requires_grad, f"{name} carries a gradient"
            assert score.dtype == batch["temperature"].dtype, f"{name} is {score.dtype}"
            assert not score[~batch["action"]].any(), f"{name} is not 0 outside of `action`"
        one = trainer.score(batch, ("entropy",))
        assert set(one.keys()) == {"entropy"}, f"asked for entropy, got {sorted(one.keys())}"


def padding_is_invisible_to_scores(case: Case) -> None:
    """Three more columns of garbage, and a row of it, change nothing."""
    batch = _batch(case)
    rows, time = batch["tokens"].shape
    padded = _score(case.build(), pad(batch))
    inner = {name: score[:rows, :time] for name, score in padded.items()}
    _close("score of a padded batch", inner, _score(case.build(), batch), case.tolerance)
    for name, score in padded.items():
        assert not score[rows:].any(), f"{name} of a row of padding is not 0"
        assert not score[:, time:].any(), f"{name} of padding is not 0"


def the_order_of_rows_is_invisible_to_scores(case: Case) -> None:
    """Rows in another order get the same scores."""
    batch = _batch(case)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    wanted = {name: score[order] for name, score in _score(case.build(), batch).items()}
    _close("score of rows in another order", _score(case.build(), batch[order]), wanted, case.tolerance)


def scoring_changes_nothing(case: Case) -> None:
    """Neither the weights nor the next step."""
    trainer, untouched = case.build(), case.build()
    (step,) = _steps(case, _OBJECTIVES[0], 1)
    _score(trainer, _batch(case, 9))
    _close("weights after a score", _weights(trainer), _weights(untouched), 0)
    _close("weights after a score and a step", _train(trainer, [step])[0], _train(untouched, [step])[0], 0)


def steps_are_those_of_the_plain_trainer(case: Case) -> None:
    """Weights after three steps, and the metrics of each; for every variant and objective."""
    for build in (case.build, *case.variants):
        for objective in _OBJECTIVES:
            steps, trainer = _steps(case, objective), build()
            wanted, wanted_reports = _plain(case, _weights(trainer), steps)
            weights, reports = _train(trainer, steps)
            for report, wanted_report in zip(reports, wanted_reports, strict=True):
                _check_report(report, wanted_report, case.tolerance)
            _close(f"weights after steps of {[t.name for t in objective.terms]}", weights, wanted, case.tolerance)


def _check_report(report: Metrics, wanted: Metrics, tolerance: float) -> None:
    """What the objective says of the whole step, and more, all of it finite."""
    for name, metric in report.items():
        assert isinstance(metric, Weighted), f"metric {name} is a {type(metric).__name__}, need a Weighted"
        assert abs(_value(metric)) < float("inf"), f"metric {name} is not finite: {metric}"
    got, need = ({n: _pair(some[n]) for n in wanted if n in some} for some in (report, wanted))
    _close("metrics (total, weight)", got, need, tolerance)
    assert _value(report["skipped"]) == 0, "an ordinary step is reported as skipped"


def the_same_calls_give_the_same_bits(case: Case) -> None:
    """Two trainers that were built and called alike are alike."""
    for build in (case.build, *case.variants):
        steps = _steps(case, _OBJECTIVES[1])
        _close("weights", _train(build(), steps)[0], _train(build(), steps)[0], 0)


def nothing_counted_changes_nothing(case: Case) -> None:
    """A step whose tokens are all masked out, or without rows, leaves weights and optimizer as they were."""
    batch = _batch(case)
    for empty in (mask_out_all_tokens(batch), batch[:0]):
        _check_no_op(case, prepare_step(_OBJECTIVES[1], empty), finite=True)
    none = case.build().score(batch[:0], ("logp",))["logp"]
    assert none.shape == batch[:0]["tokens"].shape, f"score without rows: shape {list(none.shape)}"


def a_gradient_that_is_not_finite_changes_nothing(case: Case) -> None:
    """One counted token with an advantage of NaN, or infinity: the step is skipped, and says so."""
    batch = _batch(case)
    first = tuple(batch["mask"].nonzero()[0].tolist())
    for bad in (torch.nan, torch.inf):
        advantage = batch["advantage"].clone()
        advantage[first] = bad
        _check_no_op(case, prepare_step(_OBJECTIVES[1], with_fields(batch, advantage=advantage)), finite=False)


def _check_no_op(case: Case, prepared: tuple[TensorDict, dict[str, Counts]], *, finite: bool) -> None:
    """That a step on `prepared` between two others does nothing, to momentum neither."""
    batch, counts = prepared
    before, after = _steps(case, _OBJECTIVES[1], 2)
    trainer, without = case.build(), case.build()
    _close("weights of two trainers", _train(trainer, [before])[0], _train(without, [before])[0], 0)
    report = trainer.step(batch, _OBJECTIVES[1], counts)
    _close("weights after such a step", _weights(trainer), _weights(without), 0)
    if not finite:
        assert _value(report["skipped"]) == 1, "a step whose gradient is not finite is not reported as skipped"
    _close("weights one step later", _train(trainer, [after])[0], _train(without, [after])[0], 0)


def a_loaded_trainer_goes_on_bit_for_bit(case: Case) -> None:
    """In a fresh trainer, and in one that had gone elsewhere."""
    *before, after = _steps(case, _OBJECTIVES[1], 4)
    other = _steps(case, _OBJECTIVES[0], 1)
    for build in (case.build, *case.variants):
        saved, fresh, elsewhere = build(), build(), build()
        _train(saved, before)
        _train(elsewhere, other)
        with tempfile.TemporaryDirectory() as folder:
            saved.save(Path(folder))
            fresh.load(Path(folder))
            elsewhere.load(Path(folder))
        _close("loaded weights", _weights(fresh), _weights(saved), 0)
        wanted = _train(saved, [after])[0]
        _close("weights one step after loading", _train(fresh, [after])[0], wanted, 0)
        _close("weights one step after loading over another state", _train(elsewhere, [after])[0], wanted, 0)


def what_is_no_checkpoint_is_refused(case: Case) -> None:
    """An empty directory raises CheckpointError, and the trainer stays as it is."""
    trainer = case.build()
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer.load(Path(folder))
        except CheckpointError:
            _close("weights", _weights(trainer), _weights(case.build()), 0)
            return
    raise AssertionError("an empty directory was loaded")


def arguments_are_unchanged(case: Case) -> None:
    """Neither `score` nor `step` writes to the batch or the counts."""
    ((batch, objective, counts),) = _steps(case, _OBJECTIVES[1], 1)
    copy = batch.clone()
    trainer = case.build()
    _score(trainer, batch)
    trainer.step(batch, objective, counts)
    _close("the batch", dict(batch.items()), dict(copy.items()), 0)


CHECKS = (
    scores_are_those_of_the_plain_forward_pass,
    padding_is_invisible_to_scores,
    the_order_of_rows_is_invisible_to_scores,
    scoring_changes_nothing,
    steps_are_those_of_the_plain_trainer,
    the_same_calls_give_the_same_bits,
    nothing_counted_changes_nothing,
    a_gradient_that_is_not_finite_changes_nothing,
    a_loaded_trainer_goes_on_bit_for_bit,
    what_is_no_checkpoint_is_refused,
    arguments_are_unchanged,
)
"""Every check, in the order in which they are made."""
