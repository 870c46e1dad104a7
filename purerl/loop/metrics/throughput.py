"""Tokens per second by phase, and model FLOPs utilization: in each step, and over a whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from purerl.loop.state import Clock
from purerl.protocols import SupportsFlops, Trainer
from purerl.types import TensorDict

__all__ = ["RATES", "Throughput", "mean_rates", "measured_by"]

RATES = {
    "time/sampled_tokens_per_second": "time/generate",
    "time/scored_tokens_per_second": "time/score",
    "time/trained_tokens_per_second": "time/update",
    "time/mfu": "time/update",
}
"""Metric -> the metric of the seconds that it is a rate over."""


@frozen
class Throughput:
    """The work of the trainers in a step, apart from the number of rows.

    trainers  the models that are trained
    passes    how often each of them is trained on a row
    scores    whether a model scores the rows before the update
    """

    trainers: tuple[Trainer, ...] = ()
    passes: tuple[int, ...] = ()
    scores: bool = False

    def metrics(self, batch: TensorDict | None, sampled: float, clock: Clock) -> dict[str, float]:
        """The rates of a step with the rows `batch`, for which `sampled` tokens were sampled.

        A token is trained as often as the model with the most passes reads it. A phase without work has no rate.
        Without the device's peak in `devices.peaks` there is no utilization.
        """
        read = 0 if batch is None else int(batch["attention_mask"].sum())
        tokens = {"generate": sampled, "score": self.scores * read, "update": max(self.passes, default=0) * read}
        seconds = {phase: clock.seconds.get(phase, 0.0) for phase in tokens}
        names = dict(zip(tokens, RATES, strict=False))
        rates = {names[p]: tokens[p] / seconds[p] for p in tokens if tokens[p] and seconds[p] > 0}
        utilization = self._utilization(read, batch, seconds["update"])
        return rates if utilization is None else {**rates, "time/mfu": utilization}

    def _utilization(self, read: int, batch: TensorDict | None, seconds: float) -> float | None:
        """FLOPs of the models in their updates, divided by those that the devices could have computed."""
        models = [trainer for trainer in self.trainers if isinstance(trainer, SupportsFlops)]
        peaks = [trainer.peak_flops() for trainer in models]
        if not read or batch is None or seconds <= 0 or not peaks or len(models) < len(self.trainers):
            return None
        if any(peak is None for peak in peaks):
            return None
        length = read / max(1, int(batch["attention_mask"].any(-1).sum()))
        flops = sum(passes * each.flops(read, length) for passes, each in zip(self.passes, models, strict=True))
        return flops / (seconds * max(peak for peak in peaks if peak is not None))


def mean_rates(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Each rate over the whole run: its mean over steps, weighted by their seconds.

    >>> mean_rates([{"time/mfu": 0.5, "time/update": 1.0}, {"time/mfu": 0.2, "time/update": 2.0}, {"step": 3}])
    {'time/mfu': 0.3}
    """
    records, rates = list(records), dict[str, float]()
    for name, phase in RATES.items():
        pairs = [(record[name], record[phase]) for record in records if record.get(name) and record.get(phase)]
        if pairs:
            rates[name] = sum(rate * seconds for rate, seconds in pairs) / sum(seconds for _, seconds in pairs)
    return rates


def measured_by(records: Iterable[Mapping[str, Any]], memory: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """Speed and memory of a run, for its summary: rates of all steps, and the maximum of `memory` over ranks."""
    memory = list(memory)
    peaks = {name: max(part.get(name, 0) for part in memory) for name in dict.fromkeys(n for m in memory for n in m)}
    return {name.removeprefix("time/"): value for name, value in mean_rates(records).items()} | peaks
