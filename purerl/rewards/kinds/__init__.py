"""Kinds of rewards: a module for each, found by its name. CONTRIBUTING.md says how to add one."""
