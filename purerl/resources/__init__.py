"""What a run needs of a computer: bytes of tensors, peak memory of processes and devices, floating-point operations."""
