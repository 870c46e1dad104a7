"""Ops that are worth their own file: a folder each, with a contract, a reference, and a fast path that equals it."""
