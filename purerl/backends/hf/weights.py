"""Taking over weights that are named as in a model's files, which is not always how the model holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from purerl.backends.weights import copy_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["as_in_files", "copy_into"]


def as_in_files(model: PreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """`weights` of `model`, named and laid out as in its files: some models hold all experts as one tensor, say."""
    from transformers.core_model_loading import revert_weight_conversion

    # Where nothing was converted when the model was loaded, nothing is now; transformers would go through all names.
    return weights if getattr(model, "_weight_conversions", None) == [] else revert_weight_conversion(model, weights)


def copy_into(model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy `weights`, named as in files, into those of `model`, in place. What does not come stays as it is.

    Most models hold each weight as it is in files, and it is copied straight into its place. Some hold weights
    otherwise, all experts of a layer as one tensor, say: for those a second model is made for a moment.

    Raises: EngineError for a name or a shape that is not in the model's files; the weights before it are copied then.
    """
    own = dict(model.state_dict(keep_vars=True))
    filed = as_in_files(model, own)
    copy_weights(weights, filed)
    held = {id(weight) for weight in own.values()}
    if any(id(weight) not in held for weight in filed.values()):
        filed = {name: weight.detach() for name, weight in filed.items()}
        copy_weights(_converted(model, filed).items(), own)


def _converted(model: PreTrainedModel, filed: dict[str, Tensor]) -> dict[str, Tensor]:
    """`filed` as `model` holds them: what transformers makes of them when it loads."""
    with _quiet():
        loaded = type(model).from_pretrained(None, config=model.config, state_dict=filed, dtype=model.dtype)
    return loaded.state_dict()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar and notes, which are meant for a model that is loaded once."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
