"""Results that follow from the configuration of a model, in files of the user, for the processes after this one.

To find out what a model can do, or how much memory it needs, it is built without weights, which takes seconds. The code
that chooses the class of its tokenizer takes a second to import. The result is a function of some arguments, of the
files of the model that are read, and of the code that runs. The name of a file is the digest of all of them, so a file
is never out of date: what changes gets another file.

The files are in a folder that only this user can enter. If there is none, nothing is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from purerl.errors import RunError
from purerl.models.pretrained import folder_of
from purerl.settings import Model
from purerl.system.nesting import read_json
from purerl.system.private_files import open_private, read_private, user_folder

__all__ = ["passed_before", "stored", "stored_result"]

T = TypeVar("T")

_PACKAGES = (
    *("accelerate", "huggingface-hub", "megatron-core", "mistral-common", "peft", "sentencepiece", "tensordict"),
    *("tokenizers", "torch", "transformers"),
)
_MAX_FILES = 1000


def stored_result(cls: type[T], compute: Callable[[], T], *, model: Model, settings: object, arguments: object) -> T:
    """The result of `compute` in this process, or in an earlier one where it would have been the same.

    cls        the type of the result: bool, or an attrs class that JSON can represent
    model      the model that `compute` builds. A model with code of its own is never stored
    settings   the Config of the engine. That of a plugin outside of this package is never stored
    arguments  everything else that the result depends on; their ``repr`` tells them apart

    An exception of `compute` is raised, and not stored.
    """
    files = _files_of(model) if type(settings).__module__.startswith("purerl.") else None
    return compute() if files is None else stored(cls, compute, model, settings, arguments, files)


def stored(cls: type[T], compute: Callable[[], T], *key: object) -> T:
    """The result of `compute` in this process, or in an earlier one with the same `key`, code, packages and device.

    Keys are equal if the ``repr`` of each part is. An exception of `compute` is raised, and not stored.
    """
    path = _path(repr((cls.__name__, *key, _code())))
    if path is None:
        return compute()
    from cattrs.preconf.json import make_converter

    converter = make_converter()
    with suppress(OSError, RunError, ValueError, LookupError, TypeError):  # there is none, or it is damaged
        return converter.structure(read_json(read_private(path)), cls)
    result = compute()
    with suppress(OSError, RunError):
        _write(path, json.dumps(converter.unstructure(result)))
    return result


def passed_before(key: object, check: Callable[[], None]) -> None:
    """Call `check`, unless it has passed in this process or in an earlier one with the same `key`.

    Its ``repr`` tells keys apart, and the versions of libraries are part of it. An exception of `check` is raised.
    """
    name = repr((key, *_versions()))
    path = None if name in _passed else _path(name)
    if name not in _passed and (path is None or not _exists(path)):
        check()
        with suppress(OSError, RunError):
            if path is not None:
                _write(path, "true")
    _passed.add(name)


_passed = set[str]()


def _exists(path: Path) -> bool:
    with suppress(OSError, RunError):
        return bool(read_private(path))
    return False


def _files_of(model: Model) -> tuple[str, ...] | None:
    """The digest of the configuration of `model`, and the names of all its files; None if they are not known."""
    folder = None if model.trust_remote_code else folder_of(model)
    if folder is None:
        return None
    with suppress(OSError):
        names = sorted(file.name for file in folder.iterdir())
        return (hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(), *names)
    return None


@cache
def _code() -> tuple[str, ...]:
    """The digest of the source code of this package, the versions of libraries, and the device."""
    from purerl.system.devices.accelerator import default_device

    package, total = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        total.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes() + b"\0")
    return (total.hexdigest(), *_versions(), sys.version, platform.machine(), str(default_device()))


def _versions() -> Iterable[str]:
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"


def _path(key: str) -> Path | None:
    with suppress(RunError, OSError):
        return user_folder() / "models" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    return None


def _write(path: Path, text: str) -> None:
    """Replace the file at `path`; if there are too many files, remove the oldest ones."""
    temporary = path.with_suffix(f".{os.getpid()}")
    with open_private(temporary) as file:
        file.write(text)
    temporary.replace(path)
    files = sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime)
    for file in files[:-_MAX_FILES]:
        file.unlink(missing_ok=True)
