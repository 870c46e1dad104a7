"""Engines, a folder each: `<engine>.trainer` and `<engine>.generator` define ``Config`` and ``build``."""
