"""vLLM as a server."""
