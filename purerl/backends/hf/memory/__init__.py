"""Memory of the in-process engines, computed before a model is loaded."""
