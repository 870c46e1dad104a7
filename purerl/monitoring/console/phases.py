"""The phases of a step: which of its times are parts of ``time/step``."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["step_phases"]

_PREFIX = "time/"
_NOT_PHASES = ("step", "cpu", "tokens_per_second")
_RATES = ("_fraction", "_tokens_per_second", "mfu")
_OVERLAPPING = ("generate", "reward")


def step_phases(names: Iterable[str]) -> list[str]:
    """The phases among the metrics `names`, without their prefix.

    If the trainer waits for rollouts, ``time/rollout`` is how long. Sampling and rewards are then no phases, because
    they continue while the trainer trains.

    >>> step_phases(["time/step", "time/generate", "time/update"])
    ['generate', 'update']
    >>> step_phases(["time/step", "time/rollout", "time/generate", "time/update", "time/trainer_idle_fraction"])
    ['rollout', 'update']
    """
    times = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    excluded = {*_NOT_PHASES, *(_OVERLAPPING if "rollout" in times else ())}
    return [name for name in times if name not in excluded and not name.endswith(_RATES)]
