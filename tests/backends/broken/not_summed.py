"""A fake trainer that reports the metrics of its own rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.backends.fake import trainer


def conformance(directory: Path) -> dict[str, Any]:
    """Break the trainer of this process. Importing this module does not: pytest imports it to look for doctests."""
    trainer.sum_metrics = lambda metrics, ranks: dict(metrics)
    return trainer.conformance(directory)
