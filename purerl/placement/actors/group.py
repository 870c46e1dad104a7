"""A group of actors that is called together, and what is said when one of them fails, dies or hangs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attrs import define, evolve

from purerl.errors import ConfigError, EngineError
from purerl.placement.actors.host import THREADS, EngineHost
from purerl.placement.actors.package import load_ray
from purerl.placement.actors.watch import check_cluster, explain_error, has_lost_cluster
from purerl.placement.logs import last_lines, log_path
from purerl.placement.settings import Actors
from purerl.placement.stacks import forget
from purerl.system.run_secret import new_secret

__all__ = ["ActorGroup", "started_group"]

_LOG = logging.getLogger(__name__)
_PERIOD = 60.0  # seconds between two messages about what the run waits for
_POLL = 1.0  # seconds between two looks whether Ray itself has ended
_TIME_TO_FAIL = 5.0  # seconds in which all actors of a group must have failed if one has
_STACKS_TIMEOUT = 10.0  # seconds in which an actor must have written its stacks
_AFTER_TIMEOUT = 60.0  # seconds: the process group of actors waits longer than the run, which has the stacks written


@define(eq=False)
class ActorGroup:
    """The actors `name`-0, `name`-1, ... of the run in `directory`.

    timeout    seconds that a call may take
    first      the number of the first one
    has_ended  whether they have been killed
    """

    name: str
    actors: Sequence[Any]
    directory: Path
    timeout: float
    first: int = 0
    has_ended: bool = False

    def parts(self) -> list[ActorGroup]:
        """A group for each of the actors."""
        return [evolve(self, actors=[actor], first=self.first + k) for k, actor in enumerate(self.actors)]

    def call(self, method: str, *arguments: Any, thread: str | None = None, **keywords: Any) -> list[Any]:
        """The results of `method` of each actor. `thread` is one of `THREADS`, for a call beside others.

        Raises: what an actor has raised; EngineError if one has ended, or does not return in time. If other actors then
        wait for that one, the group ends.
        """
        return self.results(self.start(method, *arguments, thread=thread, **keywords), method)

    def call_engine(self, name: str, method: str, *arguments: Any, **keywords: Any) -> list[Any]:
        """The result of `method` of the engine `name` in the first actor, and None of others. Raises: as `call`."""
        return self.results(self.start("call", name, method, *arguments, **keywords), f"{name}.{method}")

    def start(self, method: str, *arguments: Any, thread: str | None = None, **keywords: Any) -> list[Any]:
        """Begin a call of `method` in each actor; return the references to their results."""
        options = {} if thread is None else {"concurrency_group": thread}
        return [getattr(actor, method).options(**options).remote(*arguments, **keywords) for actor in self.actors]

    def results(self, references: Sequence[Any], what: str) -> list[Any]:
        """The results of a call of each actor. Raises: as `call`."""
        ray = load_ray()
        numbers = {reference: rank for rank, reference in enumerate(references)}
        results: list[Any] = [None] * len(references)
        begin = time.monotonic()
        next_message = begin + _PERIOD
        while numbers:
            check_cluster()
            remaining = begin + self.timeout - time.monotonic()
            ready, _ = ray.wait([*numbers], timeout=max(0.0, min(_POLL, remaining)))
            for reference in ready:
                rank = numbers.pop(reference)
                try:
                    results[rank] = self._result(reference, rank)
                except Exception:
                    self._kill_if_waiting([*numbers])
                    raise
            if not ready and remaining <= 0:
                raise self._late(what, [*numbers.values()])
            if numbers and time.monotonic() >= next_message:
                next_message += _PERIOD
                seconds, names = time.monotonic() - begin, self._named([*numbers.values()])
                _LOG.warning("the run has waited %.0f s for %s in %s", seconds, what, names)
        return results

    def _result(self, reference: Any, rank: int) -> Any:
        """The result of a call of one actor, which is there."""
        ray = load_ray()
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else EngineError(str(error))
            cause.add_note(f"in {self._name(rank)}, whose log is {str(self._log(rank))!r}")
            raise cause from None
        except ray.exceptions.RayActorError as error:
            self.has_ended = True
            raise explain_error(error) or self._dead(rank, error) from None

    def _kill_if_waiting(self, others: Sequence[Any]) -> None:
        """After the failure of one actor, end the group, unless the calls of the others have ended too."""
        ended = load_ray().wait(others, num_returns=len(others), timeout=_TIME_TO_FAIL)[0] if others else []
        if self.has_ended or len(ended) < len(others):
            self.kill()

    def _dead(self, rank: int, error: Exception) -> EngineError:
        lines = last_lines(self._log(rank))
        reason = str(error).partition("Worker exit detail:")[2].partition("Some common causes")[0].strip()
        return EngineError(
            f"{self._name(rank)}, an actor of Ray, has ended",
            got=(reason or str(error).partition("\n")[0]) + (f"\nthe end of its log:\n{lines}" if lines else ""),
            do="the same command resumes the run from its last checkpoint",
        )

    def _late(self, what: str, ranks: Sequence[int]) -> EngineError:
        """The error of a call that takes too long, after the stacks of all actors have been written."""
        self.write_stacks(f"{what} takes longer than {self.timeout:g} seconds")
        self.kill()
        return EngineError(
            f"{what}: no result of {self._named(ranks)}",
            got=f"nothing for {self.timeout:g} seconds",
            need="a result within placement.timeout",
            do=f"see the stacks in the logs in {str(self._log(0).parent)!r}, or raise placement.timeout",
        )

    def close(self, name: str) -> None:
        """Close the engine `name` of the actors, unless they have ended."""
        if not self.has_ended and not has_lost_cluster():
            self.call("close", name)

    def write_stacks(self, reason: str) -> None:
        """Let every actor write its stacks into its log, also one that hangs."""
        calls = self.start("write_stacks", reason, thread="control")
        load_ray().wait(calls, num_returns=len(self.actors), timeout=_STACKS_TIMEOUT)

    def kill(self) -> None:
        """End all actors of the group at once, and what they have started."""
        ray = load_ray()
        self.has_ended = True
        for rank, actor in enumerate(self.actors):
            if not has_lost_cluster():
                ray.kill(actor)
            forget(self.directory, self._name(rank))

    def _name(self, rank: int) -> str:
        return f"{self.name}-{self.first + rank}"

    def _named(self, ranks: Sequence[int]) -> str:
        return ", ".join(map(self._name, ranks))

    def _log(self, rank: int) -> Path:
        return log_path(self.directory, self._name(rank))


@contextmanager
def started_group(
    name: str, settings: Actors, directory: Path, timeout: float, *, are_ranks: bool
) -> Iterator[ActorGroup]:
    """The actors of a group, each with its resources, for the time of the block. `are_ranks`: of one process group.

    Raises: ConfigError if the cluster does not have the resources; EngineError if an actor does not start.
    """
    with ExitStack() as stack:
        bundles = stack.enter_context(_bundles(name, settings, timeout))
        group = ActorGroup(name, _actors(name, settings, directory, bundles), directory, timeout)
        stack.callback(group.kill)
        group.call("start")
        if are_ranks and settings.count > 1:
            longest = timeout + _AFTER_TIMEOUT
            address, port = group.parts()[0].call("open_store", longest)[0]
            group.call("join", address, port, new_secret(), longest)
        yield group


@contextmanager
def _bundles(name: str, settings: Actors, timeout: float) -> Iterator[Any]:
    """The resources of the actors, which are reserved for the time of the block."""
    ray = load_ray()
    gpus = _gpus(settings)
    resources = {"CPU": float(settings.cpus), **({"GPU": float(gpus)} if gpus else {})}
    if any(ray.cluster_resources().get(kind, 0.0) < settings.count * size for kind, size in resources.items()):
        raise _lacks(name, settings.count, resources, ray.cluster_resources(), "in the cluster")
    bundles = ray.util.placement_group([resources] * settings.count, strategy="SPREAD" if settings.spread else "PACK")
    try:
        deadline = time.monotonic() + timeout
        while not bundles.wait(min(_PERIOD, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise _lacks(name, settings.count, resources, ray.available_resources(), "free in the cluster")
            _LOG.warning("the run waits for %d x %s in the cluster, for %s", settings.count, resources, name)
        yield bundles
    finally:
        if not has_lost_cluster():
            ray.util.remove_placement_group(bundles)


def _actors(name: str, settings: Actors, directory: Path, bundles: Any) -> list[Any]:
    ray = load_ray()
    host = ray.remote(concurrency_groups=THREADS)(EngineHost)
    path, here = [path or str(Path.cwd()) for path in sys.path], str(Path.cwd())
    return [
        host.options(
            num_cpus=settings.cpus,
            num_gpus=_gpus(settings),
            scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                bundles, placement_group_bundle_index=rank
            ),
        ).remote(name, rank, settings.count, str(directory), path, here)
        for rank in range(settings.count)
    ]


def _gpus(settings: Actors) -> float:
    has_gpus = load_ray().cluster_resources().get("GPU", 0) > 0
    return float(has_gpus) if settings.gpus is None else settings.gpus


def _lacks(name: str, count: int, resources: dict[str, float], have: dict[str, float], where: str) -> ConfigError:
    return ConfigError(
        f"the cluster lacks resources for the {count} processes of {name}",
        got=", ".join(f"{have.get(kind, 0):g} {kind} {where}" for kind in resources),
        need=", ".join(f"{count} x {number:g} {kind}" for kind, number in resources.items()),
        do="lower count, cpus or gpus of placement.trainers, placement.generators or placement.roles",
    )
