"""Equations that named algorithms are composed of: plain tensors in, plain tensors out."""
