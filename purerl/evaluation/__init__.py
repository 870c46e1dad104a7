"""Results of an evaluation: the metrics of each data set, and the statistics that they are computed with."""
