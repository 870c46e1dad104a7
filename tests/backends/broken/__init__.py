"""Trainers with a bug that shows only on several ranks, and generators with a bug in one function."""
