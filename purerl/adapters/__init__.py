"""Adapters: environments, tools, data sets and rewards of other libraries, in purerl's interfaces. One file each."""
