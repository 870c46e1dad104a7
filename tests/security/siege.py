"""A run under attack: its surface is looked up again and again, and every intruder attacks all of it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from tests.security.attacks import Attack, Report
from tests.security.intruders import Intruders
from tests.security.surface import Listener, Surface, descendants, public_arguments, secrets_of, surface_of

__all__ = ["DEADLINE", "Siege", "public_folder", "run_environment", "wait_until"]

DEADLINE = 240.0  # seconds: for a hang
_PAUSE = 0.5  # seconds before an attack, in which the run continues


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until `condition` is true."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter, with a folder `t` in which everybody may make files.

    Its names are short, because those of the sockets of Ray in it may have 107 characters.
    """
    with tempfile.TemporaryDirectory(prefix="siege-") as path:
        folder = Path(path)
        folder.chmod(0o755)
        (folder / "t").mkdir()
        (folder / "t").chmod(0o1777)
        yield folder


@define
class Siege:
    """Attacks of `intruders` on the process `pid` and its descendants.

    folder  a `public_folder`, in which the run directory and the temporary folder of the run are
    more    attacks on listeners beside those of `Attack`
    """

    pid: int
    folder: Path
    intruders: Intruders
    more: tuple[Callable[[str, int], list[str]], ...] = ()
    listeners: set[Listener] = field(factory=set)
    paths: set[Path] = field(factory=set)
    reports: dict[str, list[Report]] = field(factory=dict)
    arguments: set[bytes] = field(factory=set)
    secrets: set[bytes] = field(factory=set)

    @property
    def marker(self) -> Path:
        """A file that exists if the run has executed a payload."""
        return self.folder / "executed"

    def attack(self, **options: bool) -> None:
        """Let all intruders attack everything that there is now; the options are those of `Attack`."""
        time.sleep(_PAUSE)
        pids, surface, network = tuple(descendants(self.pid)), self.look(), self.intruders.network
        for intruder in self.intruders.processes:
            is_remote = intruder.name == "another network"
            attack = Attack(
                listeners=tuple(sorted(item for item in surface.listeners if not (is_remote and item.kind == "unix"))),
                host=network.host if is_remote and network else None,
                marker=self.marker,
                paths=() if is_remote else tuple(surface.paths),
                pids=() if is_remote else pids,
                watched=() if is_remote else (self.folder / "t",),
                more=self.more,
                **options,
            )
            intruder.start(attack)
        for intruder in self.intruders.processes:
            self.reports.setdefault(intruder.name, []).append(intruder.report())

    def look(self) -> Surface:
        """The surface of the run now."""
        pids = descendants(self.pid)
        surface = surface_of(pids, [self.folder / "t", self.folder / "run"])
        self.listeners |= surface.listeners
        self.paths |= surface.paths
        self.arguments.add(public_arguments(pids))
        self.secrets |= secrets_of(pids, surface.paths)
        return surface

    def attack_until_end(self, process: subprocess.Popen[str]) -> None:
        """Attack, again and again, until `process` has ended."""
        end = time.monotonic() + DEADLINE
        while process.poll() is None:
            self.attack()
            assert time.monotonic() < end, "the run does not end"

    def check(self, process: subprocess.Popen[str]) -> None:
        """Fail if an attack has succeeded, or if the run has not ended normally."""
        details = f"{self.describe()}\n{(self.folder / 'output').read_text()}"
        assert self.findings() == set(), details
        assert process.returncode == 0, details

    def findings(self) -> set[str]:
        """The successes of the attacks."""
        found = {
            f"{name}: {text}" for name, reports in self.reports.items() for each in reports for text in each.findings
        }
        if self.marker.exists():
            found.add(f"the run has executed a payload: {self.marker.read_text().strip()}")
        found |= {"a secret is in a command line" for line in self.arguments for each in self.secrets if each in line}
        found |= {
            f"a secret is in {path}"
            for path in self.readable("another user")
            for each in self.secrets
            if _has(path, each)
        }
        return found

    def readable(self, name: str) -> set[Path]:
        """The files and folders that an intruder can read."""
        return {path for report in self.reports.get(name, []) for path in report.readable}

    def reached(self, name: str) -> set[Listener]:
        """The sockets that an intruder reaches."""
        return {listener for report in self.reports.get(name, []) for listener in report.reached}

    def values(self) -> dict[str, bytes]:
        """The values that an intruder has read in stores of torch."""
        return {
            key: value for reports in self.reports.values() for each in reports for key, value in each.values.items()
        }

    def describe(self) -> str:
        """The surface and the findings, for the message of a failed test."""
        lines = [f"{item.kind} {item.address} {item.port or ''} of {item.owner}" for item in sorted(self.listeners)]
        attempts = {name: sum(report.attempts for report in reports) for name, reports in self.reports.items()}
        keys = sorted(self.values())
        return "\n".join(
            ["listening:", *lines, f"attempts: {attempts}", f"keys: {keys}", "findings:", *sorted(self.findings())]
        )


def _has(path: Path, secret: bytes) -> bool:
    try:
        return path.is_file() and secret in path.read_bytes()
    except OSError:
        return False


def run_environment(folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a run whose files are all in `folder`."""
    caches = {}
    for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        path = folder / "home" / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        caches[name] = str(path)
    return {**os.environ, "TMPDIR": str(folder / "t"), "OMP_NUM_THREADS": "1", **caches, **variables}
