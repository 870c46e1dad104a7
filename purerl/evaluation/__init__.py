"""Evaluations: attempts at problems, the metrics of each data set, and their statistics."""
