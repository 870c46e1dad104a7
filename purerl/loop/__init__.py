"""The loop: it draws, samples, judges, scores, updates, evaluates and saves, and knows no algorithm by name."""
