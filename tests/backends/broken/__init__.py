"""Trainers with a bug that shows only on several ranks."""
