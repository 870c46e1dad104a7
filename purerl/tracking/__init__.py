"""Trackers and the console: the metrics and completions of a run, shown while it trains."""
