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
from purerl.placement.logs import last_lines, log_path
from purerl.placement.ray.host import THREADS, EngineHost
from purerl.placement.settings import Actors

__all__ = ["ActorGroup", "started_group"]

_LOG = logging.getLogger(__name__)
_PERIOD = 60.0  # seconds between two messages about what the run waits for
_STACKS_TIMEOUT = 10.0  # seconds in which an actor must have written its stacks


@define(eq=False)
class ActorGroup:
    """The actors `name`-0, `name`-1, ... of the run in `directory`.

    timeout       seconds that a call may take
    first         the number of the first one
    busy_seconds  time in which the actors had a call
    """

    name: str
    actors: Sequence[Any]
    directory: Path
    timeout: float
    first: int = 0
    busy_seconds: float = 0.0

    def parts(self) -> list[ActorGroup]:
        """A group for each of the actors."""
        return [evolve(self, actors=[actor], first=self.first + k) for k, actor in enumerate(self.actors)]

    def call(self, method: str, *arguments: Any, thread: str | None = None, **keywords: Any) -> list[Any]:
        """What `method` of each actor returns. `thread` is one of `THREADS`, for a call beside others.

        Raises: what an actor has raised; EngineError if one has ended, or does not return in time. The group ends then,
        because its other actors may wait for that one.
        """
        start = time.perf_counter()
        results = self.results(self.start(method, *arguments, thread=thread, **keywords), method)
        if thread is None:
            self.busy_seconds += time.perf_counter() - start
        return results

    def start(self, method: str, *arguments: Any, thread: str | None = None, **keywords: Any) -> list[Any]:
        """Begin a call of `method` in each actor; return the references to their results."""
        options = {} if thread is None else {"concurrency_group": thread}
        return [getattr(actor, method).options(**options).remote(*arguments, **keywords) for actor in self.actors]

    def results(self, references: Sequence[Any], what: str) -> list[Any]:
        """The results of a call of each actor. Raises: as `call`."""
        import ray

        numbers = {reference: rank for rank, reference in enumerate(references)}
        results: list[Any] = [None] * len(references)
        begin = time.monotonic()
        while numbers:
            remaining = begin + self.timeout - time.monotonic()
            ready, _ = ray.wait([*numbers], timeout=max(0.0, min(_PERIOD, remaining)))
            if not ready and remaining <= 0:
                raise self._late(what, [*numbers.values()])
            if not ready:
                seconds, names = time.monotonic() - begin, self._named([*numbers.values()])
                _LOG.warning("%s has waited %.0f s for %s of %s", "the run", seconds, what, names)
            for reference in ready:
                rank = numbers.pop(reference)
                results[rank] = self.result(reference, rank)
        return results

    def result(self, reference: Any, rank: int) -> Any:
        """The result of a call of one actor, which is there. Raises: as `call`."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return ray.get(reference)
        except RayTaskError as error:
            self.kill()
            cause = error.cause if isinstance(error.cause, BaseException) else EngineError(str(error))
            cause.add_note(f"in {self._name(rank)}, whose log is {str(self._log(rank))!r}")
            raise cause from None
        except RayActorError as error:
            self.kill()
            raise self._dead(rank, error) from None

    def _dead(self, rank: int, error: Exception) -> EngineError:
        lines = last_lines(self._log(rank))
        reason = str(error).partition("Worker exit detail:")[2].strip().partition("\n")[0]
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
            f"{what}: {self._named(ranks)} did not return",
            got=f"nothing for {self.timeout:g} seconds",
            need="a result within placement.timeout",
            do=f"see the stacks in the logs in {str(self._log(0).parent)!r}, or raise placement.timeout",
        )

    def write_stacks(self, reason: str) -> None:
        """Let every actor write its stacks into its log, also one that hangs."""
        import ray

        ray.wait(
            self.start("write_stacks", reason, thread="control"),
            num_returns=len(self.actors),
            timeout=_STACKS_TIMEOUT,
        )

    def kill(self) -> None:
        """End all actors of the group at once, and what they have started."""
        import ray

        for actor in self.actors:
            ray.kill(actor)

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
        group.call("process")
        if are_ranks and settings.count > 1:
            address, port = group.parts()[0].call("open_store")[0]
            group.call("join", address, port, timeout)
        yield group


@contextmanager
def _bundles(name: str, settings: Actors, timeout: float) -> Iterator[Any]:
    """The resources of the actors, which are reserved for the time of the block."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    gpus = _gpus(settings)
    resources = {"CPU": float(settings.cpus), **({"GPU": float(gpus)} if gpus else {})}
    if any(ray.cluster_resources().get(kind, 0.0) < settings.count * size for kind, size in resources.items()):
        raise _lacks(name, settings.count, resources, ray.cluster_resources(), "in the cluster")
    bundles = placement_group([resources] * settings.count, strategy="SPREAD" if settings.spread else "PACK")
    try:
        if not bundles.wait(timeout):
            raise _lacks(name, settings.count, resources, ray.available_resources(), "free in the cluster")
        yield bundles
    finally:
        remove_placement_group(bundles)


def _actors(name: str, settings: Actors, directory: Path, bundles: Any) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    host = ray.remote(concurrency_groups=THREADS)(EngineHost)
    path, here = [path or str(Path.cwd()) for path in sys.path], str(Path.cwd())
    return [
        host.options(
            num_cpus=settings.cpus,
            num_gpus=_gpus(settings),
            scheduling_strategy=PlacementGroupSchedulingStrategy(bundles, placement_group_bundle_index=rank),
        ).remote(name, rank, settings.count, str(directory), path, here)
        for rank in range(settings.count)
    ]


def _gpus(settings: Actors) -> float:
    import ray

    has_gpus = ray.cluster_resources().get("GPU", 0) > 0
    return float(has_gpus) if settings.gpus is None else settings.gpus


def _lacks(name: str, count: int, resources: dict[str, float], have: dict[str, float], where: str) -> ConfigError:
    return ConfigError(
        f"the cluster lacks resources for the {count} processes of {name}",
        got=", ".join(f"{have.get(kind, 0):g} {kind} {where}" for kind in resources),
        need=", ".join(f"{count} x {number:g} {kind}" for kind, number in resources.items()),
        do="lower count, cpus or gpus of placement.trainers, placement.generators or placement.roles",
    )
