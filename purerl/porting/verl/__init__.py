"""Commands, scripts and configurations of verl, and their translation."""
