"""The ranks of a distributed run: how many processes there are, and the collective calls that they make.

With one process every call is the identity, and torch.distributed is not needed.

A call by the name of what it is for, such as `gather`, begins with an exchange of short messages through the store of
the process group. So ranks that make different calls raise an error, and a rank that does not arrive before the
deadline is named. The deadline is the timeout that the process group was initialized with.
"""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from attrs import evolve, frozen

from purerl.errors import EngineError
from purerl.system.messages import decode, encode
from purerl.system.run_secret import SIZE, adopt_secret, derive_key, new_secret
from purerl.system.stores import SignedStore, Store

__all__ = [
    "ONE_RANK",
    "Guard",
    "MessageExchange",
    "Ranks",
    "check_members",
    "check_others",
    "current_ranks",
    "forget_group",
    "guarded_by",
    "ranks_of_thread",
    "store_of_ranks",
    "stores_opened_by",
    "this_host",
    "value_of_group",
]

_MAX_MESSAGE = 2**14  # bytes; larger values are gathered by torch.distributed
_MAX_NAMED = 4
_FIRST_PAUSE = 0.0002  # seconds
_PAUSE_PER_RANK = 0.002
_MAX_PAUSE = 0.1
_MEMBER_TIMEOUT = timedelta(seconds=60)

T = TypeVar("T")


class Guard(Protocol):
    """Watches the other ranks while this one waits."""

    def check(self) -> None:
        """Raise EngineError if waiting is in vain, because another rank has failed or ended."""
        ...

    def report_late(self) -> None:
        """Called when a call has missed its deadline."""
        ...

    def explain(self, error: RuntimeError) -> BaseException:
        """The error to raise instead of `error`, which torch.distributed has raised."""
        ...


_guards: list[Guard] = []


@contextmanager
def guarded_by(guard: Guard) -> Iterator[None]:
    """Let `guard` watch the other ranks during collective calls in the block."""
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)


def check_others() -> None:
    """Raise EngineError if another rank has failed or ended. For a wait that is not a collective call."""
    for guard in _guards:
        guard.check()


