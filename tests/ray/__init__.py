"""Engines in actors of Ray, with a real local Ray. `nox -s ray` runs them."""
