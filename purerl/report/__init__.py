"""One HTML file about one or more runs."""
