"""The processes of a run: how ranks and actors start, notice that one has ended, and write logs."""
