"""Data sets: reading, tokenization, the order of the draws, and the validation split."""
