"""Rewards that models compute in the processes of a run: classifiers, and judges."""
