"""The layers of a sandbox on this computer, found by building one."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import NamedTuple

from purerl.errors import SandboxError
from purerl.sandbox.failures import LAYERS, REMEDIES
from purerl.sandbox.running import answer
from purerl.sandbox.settings import SandboxSettings
from purerl.sandbox.supervisor.root import DEVICES
from purerl.sandbox.tasks import make_task

__all__ = ["Layer", "find_devices", "find_layers"]

_NUMBERS = {
    "/dev/null": (1, 3),
    "/dev/zero": (1, 5),
    "/dev/full": (1, 7),
    "/dev/random": (1, 8),
    "/dev/urandom": (1, 9),
}
"""The major and the minor number of each device on Linux."""


class Layer(NamedTuple):
    """A layer of sandboxes: what it does, or why it is missing and what to do about it."""

    name: str
    is_active: bool
    text: str
    do: str = ""


def find_layers() -> list[Layer]:
    """The layers of a sandbox that is built now. If one is missing, it comes first, and others may be unknown.

    Raises: SandboxError if something else prevents a sandbox.
    """
    try:
        return _build(SandboxSettings())
    except SandboxError as error:
        if error.layer is None:
            raise
        got = str(error).partition("got:  ")[2].splitlines()[0]
        missing = Layer(error.layer, is_active=False, text=f"{LAYERS[error.layer]}; {got}", do=REMEDIES[error.layer])
        others = _build(SandboxSettings(layers="without_landlock")) if error.layer == "landlock" else []
        return [missing, *(layer for layer in others if layer.name != "landlock")]


def find_devices(root: str = "/") -> list[Layer]:
    """The devices of this computer that programs in a sandbox have, each with what is wrong with it.

    A file in the place of /dev/null fills up, and a program that reads it gets what others have written. `root` is the
    directory in which they are looked for.
    """
    return [Layer(path, not (problem := _problem_of(path, root)), problem, _remedy(path)) for path in DEVICES]


def _problem_of(path: str, root: str) -> str:
    try:
        status = (Path(root) / path.removeprefix("/")).stat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISCHR(status.st_mode):
        return "no device, but a file or a directory"
    number = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if sys.platform == "linux" and number != _NUMBERS[path]:
        return f"another device: {number[0]}:{number[1]} in place of {_NUMBERS[path][0]}:{_NUMBERS[path][1]}"
    is_usable = os.access(Path(root) / path.removeprefix("/"), os.R_OK | os.W_OK)
    return "" if is_usable else "no permission to read and write it"


def _remedy(path: str) -> str:
    major, minor = _NUMBERS[path]
    return f"as root: rm -f {path}; mknod -m 666 {path} c {major} {minor}"


def _build(settings: SandboxSettings) -> list[Layer]:
    facts = answer(make_task(settings, source=""), settings).header["layers"]
    details = {
        "accounting": f", by {facts['accounting']}",
        "landlock": f", version {facts['landlock']}",
        "pid namespace": "" if facts["has_proc"] else ", without /proc",
    }
    return [Layer(name, is_active=True, text=text + details.get(name, "")) for name, text in LAYERS.items()]
