"""Comparison of purerl's functions with the same functions of other libraries: speed, and laws that hold."""
