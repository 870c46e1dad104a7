"""Modules in the place of engines, on the path of `tests.serving.interpreter` only."""
