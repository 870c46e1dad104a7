"""A fake trainer that another rank calls with other rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.backends.fake import trainer
from purerl.ranks import current_ranks

_score = trainer.FakeTrainer.score


def conformance(directory: Path) -> dict[str, Any]:
    """Break the trainer of this process. Importing this module does not: pytest imports it to look for doctests."""
    trainer.FakeTrainer.score = lambda self, batch, outputs: _score(self, batch[current_ranks().rank :], outputs)
    return trainer.conformance(directory)
