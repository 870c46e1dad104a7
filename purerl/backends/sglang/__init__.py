"""SGLang as a server."""
