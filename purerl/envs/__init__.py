"""Environments that respond to a model's turns."""
