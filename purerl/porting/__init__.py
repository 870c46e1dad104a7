"""Configurations of TRL and verl, read without running them, and translated to TOML files of purerl."""
