"""Rollouts on disk."""
