"""Engines for tests: a real learner, small enough to check by hand, without transformers and without files."""
