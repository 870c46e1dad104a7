"""Shell scripts, read without running them: the commands that they would run."""
