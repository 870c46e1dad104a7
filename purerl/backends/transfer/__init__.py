"""Weights from a trainer to the processes of an engine, over gloo, in buckets, and verified.

    buckets   `WeightBuckets`: one copy of the weights in the memory of the host, read while it is being written
    sender    `Sender`: sends them to all processes of one server, and compares what these report with what was sent
    engine    what runs in the engine's processes: a directory for PYTHONPATH, with one file that needs only torch

The sender owns a store (`torch.distributed.TCPStore`), over which both sides exchange small messages, and is rank 0 of
a group of its own, in which the bytes are broadcast. Neither is part of the trainer's default group.
"""
