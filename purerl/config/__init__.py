"""What a run is, and how it is written, read and checked."""
