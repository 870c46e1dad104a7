"""Advantage estimators: how good a row, or a token of it, was. Plain tensors in, plain tensors out."""
