"""A supervisor: it starts sandboxes, feeds and reads their programs, and ends them when a limit is exceeded.

    owner  <-socket->  supervisor  <-socket->  process 1 of a sandbox  ->  program

It is outside of the sandboxes. The kernel kills process 1 of a sandbox when the supervisor ends, and the supervisor
when its owner ends.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from purerl.sandbox.messages import Message, Task, receive, send
from purerl.sandbox.supervisor.launch import Sandbox
from purerl.sandbox.supervisor.monitor import Monitor
from purerl.sandbox.supervisor.spawner import Refusal, Spawner
from purerl.sandbox.supervisor.spawners import Spawners

__all__ = ["supervise"]

_INTERRUPT_SECONDS = 3.0  # from KeyboardInterrupt in a session until it is killed


def supervise(owner: socket.socket, spawner: Spawner) -> NoReturn:
    """Run one task after the other that the owner sends, and send their results, until it closes the connection."""
    spawners = Spawners(spawner)
    while (message := receive(owner)) is not None:
        task = Task.from_message(message)
        try:
            sandbox = Sandbox(task, owner, spawners)
        except Refusal as error:
            _refuse(owner, error)
            continue
        except OSError as error:
            _refuse(owner, Refusal("start", error.errno, str(error)))
            continue
        try:
            (_serve_session if task.kind == "session" else _serve_run)(task, owner, sandbox)
        except Refusal as error:
            sandbox.end()
            _refuse(owner, error)
        except ConnectionError as error:  # process 1 has ended before its program started
            sandbox.end()
            _refuse(owner, Refusal("start", error.errno, str(error)))
        finally:
            sandbox.close()
    spawners.end()
    os._exit(0)


def _refuse(owner: socket.socket, error: Refusal) -> None:
    with suppress(OSError):
        send(owner, Message({"error": error.message}))


def _open_monitor(task: Task, sandbox: Sandbox) -> Monitor:
    monitor = Monitor(sandbox.channels, task.bounds, sandbox.cgroup, sandbox.sampler)
    monitor.feed(sandbox.channels.stdin, task.stdin)
    send(sandbox.channels.report, Message({}))  # process 1 starts the program
    return monitor


def _serve_run(task: Task, owner: socket.socket, sandbox: Sandbox) -> None:
    monitor, bounds, start = _open_monitor(task, sandbox), task.bounds, time.monotonic()
    outcome = monitor.wait(bounds.seconds, bounds.cpu_seconds, bounds.output)
    seconds = time.monotonic() - start
    sandbox.end()
    monitor.drain(bounds.output)
    status, code = _status(task, monitor, outcome)
    with suppress(OSError):
        send(owner, _result(sandbox, monitor, status, code, seconds))


def _status(task: Task, monitor: Monitor, outcome: str) -> tuple[str, int | None]:
    """The status of a run or a turn, and its exit code if it ended by itself."""
    if exceeded := monitor.exceeded():
        return exceeded, None
    if outcome == "forged":
        return "killed", -signal.SIGKILL
    if outcome not in ("exit", "turn"):
        return outcome, None
    if monitor.has_overflowed:
        return "output", None
    code = monitor.code if outcome == "turn" else _exit_code(monitor.message)
    is_limited = task.kind != "session"  # by the kernel, which kills a process with too much CPU time
    if is_limited and code == -signal.SIGKILL and monitor.message["cpu_seconds"] >= task.bounds.cpu_seconds:
        return "timeout", None
    return "ok" if code == 0 else "error" if code > 0 else "killed", code


def _exit_code(message: Mapping[str, Any]) -> int:
    """The exit code of a program, as process 1 has reported it. Raises: Refusal if it could not be started."""
    if "error" in message:
        raise Refusal(**message["error"])
    if "exit" not in message:
        raise Refusal("start", None, "process 1 of the sandbox has ended")
    return message["exit"]


def _result(sandbox: Sandbox, monitor: Monitor, status: str, code: int | None, seconds: float, **more: Any) -> Message:
    memory = monitor.memory or monitor.message.get("memory", 0)
    header = {"status": status, "exit_code": code, "seconds": seconds, "memory": memory, "layers": sandbox.layers}
    return Message({**header, **more}, monitor.output)


def _serve_session(task: Task, owner: socket.socket, sandbox: Sandbox) -> None:
    """Run one turn after the other, with processes stopped in between, until the session ends."""
    monitor = _open_monitor(task, sandbox)
    send(owner, Message({"layers": sandbox.layers}))
    is_alive = True
    while is_alive and (message := receive(owner)) is not None and "is_over" not in message.header:
        sandbox.order("continue")
        is_alive = _serve_turn(message.header, message.parts[0], task, owner, sandbox, monitor)
        if is_alive:
            sandbox.order("pause")
            monitor.wait_for_pause()


def _serve_turn(
    limits: Mapping[str, Any], source: bytes, task: Task, owner: socket.socket, sandbox: Sandbox, monitor: Monitor
) -> bool:
    """Run one turn. Returns whether there can be another one."""
    monitor.forget_output()
    start = time.monotonic()
    monitor.feed_turn(sandbox.channels.turns, source)
    outcome = monitor.wait(limits["seconds"], limits["cpu_seconds"], limits["output"])
    is_alive = outcome == "turn" and not monitor.exceeded()
    if outcome in ("timeout", "output"):
        sandbox.order("interrupt")
        ending = monitor.wait(_INTERRUPT_SECONDS, _INTERRUPT_SECONDS, limits["output"], is_ending=True)
        is_alive = ending == "turn"
        if ending == "exit" and not monitor.message.get("was_interrupted", True):
            outcome = "exit"  # it had ended before
    seconds = time.monotonic() - start
    if not is_alive:
        sandbox.end()
    monitor.drain(limits["output"])
    if outcome == "forged":
        monitor.forget_output()  # some of it may be that of an earlier turn
    status, code = _status(task, monitor, outcome)
    with suppress(OSError):
        send(owner, _result(sandbox, monitor, status, code, seconds, is_alive=is_alive))
    return is_alive
