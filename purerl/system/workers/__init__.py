"""Worker processes that can be killed with everything that they have started; for rewards and environments."""
