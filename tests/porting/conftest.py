"""Scripts for TRL are inputs of the tests, and import libraries that are not here."""

collect_ignore_glob = ["trl/*.py"]
