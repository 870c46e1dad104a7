"""The layers of a sandbox on this computer, found by building one."""

from __future__ import annotations

from typing import NamedTuple

from purerl.errors import SandboxError
from purerl.sandbox.failures import LAYERS, REMEDIES
from purerl.sandbox.running import answer
from purerl.sandbox.settings import SandboxSettings
from purerl.sandbox.tasks import make_task

__all__ = ["Layer", "find_layers"]


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


def _build(settings: SandboxSettings) -> list[Layer]:
    facts = answer(make_task(settings, source=""), settings).header["layers"]
    details = {
        "accounting": f", by {facts['accounting']}",
        "landlock": f", version {facts['landlock']}",
        "pid namespace": "" if facts["has_proc"] else ", without /proc",
    }
    return [Layer(name, is_active=True, text=text + details.get(name, "")) for name, text in LAYERS.items()]
