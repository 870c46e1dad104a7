"""References of the conformance suite of trainers: batches, objectives, and the plainest trainer there is.

The reference is a forward pass over every token, a softmax, the loss of the whole step, autograd, and a torch
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Largest, Objective, Term, Weighted, compute_loss, prepare_step
from purerl.algos.parts.reductions import sequence_mean_of_token_mean, token_mean, token_sum
from purerl.backends.predicted_tokens import predicted_tokens
from purerl.batch import select_fields, with_fields
from purerl.protocols import Metrics, Trainer
from purerl.testing.batches import Layout, example_batch
from purerl.testing.suite import shown

__all__ = [
    "OBJECTIVES",
    "TOKENWISE",
    "Case",
    "Step",
    "assert_close",
    "assert_finite",
    "first_steps",
    "is_close",
    "make_batch",
    "make_step",
    "reference_outputs",
    "reference_training",
    "scores_of",
    "value_of",
    "weights_of",
]

Build = Callable[[], Trainer]
Logits = Callable[[Mapping[str, Tensor], Tensor], Tensor]
Step = tuple[TensorDict, Objective, dict[str, Counts]]


class Case(NamedTuple):
    """A trainer and its reference: the arguments of `purerl.testing.check_trainer`."""

    build: Build
    vocab_size: int
    logits: Logits
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    variants: Sequence[Build]
    tolerance: float
    load: Callable[[Path], Trainer] | None = None


# --- batches and objectives --------------------------------------------------------------------------------------

# Ragged rows, tool output between action tokens, masked-out tokens, a row without action tokens, a group without
# counted tokens, irregular groups with arbitrary labels whose rows are not adjacent. See `purerl.testing.batches`.
_LAYOUT: Layout = (
    (3, "..aaa.aax"),
    (-7, "..a"),
    (2**40, "...xx"),
    (3, "...axaaaaa."),
    (5, "."),
    (3, "..a..aa"),
    (-7, "..aaaa"),
    (11, ".aaaaaaa"),
)


def make_batch(case: Case, seed: int = 0, layout: Layout = _LAYOUT) -> TensorDict:
    """A batch of `layout` with random tokens; the first row was decoded greedily (temperature 0).

    The rows of a group are one episode, so that a trainer that drops `episode_tokens` is detected.
    """
    batch = example_batch(("old_logp", "advantage", "temperature"), layout, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, case.vocab_size, batch["tokens"].shape, generator=draw)
    temperature = batch["temperature"].index_fill(0, torch.tensor(0), 0.0)
    tokens = torch.where(batch["attention_mask"], tokens, 0)
    return with_fields(batch, tokens=tokens, temperature=temperature, episode=batch["group"])


def _surrogate(batch: TensorDict) -> Tensor:
    return -batch["advantage"] * (batch["logp"] - batch["old_logp"]).clamp(-5, 1).exp()


def _entropy(batch: TensorDict) -> Tensor:
    return batch["entropy"]


def _group_variance(batch: TensorDict) -> Tensor:
    """Half the squared distance of a row's log-probability from the mean of its group: couples the rows of a group."""
    row = batch["logp"].sum(-1)
    same_group = (batch["group"][:, None] == batch["group"]).to(row.dtype)
    distance = row - same_group @ row / same_group.sum(-1)
    return distance[:, None].square() / 2 / batch["mask"].sum(-1, keepdim=True).clamp(min=1) * batch["mask"]


def _entropies(batch: TensorDict) -> dict[str, Weighted]:
    value, count = batch["entropy"] * batch["mask"], batch["mask"].sum()
    largest = torch.cat([value.flatten(), value.new_zeros(1)]).amax(0)  # also of no rows
    return {"entropy": Weighted(value.sum(), count), "entropy_max": Largest(largest, (count > 0).to(value.dtype))}


def _with_observed(batch: TensorDict) -> TensorDict:
    """`batch` with further tokens that the trainer has to predict: of counted rows, those between action tokens."""
    action, is_counted = batch["action"], batch["mask"].any(-1, keepdim=True)
    return with_fields(batch, observed=batch["attention_mask"] & ~action & (action.cumsum(-1) > 0) & is_counted)


def _likelihood(batch: TensorDict) -> Tensor:
    return -batch["logp"]


_READS = ("old_logp", "advantage")
_POLICY = Term("policy", _surrogate, token_mean)
_ALL = Term("all", _surrogate, token_mean, where="action")
_ANSWERS = Term("answers", _likelihood, token_mean, where="observed", weight=0.2)
_BONUS = Term("bonus", _entropy, sequence_mean_of_token_mean, weight=-0.3)
_GROUP = Term("group", _group_variance, token_sum, weight=0.1)

OBJECTIVES = (
    Objective("policy", _READS, ("logp",), (_POLICY, _ALL), metric_outputs=("entropy",), metrics=_entropies),
    Objective("policy", _READS, ("logp", "entropy"), (_POLICY, _BONUS), metrics=_entropies),
    Objective("policy", _READS, ("logp",), (_GROUP,), metric_outputs=("entropy",), metrics=_entropies, unit="group"),
    # A term of an output that is only watched: it has no gradient. Another one of tokens that are no action.
    Objective(
        "policy",
        (*_READS, "observed"),
        ("logp",),
        (_POLICY, _BONUS, _ANSWERS),
        metric_outputs=("entropy",),
        metrics=_entropies,
        prepare=_with_observed,
    ),
)
TOKENWISE = OBJECTIVES[1]
"""An objective whose rows are independent."""


