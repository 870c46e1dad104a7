"""The interface between the training loop and a tracker, which records a run for people to watch.

`purerl.testing.check_tracker` tests whether a class satisfies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import frozen

__all__ = ["RunInfo", "SupportsWarnings", "Tracker"]


@frozen
class RunInfo:
    """The run that a tracker records.

    name       of the run
    identity   stays the same when the run is resumed, and differs between runs; letters and digits
    folder     where the tracker may store files of its own
    settings   the configuration: value by dotted key
    first      step of the first record that will be logged; later records replace earlier ones of the same step
    """

    name: str
    identity: str
    folder: Path
    settings: Mapping[str, Any]
    first: int

    @property
    def label(self) -> str:
        """A name that is unique to this run."""
        return f"{self.name}-{self.identity}"


@runtime_checkable
class Tracker(Protocol):
    """Records a run. If a method raises, the error is logged and the run continues.

    A run that is resumed from a checkpoint logs some steps again, with the same numbers except for those under
    ``time/``. A tracker shows each step once. The evaluation of the step at which it resumes is also logged again.
    """

    def log(self, record: Mapping[str, Any]) -> None:
        """Record the metrics of one step: number by name. ``record["step"]`` is the step, 0 before the first update."""
        ...

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record some completions of `step`.

        A row has the strings prompt, completion, finish and ground_truth (None: the example has none), and the numbers
        reward (None: no reward) and ``reward/<name>`` for each component. If any of them is an episode of several
        turns, they also have messages: the conversation as JSON (None: it has none). All rows have the same names.
        """
        ...

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record some completions of the evaluation after `step`.

        A row has what a row of `completions` has, and data_set, index and attempt, which identify the completion, its
        number of tokens, answer (None: no answer, or no answer extractor) and correct (None: not known).
        """
        ...

    def close(self, *, failed: bool) -> None:
        """End the recording. `failed`: the run stopped because of an error. No other method is called afterwards."""
        ...


@runtime_checkable
class SupportsWarnings(Protocol):
    """An optional method of a tracker."""

    def warn(self, step: int, name: str, text: str) -> None:
        """Record a warning about the run, raised in `step`. `name` is that of its check, such as "no_variance".

        A run that is resumed from a checkpoint may raise some warnings again, in the same steps.
        """
        ...
