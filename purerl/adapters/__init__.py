"""Environments, tools, data sets and rewards of other libraries in purerl's interfaces, a file for each library."""
