"""Engines for tests: a real learner, small enough to check by hand, that needs neither transformers nor files."""
