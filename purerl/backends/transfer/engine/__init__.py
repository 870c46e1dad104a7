"""A directory for the PYTHONPATH of an engine, whose environment has torch and does not have purerl."""
