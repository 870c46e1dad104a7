"""Attacks on a running purerl by another user of its host, and from another network."""
