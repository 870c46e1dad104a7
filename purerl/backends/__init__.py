"""Engines: a folder each. `<engine>.trainer` and `<engine>.generator` expose ``Config`` and ``build``."""
