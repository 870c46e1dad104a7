"""The training loop: draw, sample, score, update, evaluate, save. It names no algorithm and no engine."""
