"""Algorithms as text: their parts, a catalog of all of them, and the differences between two."""
