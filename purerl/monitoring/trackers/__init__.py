"""Trackers: libraries that record the metrics and completions of a run."""
