"""Weights of a model: full tensors, names in its files, adapters merged, and checkpoints."""
