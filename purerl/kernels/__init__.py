"""Tensor operations, a package for each: its contract, and for a fast path the reference that it must equal."""
