"""The processes of a run: ranks, their start and their logs, and a watchdog that notices that one has ended."""
