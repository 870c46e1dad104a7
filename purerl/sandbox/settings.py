"""Settings of sandboxes for untrusted programs."""

from __future__ import annotations

from typing import Literal

from attrs import asdict, frozen

from purerl.errors import ConfigError
from purerl.sandbox.messages import Bounds
from purerl.settings import (
    above_zero,
    at_least,
    check_strings,
    no_effect,
    one_of,
    server_address,
    setting,
    size_at_least,
)

__all__ = ["Limits", "SandboxSettings"]


@frozen(kw_only=True)
class Limits:
    """Limits of one run, with all processes that it starts. A run that exceeds a limit is ended.

    Two limits only make calls of the program fail: those of files, and of open files.
    """

    timeout: float = setting("duration of the program", unit="s", default=10.0, **above_zero())
    cpu_time: float | None = setting(
        "CPU time of all processes together; if not given, as timeout", unit="s", default=None, **above_zero()
    )
    max_memory: int = setting(
        'memory of all processes and files together: a number of MiB, or a size such as "2GB"',
        unit="MiB",
        default=512,
        **size_at_least(16),
    )
    max_processes: int = setting("processes and threads at the same time", default=64, **at_least(1))
    max_output: int = setting("stdout and stderr together", unit="bytes", default=2**20, **at_least(0))
    max_disk: int = setting(
        "all files that it writes, together: a number of MiB, or a size", unit="MiB", default=64, **size_at_least(1)
    )
    max_files: int = setting("number of files and directories that it creates", default=1024, **at_least(1))
    max_file_size: int = setting(
        "one file, in MiB; also of a file with holes", unit="MiB", default=64, **size_at_least(1)
    )
    max_open_files: int = setting("files that one process has open", default=256, **at_least(16))

    def bounds(self) -> Bounds:
        """The limits in seconds and bytes, as a supervisor gets them."""
        return Bounds(
            seconds=self.timeout,
            cpu_seconds=self.cpu_time or self.timeout,
            memory=self.max_memory * 2**20,
            processes=self.max_processes,
            output=self.max_output,
            disk=self.max_disk * 2**20,
            files=self.max_files,
            file_size=self.max_file_size * 2**20,
            open_files=self.max_open_files,
        )


@frozen(kw_only=True)
class SandboxSettings:
    """The computer and the isolation of untrusted programs."""

    layers: Literal["all", "without_landlock", "none"] = setting(
        "what protects the host. all: every layer, and an error if one is missing; without_landlock: for kernels "
        "before 5.13; none: nothing, the program has all permissions of your user",
        default="all",
        **one_of("all", "without_landlock", "none"),
    )
    accounting: Literal["auto", "cgroups", "sampling"] = setting(
        "who measures memory and processes. cgroups: the kernel; sampling: the supervisor, which reads /proc many "
        "times per second; auto: cgroups where they can be created",
        default="auto",
        **one_of("auto", "cgroups", "sampling"),
    )
    limits: Limits = setting("what one run may use", factory=Limits)
    python: str | None = setting(
        "interpreter of Python programs, of version 3.11 or later; programs can use the packages of its environment. "
        "If not given, the interpreter of purerl",
        default=None,
    )
    preload: tuple[str, ...] = setting(
        "modules that a pool imports before the first run, so that each run has them at once",
        default=("collections", "functools", "itertools", "json", "math", "random", "re", "typing"),
    )
    read_only: tuple[str, ...] = setting(
        "directories and files of the host that programs can read, beside those of the system and of Python", default=()
    )
    max_concurrent_runs: int | None = setting(
        "runs at the same time; further ones wait. If not given, two for each core", default=None, **at_least(1)
    )
    remote: str | None = setting(
        "URL of a server with the interface of SandboxFusion, which runs the programs in place of this computer",
        default=None,
        credential="export PURERL_SANDBOX_TOKEN, or PURERL_SANDBOX_TOKEN_FILE with the name of a private file",
        **server_address(),
    )

    def __attrs_post_init__(self) -> None:
        check_strings("preload", self.preload)
        for path in self.read_only:
            if not path.startswith("/"):
                raise ConfigError("read_only", got=repr(path), need="absolute paths")
        if self.remote is not None:
            _check_remote(self)
        if self.layers == "none" and self.read_only:
            raise no_effect("read_only", self.read_only, "a sandbox: without layers, programs can read everything")


_REMOTE = ("remote", "limits", "max_concurrent_runs")
_REMOTE_LIMITS = ("timeout", "max_memory", "max_output")


def _check_remote(settings: SandboxSettings) -> None:
    """Refuse what a remote sandbox does not have."""
    default = SandboxSettings()
    for name, value in asdict(settings, recurse=False).items():
        if name not in _REMOTE and value != getattr(default, name):
            raise no_effect(name, value, "a sandbox on this computer; a remote one has settings of its own")
    for name, value in asdict(settings.limits).items():
        if name not in _REMOTE_LIMITS and value != getattr(default.limits, name):
            raise no_effect(f"limits.{name}", value, "a sandbox on this computer; a remote one has limits of its own")
