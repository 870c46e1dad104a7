"""The layer between the owner of a sandbox and its program: standard library only, in a process of its own."""
