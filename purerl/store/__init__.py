"""The files of a run: its directory, metrics as JSON Lines, rollouts, and checkpoints."""
