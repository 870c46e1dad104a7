"""The weights of a generator that samples with those of a trainer."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from purerl.errors import EngineError
from purerl.protocols import Weights

__all__ = ["SharedWeights"]


class SharedWeights:
    """Accepts only `parameters`, those of the trainer. Nothing is copied: the generator has them already."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def load(self, weights: Weights) -> None:
        """Raise EngineError for weights that are not in the memory of those of the trainer."""
        own = {parameter.data_ptr() for parameter in self._parameters.values()}
        name, value = next(iter(weights), (None, None))
        if value is None or value.data_ptr() not in own:
            got = "no weights" if value is None else f"{name!r} in other memory than that of the trainer"
            need = "the weights of the trainer, with which this generator samples"
            do = "set generator.copy_weights, and it gets a copy that other weights can be copied into"
            raise EngineError("weights of another model", got=got, need=need, do=do)
