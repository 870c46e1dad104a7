"""Tests of replays of recorded rollouts."""
