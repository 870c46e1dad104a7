"""All tests and benchmarks that need a GPU, by one command. See `__main__.py`."""
