"""The Ray cluster of a run: one that is joined, or a local one that is started for the run and ends with it.

A local Ray has about six processes beside the actors. They are the descendants of a guard
(`purerl.system.workers.guard`), so all of them end with the run, also if it is killed. Its directory is then removed by
a shell that waits for the guard. Its ports are on loopback, and its files and Unix sockets in a folder of mode 0700.
Ray answers no request without a random token, which its processes have in their environment: so has the code of the
user in actors, and what it starts.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from purerl.backends.serving.process import free_port
from purerl.errors import ConfigError, EngineError
from purerl.placement.actors.package import load_ray
from purerl.placement.actors.watch import watched
from purerl.placement.logs import last_lines
from purerl.placement.settings import Placement
from purerl.system.private_files import private_folder
from purerl.system.workers.processes import Worker
from purerl.system.workers.program import WORK, Program

__all__ = ["connected"]

_START_TIMEOUT = 120.0  # seconds
_REACH_TIMEOUT = 10.0
_POLL = 0.05
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
_LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray takes 127.0.0.1 for the address of its host, and binds to it
    "RAY_enable_metrics_collection": "0",  # a port of each host that answers requests without a token
    "DASHBOARD_METRIC_PORT": "-1",  # the same for the head, also without a dashboard: no server can be started there
}
_ADDRESS_FILE = "ray_current_cluster"
_MIN_STORE, _MAX_STORE = 128 * 2**20, 32 * 2**30  # bytes
_STORE_SHARE = 0.3  # of the memory that is available: Ray does not start if too little is left beside its store
_REMOVE = 'cat > /dev/null; for i in $(seq 150); do kill -0 "$1" 2> /dev/null || break; sleep 0.2; done; rm -rf "$2"'
"""Wait until the run has ended, and then until the guard has, for 30 seconds; remove the directory."""


@contextmanager
def connected(settings: Placement, directory: Path) -> Iterator[None]:
    """Connect this process to the Ray of the run in `directory`, for the time of the block.

    A connection that the process has already is used, and left as it is.

    Raises: ConfigError if nothing answers at `placement.address`; EngineError if a local Ray does not start.
    """
    ray = load_ray()
    if ray.is_initialized():
        with watched(_logs()):
            yield
        return
    with ExitStack() as stack:
        address = settings.address or stack.enter_context(_local(settings, directory))
        stack.callback(ray.shutdown)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            _check_reachable(address)
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (OSError, ValueError, RuntimeError) as error:
            got, do = str(error).partition("\n")[0], "start it with ray start, or leave placement.address out"
            raise ConfigError(f"no Ray at {address!r}", got=got, need="a running cluster", do=do) from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray replaces it, but a run stops with a checkpoint
        with watched(_log(directory) if settings.address is None else _logs()):
            yield


def _log(directory: Path) -> Path:
    return directory / "ranks" / "ray.log"


def _logs() -> Path:
    """The logs of the Ray to which this process is connected."""
    node: Any = load_ray()._private.worker.global_worker.node  # noqa: SLF001 - Ray does not say it otherwise
    return Path("the logs of Ray") if node is None else Path(node.get_logs_dir_path())


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_REACH_TIMEOUT).close()


@contextmanager
def _local(settings: Placement, directory: Path) -> Iterator[str]:
    """The address of a local Ray, which ends with the block, or with this process."""
    with private_folder("purerl-ray-") as private:
        folder = private / "r"  # Ray lets everybody write there. Short: the names of sockets may have 107 characters
        with _ray_in(folder, settings, directory) as address:
            yield address


@contextmanager
def _ray_in(folder: Path, settings: Placement, directory: Path) -> Iterator[str]:
    """The address of a local Ray whose files are in `folder`; the directory above it is removed, also after a kill."""
    log = _log(directory)
    process = _start(_command(folder, _num_cpus(settings)), log)
    remover = subprocess.Popen(  # noqa: S603 - a fixed script
        ["/bin/sh", "-c", _REMOVE, "sh", str(process.pid), str(folder.parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = _address(folder, process, log)
        with _authenticated():
            yield address
    finally:
        process.end()
        remover.communicate()


def _start(command: Sequence[str], log: Path) -> Worker:
    """The process of `command` with its guard."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(" ".join(command) + "\n", encoding="utf-8")
    path = os.pathsep.join(filter(None, sys.path))  # actors import what the run can import
    environment = {**os.environ, "PYTHONPATH": path, **_TOKEN, **_LOOPBACK}
    return Worker(WORK, Program(tuple(command), environment, str(log.absolute())), max_memory=None)


@contextmanager
def _authenticated() -> Iterator[None]:
    """Let this process use the token of its local Ray in the block, and reach it on loopback."""
    config: Any = import_module("ray._raylet").Config
    constants: Any = import_module("ray._private.ray_constants")
    is_clustered, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    before = {name: os.environ.get(name) for name in _TOKEN}
    os.environ.update(_TOKEN)
    config.initialize("")  # Ray has read the variables when it was imported
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = is_clustered
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        config.initialize("")


def _address(folder: Path, process: Worker, log: Path) -> str:
    """The address of the Ray that `process` starts in `folder`, once it is there."""
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and not select.select([process.sentinel], [], [], 0)[0]:
        with suppress(OSError):
            if address := (folder / _ADDRESS_FILE).read_text(encoding="utf-8").strip():
                return address
        time.sleep(_POLL)
    got = f"\n{last_lines(log)}"
    do = "see its log, or start Ray yourself and set placement.address"
    raise EngineError("a local Ray did not start", got=got, need=f"Ray within {_START_TIMEOUT:g} seconds", do=do)


def _command(folder: Path, num_cpus: int) -> list[str]:
    store = _store_size(import_module("ray._private.utils").estimate_available_memory())
    options = ["--head", "--block", "--port=0", "--include-dashboard=false", "--no-monitor"]
    options += ["--dashboard-agent-listen-port=0"]
    if find_spec("grpc") is not None:  # otherwise Ray has no such server
        options += [f"--ray-client-server-port={free_port()}"]
    options += ["--disable-usage-stats", f"--num-cpus={num_cpus}", f"--temp-dir={folder}"]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", *options, f"--object-store-memory={store}"]


def _store_size(available: int) -> int:
    """Bytes of the object store, in shared memory, with so many bytes of `available` memory."""
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else available  # noqa: S108 - not a file
    return int(max(_MIN_STORE, min(_STORE_SHARE * available, 0.8 * shared, _MAX_STORE)))


def _num_cpus(settings: Placement) -> int:
    """The cores that a local Ray counts: enough for the processes of the run, also on a host with fewer."""
    groups = [settings.trainers, settings.generators, *settings.roles.values()]
    needed = sum(group.count * group.cpus if group else 1 for group in groups)
    return max(os.cpu_count() or 1, needed + 1)
