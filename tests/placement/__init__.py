"""Tests of runs on several ranks, in real processes with gloo."""
