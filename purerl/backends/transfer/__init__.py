"""Weights from a trainer to the processes of an engine, in shared memory or over gloo, in buckets, and verified.

    buckets   `WeightBuckets`: one copy of the weights in the memory of the host, read while it is being written
    memory    `Memory`: that of a bucket, which other processes of the host can read if it is shared
    sender    `Sender`: sends them to all processes of one server, and compares what these report with what was sent
    engine    what runs in the engine's processes: a directory for PYTHONPATH, with one file that needs only torch

The sender owns a store (`torch.distributed.TCPStore`), over which both sides exchange small messages, and is rank 0 of
a group of its own, in which the bytes are broadcast if they are not in shared memory. Neither is part of the trainer's
default group.
"""
