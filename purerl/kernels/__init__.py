"""Tensor operations that need a fast path. Each has a package with a contract, a reference and the fast path."""
