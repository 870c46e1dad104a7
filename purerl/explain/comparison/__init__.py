"""The differences between two algorithms, one by one, and what each of them changes on a batch.

compare                  the differences, and their effects on a batch
example_completions      a generated batch
stored_completions       the rollouts of a run
read_completions         a batch in a file
"""

from __future__ import annotations

from purerl.explain.comparison.batches import example_completions, read_completions, stored_completions
from purerl.explain.comparison.compare import Difference, compare
from purerl.explain.comparison.outcomes import Effect, effect_texts

__all__ = [
    "Difference",
    "Effect",
    "compare",
    "effect_texts",
    "example_completions",
    "read_completions",
    "stored_completions",
]
