"""The training-inference mismatch: differences of log-probabilities between trainer and generator; and staleness.

With d_t = old_logp_t - rollout_logp_t at each token t that the generator has sampled:

    mismatch/logp_abs_diff          mean_t |d_t|, nats
    mismatch/logp_abs_diff_max      max_t |d_t|, nats
    mismatch/k3_kl                  mean_t (exp(d_t) - 1 - d_t), an estimate of KL(rollout || old), nats
    mismatch/perplexity_ratio       exp(-mean_t d_t), perplexity under the old policy / that under the rollout policy
    mismatch/effective_sample_size  (mean_t exp(d_t))^2 / mean_t exp(2 d_t), a fraction of the tokens
    mismatch/chi_square             mean_t (exp(d_t) - 1)^2, an estimate of chi^2(old || rollout)

In exponents d_t is clamped to +-20. All are functions of moments, means and a maximum over tokens, which merge exactly.
So they can be metrics of a loss, which trainers compute in parts.

Staleness, the number of updates between the weights that sampled a token and those that it trains, is limited too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from purerl.algos.algebra import Largest, Objective, Weighted, bind
from purerl.algos.parts.editing import contains
from purerl.algos.parts.log_ratios import log_ratio
from purerl.algos.parts.surrogates import LOG_RATIO_BOUND
from purerl.errors import EngineError
from purerl.kernels.masks import count_true
from purerl.types import TensorDict

__all__ = ["check_staleness", "from_moments", "is_measured", "mismatch_metrics", "staleness_metrics", "with_mismatch"]

_GROUP = "mismatch"


def mismatch_metrics(batch: TensorDict) -> dict[str, float]:
    """All metrics over the action tokens of a batch with `old_logp` and `rollout_logp`; none without such tokens."""
    action = batch["action"]
    if not bool(action.any()):
        return {}
    difference = log_ratio(batch["old_logp"], batch["rollout_logp"]).double()
    means = {name: float(total / weight) for name, (total, weight) in _moments(difference, action).items()}
    return from_moments(means)


def with_mismatch(objective: Objective, version: int | None = None) -> Objective:
    """`objective` with the moments of logp - rollout_logp over counted tokens as metrics.

    version  only tokens that were sampled with the weights of this version count
    """
    reads = ("rollout_logp",) if version is None else ("rollout_logp", "version")
    return objective._replace(
        reads=tuple(dict.fromkeys((*objective.reads, *reads))),
        metrics=bind(_and_moments, metrics=objective.metrics, version=version),
    )


def is_measured(objective: Objective) -> bool:
    """Whether the training-inference mismatch is among the metrics of `objective`."""
    return contains(objective.metrics, lambda bound: bound.function is _and_moments)


def from_moments(values: Mapping[str, float]) -> dict[str, float]:
    """`values`, with the metrics in place of the means of the moments, whatever the role before their names.

    >>> moments = dict(size=0.0, largest=0.0, k3=0.0, difference=0.0, ratio=1.0, square=1.0)
    >>> values = from_moments({"policy/loss": 2.0} | {f"policy/mismatch/{name}": x for name, x in moments.items()})
    >>> values["policy/loss"], values["mismatch/logp_abs_diff"], values["mismatch/perplexity_ratio"]
    (2.0, 0.0, 1.0)
    """
    moments = {name.rpartition("/")[2]: value for name, value in values.items() if _is_moment(name)}
    others = {name: value for name, value in values.items() if not _is_moment(name)}
    return others | (_metrics(**moments) if moments else {})


def _is_moment(name: str) -> bool:
    return f"/{_GROUP}/" in f"/{name}"


def _metrics(
    *, size: float, largest: float, k3: float, difference: float, ratio: float, square: float
) -> dict[str, float]:
    return {
        f"{_GROUP}/logp_abs_diff": size,
        f"{_GROUP}/logp_abs_diff_max": largest,
        f"{_GROUP}/k3_kl": k3,
        f"{_GROUP}/perplexity_ratio": math.exp(max(-LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, -difference))),
        f"{_GROUP}/effective_sample_size": min(1.0, ratio**2 / square),
        f"{_GROUP}/chi_square": max(0.0, square - 2 * ratio + 1),
    }


def _moments(difference: Tensor, mask: Tensor) -> dict[str, Weighted]:
    """Means of |d|, exp(d) - 1 - d, d, exp(d) and exp(2 d), and the largest |d|, with d = `difference` in `mask`."""
    d = torch.where(mask, difference, 0)
    bounded = d.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    values = {
        "size": d.abs(),
        "k3": bounded.expm1() - bounded,
        "difference": d,
        "ratio": bounded.exp(),
        "square": (2 * bounded).exp(),
    }
    count = count_true(mask).sum(-1)
    largest = pad(d.abs().flatten(-2), (0, 1)).amax(-1)  # also of no rows
    means = {name: Weighted(torch.where(mask, value, 0).sum((-2, -1)), count) for name, value in values.items()}
    moments = means | {"largest": Largest(largest, (count > 0).to(largest.dtype))}
    return {f"{_GROUP}/{name}": moment for name, moment in moments.items()}


def _and_moments(batch: TensorDict, *, metrics: Callable, version: int | None) -> dict[str, Weighted]:
    difference, mask = log_ratio(batch["logp"], batch["rollout_logp"]), batch["mask"]
    counted = mask if version is None else mask & (batch["version"] == version)
    return {**metrics(batch), **_moments(difference, counted)}


def staleness_metrics(batch: TensorDict, step: int) -> dict[str, float]:
    """The age of the tokens that the step after `step` trains on, in updates: mean and maximum over action tokens."""
    if "version" not in batch.keys() or not bool(batch["action"].any()):
        return {}
    age = step - batch["version"][batch["action"]]
    return {"rollout/staleness": age.double().mean().item(), "rollout/staleness_max": age.max().item()}


def check_staleness(batch: TensorDict, step: int, max_staleness: int | None) -> None:
    """Refuse tokens for the step after `step` that are older than `max_staleness`; None: any.

    Raises: EngineError.
    """
    age = staleness_metrics(batch, step).get("rollout/staleness_max", 0)
    if max_staleness is not None and age > max_staleness:
        raise EngineError(
            f"tokens of step {step + 1} were sampled with weights that are {age:g} updates old",
            need=f"at most {max_staleness} (rollout.max_staleness)",
            do="see the logs of the generator; a workflow of yours may not return completions of earlier steps",
        )
