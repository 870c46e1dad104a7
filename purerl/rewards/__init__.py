"""Reward functions: signatures, execution, combination, and built-in functions. See docs/how-to/rewards.md."""
