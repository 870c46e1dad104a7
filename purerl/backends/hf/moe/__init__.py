"""Experts of mixture-of-experts models: the auxiliary loss of the router, and replay of selected experts."""
