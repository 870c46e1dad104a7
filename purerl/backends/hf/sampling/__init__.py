"""The in-process generator: a table of rows, its caches, and decoding."""
