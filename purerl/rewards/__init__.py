"""Rewards: functions that say how good a completion is, and how they are called. docs/rewards.md explains both."""
