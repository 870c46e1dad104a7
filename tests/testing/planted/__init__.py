"""Planted errors: engines and environments that are right except for one error, which the suites have to detect.

python -m tests.testing.planted.page > docs/reference/planted_errors.md
"""
