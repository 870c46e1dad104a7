"""The in-process trainer: optimizer steps on one rank or several."""
