"""A thread of each rank that notices when another rank has failed, has ended, or gives no sign of life.

Each rank publishes its state in the store of the process group every second: a counter, and why it has failed. On one
host the kernel also says at once when a process ends. The main thread gets the problem as an EngineError when it waits
for other ranks. If it does not stop within a few seconds, because it hangs or waits in code of C++, the thread ends the
process. A rank of this host that gives no sign of life is killed, because a launcher would wait for it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import asdict, define, evolve, field, frozen

from purerl.errors import EngineError
from purerl.placement.logs import RankLog, last_lines, log_path
from purerl.ranks import this_host
from purerl.system.stores import Store

__all__ = ["MAX_TO_LEAVE", "RankState", "Watchdog", "is_stopped"]

_INTERVAL = 1.0  # seconds
_RANKS_PER_INTERVAL = 64  # larger worlds look less often
_GRACE = 8.0  # seconds in which the main thread may stop by itself
MAX_TO_LEAVE = 60.0  # seconds for closing trackers, workers and engines
_TIME_TO_REPORT = 2.0  # seconds in which the main thread may report the problem before silent ranks are killed
_STOPPED = ("T", "t")  # states of processes, as `ps` prints them
_MAX_TO_EXPLAIN = 3.0  # seconds until a failure of another rank is known, after torch.distributed has raised an error


@frozen
class RankState:
    """The state of a rank that it publishes.

    beats    counts the signs of life
    host     where it runs, see `purerl.ranks.this_host`
    pid      its process id there
    late     a collective call has missed its deadline: all ranks write their stacks
    failure  why it has failed
    is_done  it leaves the run, and is not missed
    """

    host: str
    pid: int
    beats: int = 0
    late: bool = False
    failure: str | None = None
    is_done: bool = False


@define
class _Peer:
    state: RankState | None = None
    seen: float = field(factory=time.monotonic)  # when its state has last changed
    process: int | None = None  # file descriptor that becomes readable when its process ends


class Watchdog:
    """Watches the other ranks from `start` to `stop`, and is the guard of collective calls (`purerl.ranks.Guard`).

    store              a connection that nothing else uses
    heartbeat_timeout  seconds without a change of its state after which a rank is taken for lost
    parent             the process that has started this one, if it has to outlive this one
    """

    def __init__(
        self, store: Store, rank: int, size: int, log: RankLog, *, heartbeat_timeout: float, parent: int | None
    ) -> None:
        self._store, self._rank, self._log = store, rank, log
        self._heartbeat_timeout, self._parent = heartbeat_timeout, parent
        self._state = RankState(this_host(), os.getpid())
        self._peers = {other: _Peer() for other in range(size) if other != rank}
        self._interval = _INTERVAL * max(1.0, size / _RANKS_PER_INTERVAL)
        self._problem: EngineError | None = None
        self._is_known, self._is_stopped, self._has_dumped = threading.Event(), threading.Event(), False
        self._wake_read, self._wake_write = os.pipe()
        self._lock = threading.Lock()
        self._grace = _GRACE
        self._on_problem: list[Callable[[EngineError], object]] = []
        self._thread = threading.Thread(target=self._run, name="purerl ranks", daemon=True)

    def start(self) -> None:
        """Publish the state, and begin to watch. A rank that does not start in time counts as lost."""
        self.publish()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_stopped.set()
        os.write(self._wake_write, b"x")
        self._thread.join(self._interval + _GRACE)
        silent = self._silent_processes()
        for process in silent:  # after the error of this process has been printed: then launchers end it too
            atexit.register(_kill, process)
        for descriptor in {self._wake_read, self._wake_write, *self._processes()}.difference(silent):
            os.close(descriptor)

    def publish(self, **changes: Any) -> None:
        """Publish the state with these changes. Nothing is raised: the store may not exist any more."""
        with self._lock, suppress(RuntimeError):
            self._state = evolve(self._state, beats=self._state.beats + 1, **changes)
            self._store.set(str(self._rank), json.dumps(asdict(self._state)).encode())

    # --- the main thread ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise EngineError if another rank has failed or ended."""
        if self._problem is not None:
            raise self._problem

    def report_late(self) -> None:
        """Let all ranks write their stacks."""
        self._dump("a collective call has missed its deadline")
        self.publish(late=True)

    def explain(self, error: RuntimeError) -> BaseException:
        """The problem that is behind an error of torch.distributed; waits until it is known."""
        if (problem := self.await_problem()) is not None:
            return problem
        self.report_late()
        do = "see what the stacks in the logs of the ranks wait for, or raise placement.timeout"
        return EngineError("a collective call has failed", got=error, do=do)

    def is_cause(self, error: BaseException) -> bool:
        """Whether `error` is the problem of another rank."""
        return error is self._problem

    def on_problem(self, function: Callable[[EngineError], object]) -> None:
        """Call `function`, in the thread of the watchdog, when another rank has failed or ended."""
        self._on_problem.append(function)

    def await_problem(self) -> EngineError | None:
        """The problem of another rank, if it becomes known within a few seconds."""
        self._is_known.wait(_MAX_TO_EXPLAIN)
        return self._problem

    @contextmanager
    def report_exit(self) -> Iterator[None]:
        """Report an exception in the block: the main thread stops, which may take longer from then on."""
        try:
            yield
        except BaseException:
            self._grace = MAX_TO_LEAVE
            raise

    def wait_until_done(self, rank: int, timeout: float) -> None:
        """Wait until `rank` leaves the run, or is lost. Rank 0 has left if the store has ended, which it may have."""
        end, peer = time.monotonic() + timeout, self._peers[rank]
        while time.monotonic() < end and not self._is_done(peer) and not self._is_lost(peer):
            try:
                with self._lock:
                    self._read([rank])
            except RuntimeError:
                if rank == 0:
                    return
            time.sleep(_INTERVAL / 10)

    @property
    def first_alive(self) -> int:
        """The lowest rank that has not ended."""
        return min([self._rank, *(rank for rank, peer in self._peers.items() if not self._is_lost(peer))])

    @property
    def local_size(self) -> int:
        """The number of ranks on this host, once all have started."""
        states = [peer.state for peer in self._peers.values()]
        return 1 + sum(state is not None and state.host == self._state.host for state in states)

    def wait_for_start(self, timeout: float) -> None:
        """Wait until all ranks have published their state. Raises EngineError if one does not."""
        end = time.monotonic() + timeout
        while missing := [rank for rank, peer in self._peers.items() if peer.state is None]:
            self.check()
            if time.monotonic() >= end:
                need = f"all ranks within {timeout:g} seconds (placement.timeout)"
                raise EngineError(f"rank {missing[0]} has not started", got=f"{len(missing)} missing", need=need)
            time.sleep(_INTERVAL / 100)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._problem is None and not self._is_stopped.is_set():
                self._poll_peers()
                self._sleep()
        except RuntimeError as error:  # the process that has the store has ended
            self._problem = _store_error(error)
        self._is_known.set()
        if self._problem is not None:
            for function in self._on_problem:
                function(self._problem)
        if self._problem is not None and not self._may_stop():
            self._end_process(self._problem)

    def _may_stop(self) -> bool:
        """Give the main thread time to stop by itself; return whether it has."""
        start = time.monotonic()
        if self._is_stopped.wait(_TIME_TO_REPORT):
            return True
        for process in self._silent_processes():
            _kill(process)
        while time.monotonic() - start < self._grace:
            if self._is_stopped.wait(_INTERVAL / 10):
                return True
        return False

    def _poll_peers(self) -> None:
        """Read the states of the other ranks, and note a problem."""
        with self._lock:
            started = [rank for rank, peer in self._peers.items() if peer.state or self._store.check([str(rank)])]
            self._read(started)
        if any(peer.state is not None and peer.state.late for peer in self._peers.values()):
            self._dump("a collective call has missed its deadline on another rank")
        self._problem = next(filter(None, (self._problem_of(*item) for item in self._peers.items())), None)

    def _read(self, ranks: Sequence[int]) -> None:
        texts = self._store.multi_get([str(rank) for rank in ranks]) if ranks else []
        for rank, text in zip(ranks, texts, strict=True):
            self._update(self._peers[rank], RankState(**json.loads(text)))

    def _update(self, peer: _Peer, state: RankState) -> None:
        if peer.state is None and state.host == self._state.host and hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it has ended already: then its state does not change anymore
                peer.process = os.pidfd_open(state.pid)
        if state != peer.state:
            peer.state, peer.seen = state, time.monotonic()

    def _problem_of(self, rank: int, peer: _Peer) -> EngineError | None:
        do = "fix the cause; the same command resumes the run from its last checkpoint"
        path = log_path(self._log.directory, rank)
        state = peer.state
        if self._is_done(peer):
            return None
        if state is not None and state.failure is not None:
            reason = state.failure.partition("\n")[0]
            return EngineError(f"rank {rank} has failed: {reason}", got=self._logged(rank), do=do)
        if self._has_ended(peer):
            do = "see why the process was killed, for example for its memory; the same command resumes the run"
            got = self._logged(rank)
            return EngineError(f"rank {rank} has ended without an error message (was it killed?)", got=got, do=do)
        if self._is_silent(peer):
            need = f"one within {self._heartbeat_timeout:g} seconds (placement.heartbeat_timeout)"
            got = f"{self._described(peer)}; see {path}"
            return EngineError(f"rank {rank} has given no sign of life", got=got, need=need, do=do)
        return None

    def _described(self, peer: _Peer) -> str:
        if peer.process is None or peer.state is None:
            return "nothing"
        reason = "stopped (by SIGSTOP or a debugger)" if is_stopped(peer.state.pid) else "alive"
        return f"its process {peer.state.pid} is {reason}, and is killed"

    def _logged(self, rank: int) -> str:
        path = log_path(self._log.directory, rank)
        lines = last_lines(path)
        return f"{path} ends with\n{lines}" if lines else f"nothing in {path}"

    def _is_done(self, peer: _Peer) -> bool:
        return peer.state is not None and peer.state.is_done

    def _is_silent(self, peer: _Peer) -> bool:
        return time.monotonic() - peer.seen > self._heartbeat_timeout

    def _is_lost(self, peer: _Peer) -> bool:
        return self._has_ended(peer) or self._is_silent(peer)

    def _has_ended(self, peer: _Peer) -> bool:
        return peer.process is not None and bool(select.select([peer.process], [], [], 0)[0])

    def _processes(self) -> list[int]:
        return [peer.process for peer in self._peers.values() if peer.process is not None]

    def _silent_processes(self) -> list[int]:
        """The processes of this host that have not ended, and give no sign of life."""
        silent = [peer for peer in self._peers.values() if self._is_silent(peer) and not self._is_done(peer)]
        return [peer.process for peer in silent if peer.process is not None and not self._has_ended(peer)]

    def _sleep(self) -> None:
        """Publish a sign of life, and wait for the next time to look: earlier if a process ends."""
        if self._parent is not None and os.getppid() != self._parent:
            do = "the same command resumes the run from its last checkpoint"
            self._problem = EngineError("the launcher of the ranks has ended", do=do)
            return
        self.publish()
        alive = [process for process in self._processes() if not select.select([process], [], [], 0)[0]]
        select.select([self._wake_read, *alive], [], [], self._interval)

    def _dump(self, reason: str) -> None:
        if not self._has_dumped:
            self._has_dumped = True
            self._log.write_stacks(reason)

    def _end_process(self, problem: EngineError) -> None:
        """End this process, whose main thread does not stop."""
        self._log.write_stacks(f"this rank ends, because {problem}")
        if self.first_alive == self._rank and self._log.report(str(problem)):
            self._log.print(f"error: {problem}")
        os._exit(1)


def _kill(process: int) -> None:
    with suppress(OSError):
        signal.pidfd_send_signal(process, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped, by a signal or by a debugger; False where the kernel does not say it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in _STOPPED
    return False


def _store_error(error: RuntimeError) -> EngineError:
    return EngineError(
        "the store of the ranks cannot be reached: rank 0 or the launcher has ended",
        got=next(iter(str(error).splitlines()), repr(error)),
        do="see the output of rank 0; the same command resumes the run from its last checkpoint",
    )
