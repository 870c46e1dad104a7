"""The process of an actor: it has engines by name, and calls their methods.

The actors of a group are the ranks of a process group, so the trainers in it are those of one rank each. Batches and
results are packed (`arrays`). Only the first actor returns results that are equal on all ranks.

Its methods run in one thread, in the order in which they are called, except those of the groups in `THREADS`.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from purerl.backends.copies import copies_of
from purerl.backends.weight_changes import change_weights
from purerl.placement.actors.arrays import pack, pack_tensors, unpack, unpack_tensors
from purerl.placement.actors.package import load_ray
from purerl.placement.logs import RankLog
from purerl.placement.process_group import process_group
from purerl.placement.stacks import start_stack_thread
from purerl.placement.world import World
from purerl.protocols import Capabilities, Generator, Trainer, Weights
from purerl.ranks import ranks_of_thread
from purerl.system.stores import listening_store

__all__ = ["OPTIONAL", "THREADS", "Built", "EngineHost", "WeightsInfo"]

THREADS = {"control": 1, "checkpoints": 1}
"""Threads beside the one that calls engines: for what must be possible while it works."""

OPTIONAL = (
    "base", "flops", "gradient", "limit_vocabulary", "peak_flops", "sleep", "stage", "submit_to", "use_images",
    "use_routes",
)  # fmt: skip
"""Methods that an engine may have beside those of `Trainer` and `Generator`."""

_BUCKET = 64 * 2**20  # bytes
_POLL = 0.5  # seconds between two looks whether the engine still loads weights


@frozen
class Built:
    """Facts about an engine: its capabilities, its optional methods, and the names of its copies of the weights."""

    capabilities: Capabilities
    methods: frozenset[str]
    copies: Sequence[str]


@frozen
class WeightsInfo:
    """`Weights` without the tensors."""

    adapter: Mapping[str, Any] | None
    metadata: Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class EngineHost:
    """The engines of the process with this `rank` in the group `name` of `size` processes.

    directory    of the run, for the log
    python_path  of the run, which may have modules of the user
    working_directory  of the run: relative paths are relative to it
    """

    def __init__(self, name: str, rank: int, size: int, directory: str, python_path: list[str], working_directory: str):
        sys.path[:] = python_path
        with suppress(OSError):  # another host may not have it
            os.chdir(working_directory)
        self._log = RankLog(Path(directory), f"{name}-{rank}")
        self._log.redirect()
        start_stack_thread(Path(directory), f"{name}-{rank}", threading.Event())
        self._rank, self._size = rank, size
        self._engines: dict[str, Any] = {}
        self._staged: dict[int, Any] = {}
        self._loads: dict[str, _Loading] = {}
        self._stack = ExitStack()
        self._store: Any = None

    def open_store(self, timeout: float) -> tuple[str, int]:
        """Open the store of the process group, in the first actor, in the network of Ray; return its address."""
        address = load_ray().util.get_node_ip_address()
        self._store = listening_store(address, 0, timeout)
        return address, self._store.port

    def join(self, address: str, port: int, secret: bytes, timeout: float) -> None:
        """Join the process group of the actors with this `secret`. Collective."""
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # no rank opens the store: `open_store` has
        world = World(self._rank, self._size, 0, address, port, "Ray", None)
        self._stack.enter_context(process_group(world, lambda: secret, timeout))

    def build(self, name: str, build: Callable[[], Trainer | Generator]) -> Built:
        """Build the engine `name`. Collective for a trainer."""
        with self._logged(f"building {name}"):
            self._engines[name] = build()
        return self._built(name)

    def open_base(self, name: str, base: str) -> Built | None:
        """Let `base` be the model that the trainer `name` was at its start, if it has it."""
        trainer = self._engines[name].base()
        if trainer is None:
            return None
        self._engines[base] = trainer
        return self._built(base)

    def _built(self, name: str) -> Built:
        engine = self._engines[name]
        methods = frozenset(method for method in OPTIONAL if hasattr(engine, method))
        return Built(engine.capabilities, methods, copies_of(engine))

    def call(self, name: str, method: str, batch: Any, *arguments: Any, **keywords: Any) -> Any:
        """The result of a method that returns the same on all ranks. `batch` is the first argument, or None."""
        result = self.call_each(name, method, batch, *arguments, **keywords)
        return pack(result) if self._rank == 0 else None

    def call_each(self, name: str, method: str, batch: Any, *arguments: Any, **keywords: Any) -> Any:
        """The result of a method that returns something else on each rank."""
        before = () if batch is None else (unpack(batch),)
        with self._logged(f"{name}.{method}"):
            return getattr(self._engines[name], method)(*before, *arguments, **keywords)

    def change_weights(self, name: str, names: Collection[str] | None, seed: int) -> list[str]:
        """As `purerl.backends.weight_changes.change_weights` of the trainer `name`. Collective."""
        return change_weights(self._engines[name], names, seed)

    def close(self, name: str) -> None:
        """Close the engine `name`."""
        self._engines.pop(name).close()

    def stage(self, name: str, number: int) -> None:
        """Keep the state that the trainer `name` has now, as `number`. Collective."""
        self._staged[number] = self._engines[name].stage()

    def write_staged(self, number: int, path: Path) -> Mapping[str, str] | None:
        """Write the state `number` into `path`, while other methods are called. Collective."""
        with self._logged(f"writing {path}"):
            return self._staged.pop(number).write(path, ranks_of_thread("checkpoints"))

    def weights_info(self, name: str) -> WeightsInfo:
        """The names, shapes and dtypes of the weights of the trainer `name`."""
        weights = self._engines[name].weights()
        return WeightsInfo(weights.adapter, dict(weights.metadata))

    def stream_weights(self, name: str) -> Iterator[dict[str, Any]]:
        """The weights of the trainer `name`, in buckets; on ranks other than the first empty. Collective."""
        with self._logged(f"weights of {name}"):
            yield from buckets(self._engines[name].weights(), is_sender=self._rank == 0)

    def copy_weights(self, source: str, target: str, **keywords: Any) -> None:
        """Load the weights of one engine of this process into another one. Collective."""
        with self._logged(f"{target}.load_weights"):
            self._engines[target].load_weights(self._engines[source].weights(), **keywords)

    def begin_loading(self, name: str, info: WeightsInfo, **keywords: Any) -> None:
        """Begin to load weights into the engine `name`, which `put_bucket` brings."""
        weights = _QueuedWeights(info.adapter, info.metadata)
        self._loads[name] = _Loading(weights, partial(self._engines[name].load_weights, weights, **keywords))

    def put_bucket(self, name: str, bucket: dict[str, Any]) -> None:
        """Load the weights in `bucket`; after an error none are loaded, and `finish_loading` raises it."""
        self._loads[name].put(bucket)

    def finish_loading(self, name: str) -> None:
        """Wait until the engine `name` has loaded all weights. Raises: its error."""
        loading = self._loads.pop(name)
        loading.put(None)
        with self._logged(f"{name}.load_weights"):
            loading.finish()

    def write_stacks(self, reason: str) -> None:
        """Write the stacks of all threads into the log."""
        self._log.write_stacks(reason)

    def start(self) -> None:
        """Return, which the actor does when it has started."""

    def _logged(self, what: str) -> _Logged:
        return _Logged(self._log, what)


class _Logged:
    """Writes an exception that leaves the block into the log of this process; the run gets it too."""

    def __init__(self, log: RankLog, what: str) -> None:
        self._log, self._what = log, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import traceback

        if isinstance(error, Exception):
            text = "".join(traceback.format_exception(error)).rstrip()
            self._log.write(f"{self._what} has failed\n{text}")


def buckets(weights: Weights, *, is_sender: bool = True) -> Iterator[dict[str, Any]]:
    """The tensors of `weights` as arrays, in dicts of about 64 MiB, or of one tensor that is larger.

    Collective. Without `is_sender` there is none, but this rank takes part in gathering them.
    """
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if not is_sender:
            continue
        if bucket and size + tensor.nbytes > _BUCKET:
            yield pack_tensors(bucket)
            bucket, size = {}, 0
        bucket[name] = tensor.detach().clone()  # the next ones may overwrite its memory
        size += tensor.nbytes
    if bucket:
        yield pack_tensors(bucket)


class _QueuedWeights:
    """The `Weights` that come in buckets through a queue of at most one."""

    def __init__(self, adapter: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> None:
        self.adapter, self.metadata = adapter, metadata
        self.buckets: queue.Queue[dict[str, Any] | None] = queue.Queue(1)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        while (bucket := self.buckets.get()) is not None:
            yield from unpack_tensors(bucket).items()


class _Loading:
    def __init__(self, weights: _QueuedWeights, load: Callable[[], None]) -> None:
        self._weights, self._load = weights, load
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="purerl weights", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error

    def put(self, bucket: dict[str, Any] | None) -> None:
        """Pass `bucket` on, unless the thread has ended."""
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._weights.buckets.put(bucket, timeout=_POLL)
                return

    def finish(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
