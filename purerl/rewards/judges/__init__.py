"""Judges: language models that are asked for a score. What they are asked, and what their answers mean."""
