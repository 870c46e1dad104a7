"""Where the processes of a run are: the ranks, how they start, how they notice that one has ended, and their logs."""
