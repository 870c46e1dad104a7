"""The weights of a trainer in actors. They go to other actors in buckets, through Ray's object store.

The driver has only references to the buckets: no weight passes through it. At most two buckets are in the store, so no
process holds the whole model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from attrs import define
from torch import Tensor

from purerl.placement.actors.arrays import unpack_tensors
from purerl.placement.actors.group import ActorGroup
from purerl.placement.actors.host import WeightsInfo, buckets
from purerl.placement.actors.package import load_ray
from purerl.protocols import Weights

__all__ = ["RemoteWeights", "load_weights"]

_IN_STORE = 2


@define(eq=False, slots=False)
class RemoteWeights:
    """The `Weights` of the trainer `name` in the actors of `group`."""

    group: ActorGroup
    name: str

    @cached_property
    def info(self) -> WeightsInfo:
        return self.group.call("weights_info", self.name)[0]

    @property
    def adapter(self) -> Mapping[str, Any] | None:
        return self.info.adapter

    @property
    def metadata(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        return self.info.metadata

    def buckets(self) -> Iterator[Any]:
        """References to the buckets, which the first actor puts into the store while they are iterated.

        Raises: as `ActorGroup.call`, also if a bucket does not come in time.
        """
        ray = load_ray()
        options = {"num_returns": "streaming", "_generator_backpressure_num_objects": _IN_STORE}
        streams = [actor.stream_weights.options(**options).remote(self.name) for actor in self.group.actors]
        while ray.wait([streams[0]], timeout=self.group.timeout)[0]:
            try:
                yield next(streams[0])
            except StopIteration:
                break
        self.group.results([stream.completed() for stream in streams], "sending weights")

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        ray = load_ray()
        for reference in self.buckets():
            yield from unpack_tensors(ray.get(reference)).items()


def load_weights(weights: Weights, group: ActorGroup, name: str, **keywords: Any) -> None:
    """Let the engine `name` in all actors of `group` load `weights`; `keywords` are those of its method.

    Raises: the error of an engine, after all weights have been sent.
    """
    ray = load_ray()
    if isinstance(weights, RemoteWeights) and weights.group is group:
        group.call("copy_weights", weights.name, name, **keywords)
        return
    is_remote = isinstance(weights, RemoteWeights)
    info = weights.info if is_remote else WeightsInfo(weights.adapter, dict(weights.metadata))
    group.call("begin_loading", name, info, **keywords)
    in_flight: deque[list[Any]] = deque()
    for reference in weights.buckets() if is_remote else map(ray.put, buckets(weights)):
        in_flight.append(group.start("put_bucket", name, reference))
        if len(in_flight) == _IN_STORE:
            group.results(in_flight.popleft(), "loading weights")
    for references in in_flight:
        group.results(references, "loading weights")
    group.call("finish_loading", name)
