"""The weights of a model under the names and in the layout of its files, which may differ from the model's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from purerl.backends.hf.decoder.loading import no_progress_bars
from purerl.backends.hf.weights.gather import full_tensors
from purerl.backends.weights import TensorWeights, copy_weights
from purerl.protocols import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ModelWeights", "as_in_files", "copy_into", "trained_in"]


class ModelWeights:
    """The `Weights` of `model` that require a gradient; a tied weight has one name."""

    adapter: Mapping[str, Any] | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._trained = {name: p.detach() for name, p in trained_in(model).items()}

    @property
    def metadata(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        shapes = {name: torch.empty(p.shape, dtype=p.dtype, device="meta") for name, p in self._trained.items()}
        return {name: (tuple(p.shape), p.dtype) for name, p in as_in_files(self._model, shapes).items()}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        tensors = full_tensors(self._trained)
        if _same_layout(self._model):
            yield from tensors
            return
        for _, layer in groupby(tensors, key=lambda item: _layer_of(item[0])):
            yield from as_in_files(self._model, dict(layer)).items()


def trained_in(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """The parameters of `model` that require a gradient; a tied weight has one name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _layer_of(name: str) -> str:
    """The part of a weight's name up to the number of its layer: conversions do not cross layers."""
    number = re.search(r"\.\d+\.", name)
    return name[: number.end()] if number else ""


def _same_layout(model: PreTrainedModel) -> bool:
    """Whether loading the model converted nothing, so that its weights are those of its files."""
    return getattr(model, "_weight_conversions", None) == []


def as_in_files(model: PreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """`weights` of `model` with the names and the layout of its files: some models hold all experts in one tensor."""
    from transformers.core_model_loading import revert_weight_conversion

    # If nothing was converted, transformers would still compare all names.
    return weights if _same_layout(model) else revert_weight_conversion(model, weights)


def copy_into(model: PreTrainedModel, weights: Weights, *, mix: float = 1.0) -> None:
    """Copy: own = (1 - mix) * own + mix * weights, in place. Weights that are not in `weights` keep their values.

    Most models hold each weight as it is in their files, so it is copied directly. For models that hold some weights
    differently, a second model is built temporarily, a whole one on every rank.

    Raises: EngineError for a name or a shape that is not in the model's files; nothing has been copied then.
    """
    state = dict(model.state_dict(keep_vars=True))
    files = as_in_files(model, state)
    if {id(weight) for weight in files.values()} <= {id(weight) for weight in state.values()}:
        copy_weights(weights, files, mix=mix)
        return
    files = as_in_files(model, dict(full_tensors(state)))
    copies = {id(weight): weight.detach().clone() for weight in files.values()}
    files = {name: copies[id(weight)] for name, weight in files.items()}  # tied weights stay tied
    copy_weights(weights, files, mix=mix)
    with no_progress_bars():
        loaded = type(model).from_pretrained(None, config=model.config, state_dict=files, dtype=model.dtype)
    copy_weights(TensorWeights(loaded.state_dict()), state)
