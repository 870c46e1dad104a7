"""The console of a run: a live view in a terminal, lines of text elsewhere."""
