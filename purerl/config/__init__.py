"""The configuration of a run: its settings, TOML files, and checks of settings that depend on each other."""