def make_step(objective: Objective, batch: TensorDict) -> Step:
    """One optimizer step on `batch`, with counts as if the step had twice as many tokens and rows."""
    batch, counts = prepare_step(objective, batch)
    return batch, objective, {name: Counts(2 * count.tokens, 2 * count.rows) for name, count in counts.items()}


def first_steps(case: Case, objective: Objective, count: int = 3) -> list[Step]:
    """The first `count` steps of a run."""
    return [make_step(objective, make_batch(case, seed)) for seed in range(count)]


# --- the reference -----------------------------------------------------------------------------------------------


def reference_outputs(
    case: Case, weights: Mapping[str, Tensor], batch: TensorDict, top_k: int = 1
) -> dict[str, Tensor]:
    """The outputs of the language model, by a forward pass over everything."""
    temperature = torch.where(batch["temperature"] == 0, 1, batch["temperature"])
    log_p = (case.logits(weights, batch["tokens"]) / temperature[:, None, None]).log_softmax(-1)
    before, tokens, action = log_p[:, :-1], batch["tokens"][:, 1:], predicted_tokens(batch)[:, 1:]
    choices = batch.get("teacher_topk_tokens", None)
    top = before.topk(top_k).indices if choices is None else choices[:, 1:]
    outputs = {
        "logp": before.gather(-1, tokens[..., None])[..., 0],
        "entropy": -(before.exp() * before).sum(-1),
        "sum_pi_squared": (2 * before).exp().sum(-1),
        "topk_logp": before.gather(-1, top),
    }
    return {name: _aligned(output, action) for name, output in outputs.items()}


def _aligned(output: Tensor, action: Tensor) -> Tensor:
    """Outputs from position 1 on, with a column of zeros before them, and 0 where `action` is false."""
    where = action if output.ndim == action.ndim else action[..., None]
    return torch.cat([torch.zeros_like(output[:, :1]), torch.where(where, output, 0)], 1)


def reference_training(
    case: Case, weights: Mapping[str, Tensor], steps: Iterable[Step]
) -> tuple[dict[str, Tensor], list[Metrics]]:
    """The weights after `steps`, and the metrics of each step."""
    trained = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    optimizer, reports = case.optimizer(list(trained.values())), []
    for batch, objective, counts in steps:
        outputs = reference_outputs(case, trained, batch)
        watched = {name: outputs[name].detach() for name in objective.metric_outputs}
        learned = {name: outputs[name] for name in objective.outputs}
        rows = with_fields(select_fields(batch, objective.reads), **learned, **watched)
        loss, metrics = compute_loss(objective, rows, counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reports.append(metrics)
    return {name: weight.detach() for name, weight in trained.items()}, reports


# --- comparing ---------------------------------------------------------------------------------------------------


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of the weights in the memory of the CPU. Those of a trainer may share memory with its model."""
    return {name: weight.detach().to("cpu", copy=True) for name, weight in trainer.weights()}


def value_of(metric: Weighted) -> float:
    """The value of a metric; 0 if nothing was counted for it."""
    return float(metric.total) / (float(metric.weight) or 1.0)


def scores_of(trainer: Trainer, batch: TensorDict) -> dict[str, Tensor]:
    """The log-probabilities and entropies of `batch`."""
    scores = trainer.score(batch, ("logp", "entropy"))
    return {name: scores[name] for name in ("logp", "entropy")}


def is_close(got: Mapping[str, Tensor], need: Mapping[str, Tensor], tolerance: float) -> bool:
    """Whether `assert_close` accepts the values."""
    try:
        assert_close("", got, need, tolerance)
    except AssertionError:
        return False
    return True


def assert_finite(what: str, got: Mapping[str, Tensor]) -> None:
    """Raise AssertionError for a value that is infinite or NaN."""
    for name, value in got.items():
        if not value.isfinite().all():
            index = tuple((~value.isfinite()).nonzero()[0].tolist())
            raise AssertionError(f"{what}, {name} at {list(index)}: got {shown(float(value[index]))}, need a number")


def assert_close(what: str, got: Mapping[str, Tensor], need: Mapping[str, Tensor], tolerance: float) -> None:
    """Raise AssertionError unless names, shapes and values are equal, the values up to `tolerance`."""
    assert set(got) == set(need), f"{what}: got {sorted(got)}, need {sorted(need)}"
    for name in need:
        actual, expected = got[name].cpu(), need[name].cpu().to(got[name].dtype)
        assert actual.shape == expected.shape, (
            f"{what}, {name}: shape {list(actual.shape)}, need {list(expected.shape)}"
        )
        if not torch.allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
            distance = (actual - expected).abs()
            largest = distance.nan_to_num(torch.inf).argmax()
            index = tuple(map(int, torch.unravel_index(largest, distance.shape))) if distance.ndim else ()
            values = f"got {shown(float(actual[index]))}, need {shown(float(expected[index]))}"
            raise AssertionError(f"{what}, {name} at {list(index)}: {values}")
