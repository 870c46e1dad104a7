"""The command line of purerl."""
