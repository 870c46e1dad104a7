"""The model of a server: its limits, and its weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from purerl.errors import ConfigError
from purerl.models.pretrained import config_of, loading
from purerl.settings import Model
from purerl.system.nesting import read_json

__all__ = ["FileWeights", "ServedModel"]

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I8": "int8",
    "U8": "uint8",
}
"""Names of dtypes in torch by those in safetensors files."""


class ServedModel:
    """The configuration of `model`, which is not loaded here."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def _config(self) -> Any:
        return config_of(self._model)

    @property
    def type(self) -> str:
        """The name of its architecture in transformers, such as "qwen3"."""
        return self._config.model_type

    @property
    def _text(self) -> Any:
        return self._config.get_text_config(decoder=True)

    @property
    def vocab_size(self) -> int:
        return self._text.vocab_size

    @property
    def is_hybrid(self) -> bool:
        """Whether a layer keeps a state in place of the keys and values of all tokens, such as linear attention."""
        names = getattr(self._text, "layer_types", None) or getattr(self._text, "layers_block_type", None)
        kinds = names or (["mamba"] if "mamba" in self.type else [])
        return any("attention" not in kind or kind == "linear_attention" for kind in kinds)

    @property
    def routes(self) -> tuple[int, int]:
        """The number of layers, and of experts of a token. Raises ConfigError for a model without experts."""
        k = getattr(self._text, "num_experts_per_tok", None)
        if not k:
            got = f"{self._model.path!r}, of the architecture {self.type}"
            raise ConfigError("generator.return_routes", got=got, need="a mixture of experts", do="leave it out")
        return self._text.num_hidden_layers, k

    def max_sequence_length(self, limit: int | None) -> int | None:
        """The positions of the model, or the smaller `limit`. Raises ConfigError if `limit` is larger."""
        positions = getattr(self._text, "max_position_embeddings", None)
        if limit is not None and positions is not None and limit > positions:
            need = f"at most {positions:,}, the positions of the model"
            raise ConfigError("max_sequence_length", got=f"{limit:,}", need=need)
        return limit or positions

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights, by their names in the files of the model."""
        from purerl.backends.hf.decoder.preview import without_weights
        from purerl.backends.hf.weights.model_weights import as_in_files

        model = without_weights(self._model, device="cpu")
        return {name: tuple(value.shape) for name, value in as_in_files(model, dict(model.state_dict())).items()}

    def weights(self) -> FileWeights | None:
        """The weights in the model's files; None if these are not safetensors files."""
        from transformers.utils.hub import cached_files

        kwargs: dict[str, Any] = {"revision": self._model.revision, "_raise_exceptions_for_missing_entries": False}
        names = ["model.safetensors"]
        with loading("model", self._model):
            index = cached_files(self._model.path, ["model.safetensors.index.json"], **kwargs)
            if index:
                names = sorted(set(read_json(Path(index[0]).read_text())["weight_map"].values()))
            files = cached_files(self._model.path, names, **kwargs) or []
        return FileWeights(tuple(map(Path, files)), frozenset(self.shapes)) if len(files) == len(names) else None


@frozen
class FileWeights:
    """The weights in safetensors `files` whose names are in `names`; each is read when it is iterated."""

    files: tuple[Path, ...]
    names: frozenset[str]

    adapter = None

    @property
    def metadata(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        from safetensors import safe_open

        found = {}
        for path in self.files:
            with safe_open(path, framework="pt") as file:
                parts = {name: file.get_slice(name) for name in file.keys() if name in self.names}
                dtypes = {name: getattr(torch, _DTYPES[part.get_dtype()]) for name, part in parts.items()}
                found |= {name: (tuple(part.get_shape()), dtypes[name]) for name, part in parts.items()}
        return found

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        from safetensors import safe_open

        for path in self.files:
            with safe_open(path, framework="pt") as file:
                yield from ((name, file.get_tensor(name)) for name in file.keys() if name in self.names)
