"""Tensor operations, a package for each: its contract, its reference, and fast implementations that must equal it."""
