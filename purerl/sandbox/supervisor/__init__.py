"""What runs between the owner of a sandbox and its program: only the standard library, in a process of its own."""
