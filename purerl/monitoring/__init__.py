"""Metrics and completions of a run for people, while it trains: console, trackers, warnings, stacks and profiles."""
