"""Signs in the metrics of a run that it does not learn: what is wrong, the likely cause, and what to try."""
