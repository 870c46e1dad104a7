"""What another algorithm or another reward would have computed from the recorded rollouts of a run, without a model.

open_recording   the recorded rollouts of a run
replay           step by step, what the run computed and what another algorithm computes
open_scorer      scores recorded completions again
measure          the differences of a step in numbers; `mean_of` is their mean over steps
notes            what a reader of these numbers has to know
"""

from __future__ import annotations

from purerl.replay.numbers import Numbers, mean_of, measure, notes
from purerl.replay.recording import Recording, open_recording, parse_steps
from purerl.replay.replay import ReplayedStep, replay
from purerl.replay.scoring import Scorer, open_scorer

__all__ = [
    "Numbers",
    "Recording",
    "ReplayedStep",
    "Scorer",
    "mean_of",
    "measure",
    "notes",
    "open_recording",
    "open_scorer",
    "parse_steps",
    "replay",
]
