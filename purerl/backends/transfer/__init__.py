"""Weights from a trainer to the processes of an engine, in buckets, and verified.

    buckets   `WeightBuckets`: one copy of the weights in the memory of the host, read while it is being written
    memory    `Memory`: that of a bucket, which other processes of the host can read if it is shared
    staging   `Staging`: the newest buckets on the trainer's device
    sender    `Sender`: sends them to all processes of one server, and compares what these report with what was sent
    engine    what runs in the engine's processes: a directory for PYTHONPATH, with one file that needs only torch

Both sides exchange small messages over stores of torch.distributed: files in a folder of the sender, or, to servers
that purerl has not started, one that the sender opens to the network. Each message carries a code that only the run and
the server can compute. A receiver reads shared memory of the host, or, if it is on the trainer's device, memory of this
device. Otherwise the bytes are broadcast in a group of its own, by gloo between hosts or by NCCL between devices.
Neither the stores nor the group are part of the trainer's default group.
"""
