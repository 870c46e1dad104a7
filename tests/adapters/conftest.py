"""Modules that only their library imports are no tests."""

collect_ignore_glob = ["verifiers_tasks/*"]
