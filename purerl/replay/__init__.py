"""Recorded rollouts under another algorithm or another reward, without a model.

open_recording   the recorded rollouts of a run
replay           step by step, what the run computed and what another algorithm computes
measure          the differences of a step in numbers; `mean_of` is their mean over steps
notes            what a reader of these numbers has to know

`purerl.replay.scoring.open_scorer` scores recorded completions again. It is imported apart, because it needs what a run
needs to call reward functions.
"""

from __future__ import annotations

from purerl.replay.numbers import Numbers, mean_of, measure, notes
from purerl.replay.recording import Recording, open_recording, parse_steps
from purerl.replay.replay import ReplayedStep, replay

__all__ = [
    "Numbers",
    "Recording",
    "ReplayedStep",
    "mean_of",
    "measure",
    "notes",
    "open_recording",
    "parse_steps",
    "replay",
]
