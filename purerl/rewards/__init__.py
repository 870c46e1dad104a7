"""Reward functions: (completion, example) -> a number, named numbers, or None where no reward can be told."""
