"""An empty module in the place of an engine, for `tests.serving.interpreter`."""
