"""The devices of this process, of any kind that torch has.

    kinds        names of accelerators, and the environment variables that select their devices; imports no torch
    accelerator  the accelerator of this process: its memory, its process group, its name
    cuda         what torch can only do on devices that it calls so
    peaks        peak FLOP/s of devices

No other file of purerl names a kind of accelerator: a test checks it. What a kind can do is asked of torch, so other
accelerators work as far as torch supports them.
"""
