"""A fake trainer that reports the metrics of its own rank."""

from __future__ import annotations

from purerl.backends.fake import trainer

conformance = trainer.conformance
trainer.sum_metrics = lambda metrics, ranks: dict(metrics)
