"""Weights from a trainer to the processes of an engine, in buckets, and verified.

    buckets   `WeightBuckets`: one copy of the weights in the memory of the host, read while it is being written
    memory    `Memory`: that of a bucket, which other processes of the host can read if it is shared
    staging   `Staging`: the newest buckets on the trainer's device
    sender    `Sender`: sends them to all processes of one server, and compares what these report with what was sent
    engine    the code in the engine's processes: a directory for PYTHONPATH, with one file that needs only torch

One weight sync, ``generator.load_weights(trainer.weights(), version=v)``, with one server. Time goes down, an arrow is
data or a message, and "wait" ends with the arrow at its side. [n] is a check, explained below::

    trainer's ranks           server's event loop         sender's thread          each process of the engine
    ---------------           -------------------         ---------------          --------------------------
    check names, shapes [1]
    `ServedGenerator`   ---->  `Server.update`
                               interrupt requests, wait
                               for their answers (a)
    wait for readers    <----  `attach`: has no use for
                               the weights of before
                               POST the address  ------------------------------->  check token and lease [2]
                               start the sender  ----->   wait for ready   <-----  ready/RANK, with its device
                                                          check the devices [3]    wait for bucket/0
    gather a tensor,
    all ranks together (b)
    bucket K is full   ------------------------------->   bucket/K, bytes  ----->  check the code [4]
    gather the next ones                                                           read the bytes, and then load
                                                          memory is free   <-----  read/RANK/K (c)
    last bucket is full ------------------------------>   bucket/N: end    ----->  all have come
    digest of all bytes ------------------------------>   wait for report  <-----  report/RANK: digest, names, error
                                                          compare them [5]
                               wait for the sender <---   the end
                               wait for the answer <-----------------------------  answer to the POST
    wait for all servers <---  send requests again

    (a) unless the engine continues requests with the new weights
    (b) `WeightBuckets.fill` on the first rank; the other ranks only take part. It never waits for an engine again
    (c) only if a receiver has read memory of the trainer's device, before this memory is used for another bucket

    [1] the server's model has each name, with this shape; before anything is gathered
    [2] the request is of this run: the token of the server, and its lease if purerl has not started it
    [3] a broadcast between devices can reach them
    [4] the HMAC of each message, under a key of this transfer, in both directions
    [5] each process has loaded without an error, has the digest of the bytes that were sent, and all names in order

Each wait ends after `update_timeout` or, on the ranks, `longest_update`. If one ends so, or if [4] or [5] fails, the
server is started again and gets the same buckets, which are still there. The run ends if [1] or [3] fails, if the
server fails twice with the same error, and if purerl has not started the server.

Both sides exchange small messages over stores of torch.distributed: files in a folder of the sender, or, to servers
that purerl has not started, one that the sender opens to the network. Each message carries a code that only the run and
the server can compute. A receiver reads shared memory of the host, or, if it is on the trainer's device, memory of this
device. Otherwise the bytes are broadcast in a group of its own, by gloo between hosts or by NCCL between devices.
Neither the stores nor the group are part of the trainer's default group.
"""
