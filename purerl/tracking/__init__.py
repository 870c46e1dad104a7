"""Showing a run to people while it goes on."""
