"""Apply the checks to a run directory. No file is locked or changed, so the run may be in progress."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import define

from purerl.monitoring.warnings.history import Facts, History, Record
from purerl.monitoring.warnings.monitor import RunWarning, State, initial, observe

__all__ = ["Monitor", "facts_of_run"]


def facts_of_run(path: Path) -> Facts:
    """The facts about the run in the directory `path`. What is missing or damaged in its files has its default."""
    config, data = _read(path / "config.toml", tomllib.loads), _read(path / "data.json", json.loads)
    rollout, workers = _table(config.get("rollout")), _table(config.get("reward_workers"))
    found = {
        "learns_from_rewards": data.get("learns_from_rewards"),
        "max_failure_rate": workers.get("max_failure_rate"),
        "max_tokens": rollout.get("max_tokens"),
        "max_staleness": rollout.get("max_staleness") or int("recorded" in rollout),
        "mismatch_level": data.get("mismatch_level"),
        "mismatch_limit": data.get("mismatch_limit"),
    }
    kinds: dict[str, Any] = {"learns_from_rewards": bool, "max_tokens": int, "max_staleness": int}
    kinds |= dict.fromkeys(("max_failure_rate", "mismatch_level", "mismatch_limit"), (int, float))
    return Facts(**{name: value for name, value in found.items() if isinstance(value, kinds[name])})


def _read(path: Path, parse: Callable[[str], Any]) -> Mapping[str, Any]:
    """The table in the file; empty if the file is missing or damaged."""
    try:
        return _table(parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


@define
class Monitor:
    """Observes a run while it trains. Keeps a bounded number of records."""

    _state: State

    @property
    def history(self) -> History:
        """The part of the metrics that the checks read."""
        return self._state.history

    @classmethod
    def of_run(cls, path: Path, records: Iterable[Record]) -> Monitor:
        """The monitor of the run in the directory `path` after `records`, whose warnings were raised before."""
        monitor = cls(initial(facts_of_run(path)))
        for record in records:
            monitor.observe(record)
        return monitor

    def observe(self, record: Record) -> tuple[RunWarning, ...]:
        """The warnings that `record`, the metrics of the next step, raises."""
        self._state, raised = observe(self._state, record)
        return raised
