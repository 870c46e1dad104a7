"""Sampling and scoring completions for training."""
