"""Joining the ranks of a run: the process group, the device, the watchdog and the log, for the time of a run."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import distributed as dist

from purerl.errors import ConfigError, EngineError, PurerlError
from purerl.placement.engines import LOCAL_PROCESSES, EngineProcesses
from purerl.placement.logs import RankLog, restore_output
from purerl.placement.meeting import Meeting, meet, read_secret
from purerl.placement.process_group import among_themselves, meet_ranks, process_group
from purerl.placement.settings import Placement
from purerl.placement.watchdog import MAX_TO_LEAVE, Watchdog
from purerl.placement.world import check_world, find_world
from purerl.ranks import ONE_RANK, Ranks, check_members, current_ranks, guarded_by, store_of_ranks
from purerl.system.devices.accelerator import collective_backends

__all__ = ["SINGLE_PROCESS", "RankContext", "join_ranks"]

_LINGER = 1.0  # seconds until a launcher may notice that a rank has failed, after rank 0 has left the run
_LEAVE_TIMEOUT = 10.0
_READ_TIME = 1.5  # seconds in which the other ranks read why this one has failed


@frozen
class RankContext:
    """The ranks, and what this host shares among its own.

    local_size  number of ranks on this host
    log         of this rank
    processes   those in which the engines of the run are
    """

    ranks: Ranks = ONE_RANK
    local_size: int = 1
    log: RankLog | None = None
    _watchdog: Watchdog | None = None
    processes: EngineProcesses = LOCAL_PROCESSES

    def redirected(self) -> AbstractContextManager[None]:
        """In this block a rank other than 0 prints into its log, which is in the run directory."""
        return nullcontext() if self.log is None else self.log.redirected()

    def report_exit(self) -> AbstractContextManager[None]:
        """Report an exception in the block to the other ranks: this one stops, which may take some time."""
        return nullcontext() if self._watchdog is None else self._watchdog.report_exit()

    def on_problem(self, function: Callable[[EngineError], object]) -> None:
        """Call `function` when another rank has failed or ended: for code that waits for something else."""
        if self._watchdog is not None:
            self._watchdog.on_problem(function)

    def share(self, number: int) -> int:
        """The part of `number` threads or processes of this host that this rank may use: at least 1."""
        return max(1, number // self.local_size)

    def num_threads(self, of_host: int | None) -> int | None:
        """The threads of torch that this rank may use; `of_host` are those of the host. None: torch decides."""
        if self.local_size == 1 or (of_host is None and "OMP_NUM_THREADS" in os.environ):
            return of_host
        return self.share(of_host or torch.get_num_threads())


SINGLE_PROCESS = RankContext()
"""The context of the only process of a run."""


@contextmanager
def join_ranks(settings: Placement, directory: Path) -> Iterator[RankContext]:
    """The context of this process in the run in `directory`. All ranks enter and leave the block together.

    A process group that exists is used; otherwise one is initialized if torchrun, `purerl train` or srun has started
    several processes, and destroyed after the block. An exception that leaves the block of one rank ends all ranks.

    Raises: ConfigError if `settings` do not fit the processes that exist; EngineError if another rank fails.
    """
    restore_output()
    world = find_world(os.environ)
    check_world(settings, world)
    if settings.kind == "ray":
        from purerl.placement.actors.engines import ray_engines

        with ray_engines(settings, directory) as engines:
            yield RankContext(processes=engines)
        return
    if world is None and not (dist.is_available() and dist.is_initialized()):
        _check_alone(settings)
        yield SINGLE_PROCESS
        return
    with ExitStack() as stack:
        is_own_group = not dist.is_initialized()
        if world is not None and is_own_group:
            find_secret = partial(read_secret, directory, is_first=world.rank == 0, timeout=settings.timeout)
            stack.enter_context(process_group(world, find_secret, settings.timeout))
        ranks = current_ranks()
        log = RankLog(directory, ranks.rank)
        if ranks.size == 1:
            yield SINGLE_PROCESS
            return
        _check_backend()
        if not is_own_group:
            stack.enter_context(_meeting_of_group(ranks, directory, settings.timeout))
        has_store = ranks.is_first and (world is None or world.folder is None)
        watchdog = stack.enter_context(_watching(settings, ranks, log, is_own_group=is_own_group, has_store=has_store))
        yield RankContext(ranks, watchdog.local_size, log, watchdog)


def _check_alone(settings: Placement) -> None:
    if (settings.ranks or 1) > 1:
        raise ConfigError(
            "placement.ranks",
            got=f"{settings.ranks}, in one process",
            need="processes that torchrun or Slurm has started; only `purerl train` starts them itself",
            do=f"start the script with torchrun --nproc-per-node {settings.ranks}",
        )


@contextmanager
def _meeting_of_group(ranks: Ranks, directory: Path, timeout: float) -> Iterator[None]:
    """Let the ranks of a process group that the script has initialized exchange messages among themselves."""
    from torch.distributed.distributed_c10d import _get_default_store  # of a group that others have initialized

    store: Any = _get_default_store()

    def start() -> Meeting:
        secret = read_secret(directory, is_first=ranks.is_first, timeout=timeout)
        return meet(store.clone(), ranks.rank, ranks.size, secret, timeout, stack)

    with ExitStack() as stack:
        meeting = meet_ranks(start, ranks.rank, ranks.size, "the store of the process group", timeout)
        with among_themselves(meeting):
            check_members()
            yield


def _check_backend() -> None:
    backends = str(dist.get_backend_config())
    if "cpu:gloo" not in backends:
        raise ConfigError(
            "the process group of this script",
            got=backends,
            need="gloo for the CPU, beside that of accelerators: batches and scores are on the CPU",
            do=f'initialize it with "{collective_backends()}", or leave that to purerl.train',
        )


@contextmanager
def _watching(
    settings: Placement, ranks: Ranks, log: RankLog, *, is_own_group: bool, has_store: bool
) -> Iterator[Watchdog]:
    """A watchdog of the other ranks, whose store may end with this process if `has_store`: all fail if one fails."""
    parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
    store, timeout = store_of_ranks("watchdog"), settings.heartbeat_timeout
    watchdog = Watchdog(store, ranks.rank, ranks.size, log, heartbeat_timeout=timeout, parent=parent)
    watchdog.start()
    with guarded_by(watchdog):
        try:
            watchdog.wait_for_start(settings.timeout)
            yield watchdog
            ranks.gather(None, "the end of the run")
            watchdog.publish(is_done=True)
            if ranks.is_first:  # it may have the store
                for rank in range(1, ranks.size):
                    watchdog.wait_until_done(rank, _LEAVE_TIMEOUT)
        except BaseException as error:
            problem = _fail(watchdog, ranks, log, error, is_own_group=is_own_group, has_store=has_store)
            if problem is error:
                raise
            raise problem from error
        finally:
            watchdog.publish(is_done=True)
            watchdog.stop()


def _fail(
    watchdog: Watchdog, ranks: Ranks, log: RankLog, error: BaseException, *, is_own_group: bool, has_store: bool
) -> BaseException:
    """End the run on all ranks because of `error`, which the first living rank reports; return that of this one."""
    is_foreign = isinstance(error, RuntimeError) and not isinstance(error, PurerlError)
    cause = (watchdog.await_problem() if is_foreign else None) or error
    message = str(cause) if isinstance(cause, PurerlError) else f"{type(cause).__name__}: {cause}"
    reporter = watchdog.first_alive
    if reporter != ranks.rank:
        log.write("".join(traceback.format_exception(error)).rstrip())
    if not watchdog.is_cause(cause):
        watchdog.publish(failure=message)
        if has_store:
            time.sleep(_READ_TIME)
    if is_own_group and dist.get_backend() == "gloo":  # the others notice it at once, if they wait for this rank
        dist.destroy_process_group()
    if reporter == ranks.rank:
        if log.report(f"rank {ranks.rank}: {message}") and log.is_redirected:
            log.print(f"error: {message}")
    else:
        watchdog.wait_until_done(reporter, MAX_TO_LEAVE)
        time.sleep(_LINGER)
    return cause
