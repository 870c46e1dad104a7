"""Trackers for tests, and functions that read what a run has logged."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import define, frozen

from purerl.monitoring.trackers.protocol import RunInfo, Tracker

__all__ = ["MODULE", "Notes", "NotesConfig", "read_notes", "untimed_metrics"]

MODULE = __name__


@frozen
class NotesConfig:
    """Settings of `Notes`: the calls that fail."""

    fails_at: tuple[str, ...] = ()


@define
class Notes:
    """A tracker that writes each call to a file, prints, draws random numbers, and fails at the calls in `fails_at`."""

    Config = NotesConfig

    config: NotesConfig
    path: Path

    @staticmethod
    def build(config: NotesConfig, *, run_info: RunInfo) -> Tracker:
        """Build the tracker."""
        notes = Notes(config, run_info.folder / "notes.json")
        notes.write("first", run_info.first)
        notes.write("identity", run_info.identity)
        notes.write("steps", run_info.settings["max_steps"])
        return notes

    def write(self, call: str, value: Any) -> None:
        print("output of the tracker:", call)  # noqa: T201 - simulates a library that prints
        random.random()
        np.random.rand()
        torch.rand(1)
        if call in self.config.fails_at:
            raise OSError("the disk is full")
        with self.path.open("a") as file:
            file.write(json.dumps([call, value]) + "\n")

    def log(self, record: Mapping[str, Any]) -> None:
        self.write("log", dict(record))

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.write("completions", [step, list(rows)])

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.write("evaluation_completions", [step, list(rows)])

    def close(self, *, failed: bool) -> None:
        self.write("close", failed)


def read_notes(directory: Path) -> list[Any]:
    """The calls that `Notes` has written, as pairs of a name and a value."""
    path = directory / "trackers" / f"{MODULE}.Notes" / "notes.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def untimed_metrics(directory: Path) -> list[dict[str, Any]]:
    """The metrics of a run without those under ``time/``."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]
