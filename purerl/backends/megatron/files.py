"""Safetensors files of a model: read tensor by tensor, and written in files of limited size."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from purerl.backends.weights import in_buckets
from purerl.errors import ConfigError
from purerl.models.pretrained import loading
from purerl.settings import Model
from purerl.system.nesting import read_json

__all__ = ["WeightFiles", "write_files"]

_INDEX = "model.safetensors.index.json"
_FILE_SIZE = 5 * 2**30  # bytes


class WeightFiles:
    """The tensors in the safetensors files of `model`, which is a directory or on the hub.

    Raises: ConfigError, when a tensor is read, if there are no such files.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._opened: tuple[Path | None, Any] = (None, None)

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """The file of each tensor, by name."""
        from transformers.utils.hub import cached_files

        options: dict[str, Any] = {"revision": self._model.revision, "_raise_exceptions_for_missing_entries": False}
        with loading("model", self._model):
            index = cached_files(self._model.path, [_INDEX], **options)
            names = sorted(set(read_json(Path(index[0]).read_text())["weight_map"].values())) if index else None
            files = cached_files(self._model.path, names or ["model.safetensors"], **options) or []
            if not files or len(files) < len(names or ()):
                raise OSError(f"no {', '.join(names or ['model.safetensors'])}: megatron reads safetensors files only")
            return {name: Path(path) for path in files for name in _names(Path(path))}

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`. Raises ConfigError if there is none, or if it has another shape."""
        if name not in self._paths:
            raise self._incomplete(f"no {name}")
        path = self._paths[name]
        if self._opened[0] != path:  # tensors of a layer are usually in one file
            self._opened = (path, safe_open(path, framework="pt"))
        tensor = self._opened[1].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise self._incomplete(f"{name} is {list(tensor.shape)} in the files and {list(shape)} in the model")
        return tensor

    def _incomplete(self, got: str) -> ConfigError:
        return ConfigError(
            f"the files of {self._model.path!r} do not contain the whole model",
            got=got,
            need="all weights, in the shapes of config.json",
            do="download the files again, or fix config.json if it describes another model",
        )


def _names(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def write_files(path: Path, weights: Iterable[tuple[str, Tensor]], *, is_writer: bool) -> None:
    """Write `weights` into safetensors files of at most 5 GiB in the directory `path`, and an index of several.

    `weights` are iterated to the end on every rank; the writer has the tensors of one file in the memory of the host.

    Raises: OSError if a file cannot be written.
    """
    if not is_writer:
        deque(weights, maxlen=0)
        return
    names = list[list[str]]()
    for number, part in enumerate(in_buckets(weights, _FILE_SIZE)):
        names.append(list(part))
        save_file(part, path / f"part-{number}.safetensors", metadata={"format": "pt"})
    total = len(names)
    weight_map = {}
    for number, of_file in enumerate(names):
        file = "model.safetensors" if total == 1 else f"model-{number + 1:05}-of-{total:05}.safetensors"
        (path / f"part-{number}.safetensors").rename(path / file)
        weight_map |= dict.fromkeys(of_file, file)
    if total > 1:
        (path / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2))
