"""What a run trains and is evaluated on: reading it, and the order in which it is drawn."""
