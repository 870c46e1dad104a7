"""Errors of a run that are the end of Ray: those of Ray, and those that follow from them. No cluster is started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from purerl.errors import DataError, EngineError
from purerl.placement.actors.watch import RayWatch

ray = pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")


@pytest.fixture
def store() -> Iterator[socket.socket]:
    """A listener in the place of Ray's control store."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server


def watch_of(store: socket.socket) -> RayWatch:
    return RayWatch(None, store.getsockname(), Path("ray.log"))


def system_error() -> None:
    raise ray.exceptions.RaySystemError("System error: Failed to connect to GCS")


def error_of_the_end_of_an_actor() -> None:
    try:
        raise ray.exceptions.ActorDiedError
    except ray.exceptions.RayActorError:
        raise EngineError("trainers-1, an actor of Ray, has ended") from None


def error_while_another_is_handled() -> None:
    try:
        system_error()
    except ray.exceptions.RaySystemError as error:
        raise EngineError("the run cannot continue") from error


def error_in_the_code_of_ray() -> None:
    exec("raise ConnectionError('GCS')", {"__name__": "ray._private.worker"})


def error_of_a_callback() -> None:
    raise ZeroDivisionError("a bug in a callback")


def error_of_the_data() -> None:
    raise DataError("row 3")


def error_in_an_actor() -> None:
    """As `ActorGroup` raises what code in an actor has raised."""
    try:
        raise ray.exceptions.RayTaskError("step", "a traceback", ZeroDivisionError("a bug in a trainer"))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


OF_RAY = (system_error, error_of_the_end_of_an_actor, error_while_another_is_handled, error_in_the_code_of_ray)
OTHERS = (error_of_a_callback, error_of_the_data, error_in_an_actor)


def raised_by(action: Callable[[], None]) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each has its own type
        action()
    return raised.value


@pytest.mark.parametrize("action", OF_RAY)
def test_an_error_of_ray_is_its_end_if_it_has_ended(store: socket.socket, action: Callable[[], None]) -> None:
    watch = watch_of(store)
    assert watch.explain(raised_by(action)) is None
    assert not watch.has_ended
    store.close()
    problem = watch.explain(raised_by(action))
    assert str(problem).startswith("the control store of Ray (GCS), at 127.0.0.1:")
    assert "see ray.log; the same command resumes the run" in str(problem)


@pytest.mark.parametrize("action", OTHERS)
def test_another_error_is_shown_as_it_is(store: socket.socket, action: Callable[[], None]) -> None:
    watch = watch_of(store)
    store.close()
    assert watch.explain(raised_by(action)) is None
    assert not watch.has_ended


def test_an_error_that_is_its_own_context_is_no_endless_loop(store: socket.socket) -> None:
    first, second = ValueError(), KeyError()
    first.__context__ = second
    with suppress(ValueError):
        second.__context__ = first
    assert watch_of(store).explain(first) is None
