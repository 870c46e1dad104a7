"""The metrics of a loss, under TRL's names and under purerl's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from purerl.algos.algebra import Largest, Objective, Weighted, of_fields
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.zeros import zero_outside
from purerl.types import TensorDict

__all__ = ["loss_metrics"]

_K3 = of_fields(k3, "logp", "ref_logp")

_CLIPPED = {
    "policy/clip_fraction_low": "clip_ratio/low_mean",
    "policy/clip_fraction_high": "clip_ratio/high_mean",
    "policy/clip_fraction": "clip_ratio/region_mean",
}
"""Names in TRL of metrics that some algorithms have."""

_EXTREMES = {"clip_fraction_low": ("clip_ratio/low_min", min), "clip_fraction_high": ("clip_ratio/high_max", max)}
"""Names in TRL of the smallest or the largest value of a row."""


def loss_metrics(
    objective: Objective, part: TensorDict, metrics: Mapping[str, Weighted], gather: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """Return the metrics of a micro-batch over all processes.

    part      the batch that the loss was computed of
    metrics   what `compute_loss` has returned
    gather    concatenates a tensor of each process along its first axis

    ``policy/NAME`` are the metrics of the algorithm, with ``policy/loss/TERM`` if its loss has several terms. TRL's own
    names are `entropy`, `kl` if there is a reference model, and `clip_ratio/...` if the algorithm clips. `kl` is the
    mean penalty of a token, without its coefficient: with importance_k3, TRL's default, it is weighted as in TRL.
    """
    part = zero_outside(part.detach(), part["mask"])
    is_shown = {name: len(objective.terms) > 1 or not name.startswith("loss/") for name in metrics}
    own = {f"policy/{name}": metric for name, metric in metrics.items() if is_shown[name]}
    values = _over_processes({**own, **_of_every_loss(objective, part)}, gather)
    values |= {theirs: values[ours] for ours, theirs in _CLIPPED.items() if ours in values}
    clipped = [name for name in _EXTREMES if f"policy/{name}" in values]
    return values | (_extremes(objective, part, clipped, gather) if clipped else {})


def _of_every_loss(objective: Objective, part: TensorDict) -> dict[str, Weighted]:
    mask = part["mask"]
    means = {"entropy": part["entropy"]}
    if "ref_logp" in part.keys():
        means["kl"] = next((term.loss for term in objective.terms if term.name == "ref_kl"), _K3)(part)
    return {name: Weighted(torch.where(mask, value, 0).sum(), mask.sum()) for name, value in means.items()}


def _over_processes(metrics: Mapping[str, Weighted], gather: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """The value of each metric, merged over the processes; 0 without weight."""
    pairs = torch.stack([torch.stack([torch.as_tensor(x).double().cpu() for x in m]) for m in metrics.values()])
    every = gather(pairs.to(next(iter(metrics.values())).total.device).unsqueeze(0))
    totals = {
        name: pair.amax(0) if isinstance(metric, Largest) else pair.sum(0)
        for (name, metric), pair in zip(metrics.items(), every.unbind(1), strict=True)
    }
    return {name: (total / weight).item() if weight else 0.0 for name, (total, weight) in totals.items()}


def _extremes(
    objective: Objective, part: TensorDict, names: list[str], gather: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """The smallest or largest value over all rows with a counted token; none if there is no such row."""
    by_row = objective.metrics(part.unsqueeze(1))
    values = {name: gather(by_row[name].total / by_row[name].weight) for name in names}
    counted = {name: value[~value.isnan()].tolist() for name, value in values.items()}
    return {_EXTREMES[name][0]: _EXTREMES[name][1](value) for name, value in counted.items() if value}
