"""Requests to an OpenAI-compatible server: retried, rate-limited, cached, counted."""
