"""What purerl has to know about the model of a server: its limits, and the names and shapes of its weights."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from purerl.backends.tokenizer import cannot_load
from purerl.errors import ConfigError
from purerl.settings import Model

__all__ = ["ServedModel"]


class ServedModel:
    """The configuration of `model`, which is not loaded here."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def _config(self) -> Any:
        from transformers import AutoConfig

        kwargs = {"revision": self._model.revision, "trust_remote_code": self._model.trust_remote_code}
        try:
            return AutoConfig.from_pretrained(self._model.path, **kwargs).get_text_config(decoder=True)
        except (OSError, ValueError, ImportError) as error:
            raise cannot_load("model", self._model, error) from error

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    def max_sequence_length(self, limit: int | None) -> int | None:
        """The positions of the model, or the smaller `limit`. Raises ConfigError if `limit` is larger."""
        positions = getattr(self._config, "max_position_embeddings", None)
        if limit is not None and positions is not None and limit > positions:
            need = f"at most {positions:,}, the positions of the model"
            raise ConfigError("max_sequence_length", got=f"{limit:,}", need=need)
        return limit or positions

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights, by their names in the files of the model."""
        from purerl.backends.hf.preview import without_weights
        from purerl.backends.hf.weights import as_in_files

        model = without_weights(self._model, device="cpu")
        return {name: tuple(value.shape) for name, value in as_in_files(model, dict(model.state_dict())).items()}