class MessageExchange:
    """Short messages of all ranks, through a `store`. Every rank makes the same calls.

    timeout  seconds until a rank that has not arrived is an error
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._calls = 0

    def exchange(self, what: str, message: bytes = b"") -> list[bytes]:
        """The `message` of each rank, by rank.

        Raises: EngineError if ranks make calls for different things, or if a rank does not arrive in time.
        """
        keys = [f"{self._calls}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], what.encode() + b"\0" + message)
        self._wait(what, keys)
        received = [bytes(value).partition(b"\0") for value in self._store.multi_get(keys)]
        if self._calls:  # every rank has read the messages of the call before, because it has begun this one
            self._store.delete_key(f"{self._calls - 1}/{self._rank}")
        self._calls += 1
        _check_equal("a collective call", [name.decode() for name, _, _ in received])
        return [message for _, _, message in received]

    def _wait(self, what: str, keys: Sequence[str]) -> None:
        """Wait for `keys`. They are polled, so that signals and failures of other ranks are noticed."""
        deadline, pause = time.monotonic() + self._timeout, _FIRST_PAUSE
        while not self._store.check([*keys]):
            check_others()
            if time.monotonic() >= deadline:
                for guard in _guards:
                    guard.report_late()
                raise self._late(what, [rank for rank, key in enumerate(keys) if not self._store.check([key])])
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_PAUSE, _PAUSE_PER_RANK * self._size)

    def _late(self, what: str, missing: Sequence[int]) -> EngineError:
        return EngineError(
            f"{what}: {_named(missing)} did not arrive",
            got=f"rank {self._rank} has waited for {self._timeout:g} seconds",
            need="every rank makes this call before the deadline (placement.timeout)",
            do="see what the stacks in the logs of the ranks wait for, or raise placement.timeout",
        )


def _named(ranks: Sequence[int]) -> str:
    """Ranks in a message.

    >>> _named([1]), _named([1, 3])
    ('rank 1', 'ranks 1, 3')
    """
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MAX_NAMED]))}{more}"


def _check_equal(what: str, values: Sequence[Any]) -> None:
    different = [rank for rank, value in enumerate(values) if value != values[0]]
    if different:
        got = [f"rank {rank}: {values[rank]!r}" for rank in (0, *different[:_MAX_NAMED])]
        need = "the same call with the same arguments on every rank"
        raise EngineError(f"{what}: ranks disagree", got="; ".join(got), need=need)


@frozen
class Ranks:
    """This process and its number among the processes of `group`; None: the default process group.

    With an `exchange`, values are gathered by its messages alone, see `ranks_of_thread`.
    """

    rank: int = 0
    size: int = 1
    group: torch.distributed.ProcessGroup | None = None
    exchange: MessageExchange | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of `tensor` over all ranks; `tensor` itself may be overwritten."""
        if self.size > 1:
            with _explained():
                torch.distributed.all_reduce(tensor, group=self.group)
        return tensor

    def sum_in_place(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each of `tensors` by its sum over all ranks, with one collective call per dtype."""
        if self.size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            group = [tensor for tensor in tensors if tensor.dtype == dtype]
            total = self.sum(torch.cat([tensor.flatten() for tensor in group]))
            for tensor, part in zip(group, total.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: T, what: str = "values of all ranks") -> list[T]:
        """The `value` of every rank, by rank: data, see `purerl.system.messages`.

        Raises: EngineError if `what` it is differs between ranks, or if a value is no data.
        """
        if self.size == 1:
            return [value]
        return [decode(message) for message in self._gather_bytes(encode(value), what)]

    def _gather_bytes(self, message: bytes, what: str) -> list[bytes]:
        if self.exchange is not None:
            return self.exchange.exchange(what, message)
        if self.group is None:
            messages = _exchange("messages").exchange(what, message if len(message) <= _MAX_MESSAGE else b"")
            if all(messages):
                return messages
        with _explained():
            return _gathered(message, self.group, self.size)

    def exchange_bytes(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Send `parts[k]`, uint8 [n_k], to rank k; what each rank has sent to this one, by rank."""
        if self.size == 1:
            return list(parts)
        sizes = [len(part) for part in parts]
        received = [of_rank[self.rank] for of_rank in self.gather(sizes, "sizes of parts for other ranks")]
        result = parts[0].new_empty(sum(received))
        with _explained():
            torch.distributed.all_to_all_single(result, torch.cat([*parts]), received, sizes, group=self.group)
        return list(result.split(received))

    def check_same(self, what: str, value: Any) -> None:
        """Raise EngineError on every rank if `value` differs between ranks; it names the ranks that differ from 0."""
        _check_equal(what, self.gather(value, what))

    def on_all(self, action: Callable[[], T], what: str = "an action on all ranks") -> list[T]:
        """The results of `action` on all ranks, by rank. The first exception of a rank is raised on every rank."""
        if self.size == 1:
            return [action()]
        try:
            outcome: tuple[Any, Exception | None] = action(), None
        except Exception as raised:  # noqa: BLE001 - raised below, on every rank
            outcome = None, raised
        outcomes = self.gather(outcome, what)
        for rank, (_, error) in enumerate(outcomes):
            if error is not None:
                raise (outcome[1] if rank == self.rank else error) or error
        return [result for result, _ in outcomes]  # pyright: ignore[reportReturnType] - without an error it is a result

    def on_first(self, action: Callable[[], T], what: str = "an action of rank 0") -> T:
        """The result of `action` on rank 0, while the others wait. Its exception is raised on every rank."""
        return self.on_all(action if self.is_first else _nothing, what)[0]  # pyright: ignore[reportReturnType]


ONE_RANK = Ranks()
"""The only rank of a run in one process."""


def _nothing() -> None:
    return None


@contextmanager
def _explained() -> Iterator[None]:
    """Raise what the guard says about an error of torch.distributed."""
    try:
        yield
    except RuntimeError as error:
        if not _guards:
            raise
        raise _guards[-1].explain(error) from error


def _gathered(message: bytes, group: torch.distributed.ProcessGroup | None, size: int) -> list[bytes]:
    """The `message` of each member of `group`, by the process group."""
    is_on_cpu = "cpu" in str(torch.distributed.get_backend_config(group))
    device = "cpu" if is_on_cpu else torch.accelerator.current_accelerator()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    torch.distributed.all_gather(sizes, torch.tensor([len(message)], device=device), group=group)
    longest = max(int(each) for each in sizes)
    own = torch.frombuffer(bytearray(message.ljust(longest, b"\0")), dtype=torch.uint8).to(device)
    parts = [torch.empty_like(own) for _ in range(size)]
    torch.distributed.all_gather(parts, own, group=group)
    return [part[: int(each)].cpu().numpy().tobytes() for part, each in zip(parts, sizes, strict=True)]


def check_members(group: torch.distributed.ProcessGroup | None = None) -> None:
    """Check that the members of `group` are connected with each other, and not with a stranger. Collective.

    Each member proves to each other one that it has the secret of the run. It is needed where gloo connects processes:
    a member accepts the first process that connects to its port. Groups of devices need no such check.

    Raises: EngineError if a member does not prove it, or not within a minute.
    """
    if "gloo" not in str(torch.distributed.get_backend_config(group)):
        return
    _share_secret()
    size, name = torch.distributed.get_world_size(group), (group or torch.distributed.group.WORLD).group_name
    rank = torch.distributed.get_rank(group)
    own = [derive_key(f"group {name}: {rank} to {other}") for other in range(size)]
    expected = [derive_key(f"group {name}: {other} to {rank}") for other in range(size)]
    received = torch.empty(size * SIZE, dtype=torch.uint8)
    try:
        sent = torch.frombuffer(bytearray(b"".join(own)), dtype=torch.uint8)
        # With a timeout of `wait` alone, the end of the group would wait for its own.
        options = torch.distributed.AllToAllOptions()
        options.timeout = _MEMBER_TIMEOUT
        (group or torch.distributed.group.WORLD).alltoall_base(received, sent, [], [], options).wait()
    except RuntimeError as error:
        raise _stranger(name, str(error).partition("\n")[0]) from error
    if not hmac.compare_digest(received.numpy().tobytes(), b"".join(expected)):
        raise _stranger(name, "another answer than that of a process with the secret of the run")


def _stranger(name: str, got: str) -> EngineError:
    need, do = "only the processes of the run", "let nobody else reach the ports of the run (docs/how-to/scaling.md)"
    return EngineError(f"the members of the process group {name!r}", got=got, need=need, do=do)


OpenStore = Callable[[str], Store]
"""A connection to the store of the ranks, for keys of this name only. One thread may use it."""

_openers: list[OpenStore] = []
_exchanges: dict[str, tuple[object, MessageExchange]] = {}  # with the process group that each belongs to
_of_group: list[tuple[object, dict[Hashable, Any]]] = []  # a process group, and the values of `value_of_group`
_adopted: list[object] = []  # the process group from which this process has got its secret


@contextmanager
def stores_opened_by(open_store: OpenStore) -> Iterator[None]:
    """Let the ranks exchange messages through the stores that `open_store` opens in the block."""
    _openers.append(open_store)
    _exchanges.clear()
    try:
        yield
    finally:
        _openers.pop()
        _exchanges.clear()


def _exchange(name: str) -> MessageExchange:
    """The message exchange `name` of the default process group."""
    group = torch.distributed.group.WORLD
    if name not in _exchanges or _exchanges[name][0] is not group:
        store, ranks = store_of_ranks(name), current_ranks()
        _exchanges[name] = (group, MessageExchange(store, ranks.rank, ranks.size, store.timeout))
    return _exchanges[name][1]


def store_of_ranks(name: str) -> Store:
    """A connection to the store of the ranks, for keys of `name` only. One thread may use it."""
    return (_openers[-1] if _openers else _open_store_of_group)(name)


def _open_store_of_group(name: str) -> Store:
    """The store of a process group that others have initialized. Collective when it is called first."""
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store  # the store of a user's group too

    _share_secret()
    store: Any = _get_default_store()
    return SignedStore(PrefixStore(f"purerl/{name}", store.clone()), derive_key(f"store {name}"))


def _share_secret() -> None:
    """Let all ranks of a process group that others have initialized have the secret of rank 0. Collective.

    It is sent over the group, which the script of the user is responsible for.
    """
    if not _openers and _adopted != [torch.distributed.group.WORLD]:
        [secret, *_] = _gathered(new_secret(), None, torch.distributed.get_world_size())
        adopt_secret(secret)
        _adopted[:] = [torch.distributed.group.WORLD]


def this_host() -> str:
    """A name for the processes that can see each other: those of one boot of one machine, in one PID namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            str(Path("/proc/self/ns/pid").readlink()),
        ]
    return " ".join(parts)


def current_ranks() -> Ranks:
    """The ranks of the default process group; one rank if torch.distributed is not initialized."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return Ranks()


def value_of_group(key: Hashable, create: Callable[[], T]) -> T:
    """The value of `create`, which is called once for each `key` of the default process group."""
    if not _of_group or _of_group[0][0] is not torch.distributed.group.WORLD:
        _of_group[:] = [(torch.distributed.group.WORLD, {})]
    [(_, values)] = _of_group
    return values[key] if key in values else values.setdefault(key, create())


def forget_group() -> None:
    """Release the values of the process group, which is destroyed: groups with threads and sockets."""
    _of_group.clear()


def ranks_of_thread(name: str) -> Ranks:
    """The current ranks, for the collective calls of a thread beside the main one; each such thread has a `name`.

    Only `gather` and what is made of it: `check_same`, `on_all`, `on_first`. The thread has its own connection to the
    store, so that the order of its messages has nothing to do with the calls of the main thread.
    """
    ranks = current_ranks()
    return ranks if ranks.size == 1 else evolve(ranks, exchange=_exchange(name))
