"""The computer and its programs: files, processes, devices, memory, messages and secrets."""
