"""What a run leaves on disk for people: metrics and rollouts."""
