"""The report of one or more runs as a single HTML file."""
