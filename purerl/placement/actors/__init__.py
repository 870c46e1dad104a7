"""Engines in actors of Ray: their processes, the calls of their methods, and how batches and weights reach them.

The run itself is in one process, the driver. It has a proxy for each engine.

    cluster    a local Ray that is started here, or a cluster that is joined
    host       the process of an actor, which has engines
    actors     a group of such processes, which is called together
    arrays     batches and weights as numpy arrays, which Ray shares without a copy
    weights    the weights of a trainer, in buckets that go from actor to actor
    trainer, generator    the proxies
    engines    which group has which engine
"""
