"""Opening, interrupting and reading runs in tests."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.loop import remaining_steps as loop
from purerl.loop.run import Run, open_run
from purerl.loop.state import LoopState
from purerl.loop.train import Summary, claim_directory, train
from purerl.placement.join import SINGLE_PROCESS
from purerl.store.lines import read_lines


def opened(config: RunConfig, directory: Path) -> Run:
    """The run of `config` with everything opened. Its directory is not locked afterwards."""
    check(config)
    claimed = claim_directory(directory, config, fresh=True)
    try:
        return open_run(config, claimed, {}, SINGLE_PROCESS, ExitStack())
    finally:
        claimed.release()


def train_until(step: int, config: RunConfig, **kwargs: Any) -> None:
    """Train, and interrupt the run after `step`."""
    advance = loop.advance

    def advance_until(run: Run, state: LoopState, *args: Any) -> Any:
        if state.step == step:
            raise KeyboardInterrupt
        return advance(run, state, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "advance", advance_until)
        with pytest.raises(KeyboardInterrupt):
            train(config, **kwargs)


def records(run: Summary | Path) -> list[dict[str, Any]]:
    """The metrics of each step of a run, or of the run in a directory."""
    return read_lines((run if isinstance(run, Path) else run.directory) / "metrics.jsonl")


def failures(directory: Path) -> list[dict[str, Any]]:
    """The failures of reward functions that the run in `directory` has logged."""
    return read_lines(directory / "failures.jsonl")


def without_times(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`metrics` without the times, which differ between equal runs."""
    return [{name: value for name, value in record.items() if not name.startswith("time/")} for record in metrics]


def losses(metrics: list[dict[str, Any]]) -> list[float]:
    """All losses of the policy, in the order of the steps."""
    return [value for record in metrics for name, value in record.items() if name.startswith("policy/loss/")]
