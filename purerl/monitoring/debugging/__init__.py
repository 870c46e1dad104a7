"""Finding out what a run does: profiles of steps, memory snapshots, and the stacks of a step that takes too long."""
