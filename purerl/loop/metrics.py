"""Metrics of a step as plain numbers. docs/metrics.md explains each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Weighted
from purerl.loop.run import Clock, Sample

__all__ = ["batch_metrics", "means", "reward_metrics", "time_metrics"]


def means(metrics: Mapping[str, Weighted]) -> dict[str, float]:
    """Totals over weights; a metric that nothing was counted for is left out."""
    pairs = {name: (float(total), float(weight)) for name, (total, weight) in metrics.items()}
    return {name: total / weight for name, (total, weight) in pairs.items() if weight}


def reward_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Mean reward of the judged rows, whole and by component; empty where nothing was judged."""
    judged = [sample.components for sample in samples if sample.components]
    if not judged:
        return {}
    names = dict.fromkeys(name for components in judged for name in components)
    parts = {f"reward/{name}": sum(c.get(name, 0.0) for c in judged) / len(judged) for name in names}
    return {"reward/mean": sum(parts.values()), "reward/judged": len(judged) / len(samples)} | parts


def batch_metrics(batch: TensorDict) -> dict[str, float]:
    """Lengths, share of rows cut short, and the gap between sampler and trainer."""
    lengths = batch["action"].sum(-1).float()
    found = {"rollout/length": lengths.mean(), "rollout/length_max": lengths.max()}
    if "truncated" in batch.keys():
        found["rollout/truncated"] = batch["truncated"].float().mean()
    if "rollout_logp" in batch.keys() and "old_logp" in batch.keys():
        found |= _gap(batch["old_logp"] - batch["rollout_logp"], batch["action"])
    return {name: value.item() for name, value in found.items()}


def _gap(difference: Tensor, action: Tensor) -> dict[str, Tensor]:
    gap = difference[action].abs()
    return {"rollout/gap": gap.mean(), "rollout/gap_max": gap.max()} if gap.numel() else {}


def time_metrics(clock: Clock, batch: TensorDict | None) -> dict[str, float]:
    """Seconds by phase, CPU seconds, and action tokens a second over the whole step."""
    tokens = 0 if batch is None else int(batch["action"].sum())
    seconds = {f"time/{phase}": seconds for phase, seconds in clock.seconds.items()}
    return seconds | {"time/cpu": clock.cpu, "time/tokens_per_second": tokens / clock.seconds["step"]}
