"""What a run leaves on disk for people: lines of JSON, and rollouts."""
