"""A model for training: its outputs, packed rows, parallelism, and the test of its assumptions."""
