"""Chat templates tried on rows of every kind: a row works, is refused, or has a note; each with a proof."""
