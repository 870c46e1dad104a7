"""The process group of a run: its ranks meet, and exchange messages that no other process can write."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
from torch import distributed as dist

from purerl.errors import ConfigError, EngineError, PurerlError
from purerl.placement.meeting import Meeting, meet, meet_in_folder, network_store
from purerl.placement.network import gloo_variables
from purerl.placement.world import World
from purerl.ranks import check_members, forget_group, stores_opened_by
from purerl.system.devices.accelerator import collective_backends
from purerl.system.loopback import loopback_variables, with_variables
from purerl.system.run_secret import derive_key, shared_secret
from purerl.system.signed_pickles import signed_pickles
from purerl.system.stores import without_frames

__all__ = ["among_themselves", "meet_ranks", "process_group"]

_LOG = logging.getLogger(__name__)
_SECONDS_BETWEEN_MESSAGES = 30.0

T = TypeVar("T")


@contextmanager
def process_group(world: World, find_secret: Callable[[], bytes], timeout: float) -> Iterator[None]:
    """A process group of `world`. The device of this rank is the one with its number on this host.

    find_secret  returns the secret of the run; it is not called if the ranks meet in a folder

    Raises: EngineError if the ranks do not meet within `timeout` seconds, or if a stranger is among them.
    """
    backends = collective_backends()
    if backends != "gloo":
        torch.accelerator.set_device_index(_device_index(world, torch.accelerator.device_count()))
    with ExitStack() as stack:
        start = partial(_initialize, backends, world, find_secret, timeout, stack)
        meeting = meet_ranks(start, world.rank, world.size, world.place, timeout)
        with among_themselves(meeting):
            check_members()
            yield


def _initialize(
    backends: str, world: World, find_secret: Callable[[], bytes], timeout: float, stack: ExitStack
) -> Meeting:
    """Meet the other ranks, and initialize the process group, until `stack` is closed."""
    if world.folder is not None:
        meeting = meet_in_folder(world.folder, timeout)
    else:
        with without_frames():
            store = network_store(world, timeout)
        meeting = meet(store, world.rank, world.size, find_secret(), timeout, stack)
    stack.enter_context(with_variables(loopback_variables() if meeting.is_one_host else gloo_variables(world.address)))
    limit = timedelta(seconds=timeout)
    dist.init_process_group(backends, store=meeting.store, rank=world.rank, world_size=world.size, timeout=limit)
    stack.callback(_destroy)
    return meeting


def _destroy() -> None:
    forget_group()
    if dist.is_initialized():  # unless a failure has ended it
        dist.destroy_process_group()


@contextmanager
def among_themselves(meeting: Meeting) -> Iterator[None]:
    """Let this rank use the secret and the stores of `meeting` in the block."""
    with shared_secret(meeting.secret), stores_opened_by(meeting.open_store), signed_pickles(derive_key("pickles")):
        yield


def meet_ranks(start: Callable[[], T], rank: int, size: int, where: str, timeout: float) -> T:
    """The result of `start`, which waits for all ranks.

    It is called in another thread, because a thread that waits there does not handle signals.

    Raises: EngineError after `timeout` seconds.
    """
    met: Future[T] = Future()

    def run() -> None:
        try:
            met.set_result(start())
        except Exception as error:  # noqa: BLE001 -- raised below
            met.set_exception(error)

    threading.Thread(target=run, name="purerl ranks", daemon=True).start()
    while not wait([met], timeout=_SECONDS_BETWEEN_MESSAGES).done:
        _LOG.warning("rank %d of %d waits for the others at %s", rank, size, where)
    try:
        return met.result()
    except PurerlError:
        raise
    except RuntimeError as error:
        got, do = f"{error}".partition("\n")[0], "start all of them, or correct the variables of the environment"
        need = f"{size} processes that reach {where} within placement.timeout = {timeout:g} s"
        raise EngineError(f"rank {rank} did not meet the other ranks", got=got, need=need, do=do) from error


def _device_index(world: World, count: int) -> int:
    """The device of this rank among those that it sees. Raises ConfigError if there are fewer devices than ranks."""
    if count == 1 and (world.local_size or 1) > 1 and world.launcher == "srun":
        return 0  # with --gpus-per-task each process sees only its own
    if world.local_rank >= count:
        got = f"{world.local_size or world.local_rank + 1} processes on this host, which has {count}"
        raise ConfigError("an accelerator for each rank", got=got, need="as many", do="lower placement.ranks")
    return world.local_rank
