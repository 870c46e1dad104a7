"""Loading a causal language model or a classifier, from a directory or from the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from purerl.backends.hf.decoder.architecture import CAUSAL, Architecture
from purerl.errors import ConfigError
from purerl.models.pretrained import config_of, loading
from purerl.settings import Model

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

__all__ = ["attention_errors", "load_model", "no_progress_bars"]

_MAX_LISTED = 3
_MAX_GROUPED = 4
"""Bytes of the widest numbers of which torch multiplies the matrices of several experts in one call."""

# Matches the errors that transformers raises for an attention implementation.
_ATTENTION_ERROR = "attn_implementation|attention implementation|FlashAttention|flash_attn|`kernels`"


def load_model(
    model: Model, architecture: Architecture = CAUSAL, *, cls: Any = None, **options: Any
) -> PreTrainedModel:
    """Load `model`, with all weights from its files, except for a head that `architecture` allows to be missing.

    cls       the class of the model; if not given, transformers' class for it
    options   further arguments of transformers' from_pretrained

    Raises: ConfigError if the model cannot be loaded, and if weights are missing or have another shape in the files.
    """
    source = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    # Weights of another shape are reported like missing ones. Otherwise transformers' error would not name them.
    kwargs = {**source, **architecture.options, **options, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with loading("model", model), attention_errors(model):
        cls = cls or architecture.auto(config_of(model))
        with no_progress_bars(), _no_report_of_new_heads(architecture):
            loaded: Any = cls.from_pretrained(
                model.path, dtype=model.dtype, attn_implementation=model.attention, **kwargs
            )
    causal, info = loaded
    head = architecture.head_of(causal) if architecture.may_miss_head else None
    _check_complete(model, causal, info, optional=[] if head is None else [*head.parameters()])
    if causal.dtype.itemsize > _MAX_GROUPED:
        causal.set_experts_implementation("eager")
    return causal


@contextmanager
def attention_errors(model: Model) -> Iterator[None]:
    """Raise ConfigError for an attention implementation that is not installed, or that `model` does not support."""
    try:
        yield
    except (ValueError, ImportError) as error:
        if not re.search(_ATTENTION_ERROR, str(error)):
            raise
        got = f"{model.attention!r}: {str(error).strip().splitlines()[0]}"
        need = "an attention implementation that is installed, and that the model supports"
        do = "leave it out, and transformers chooses one that the model supports" if model.attention else None
        raise ConfigError("model.attention", got=got, need=need, do=do) from error


def _check_complete(
    model: Model, causal: PreTrainedModel, info: Mapping[str, Any], *, optional: Sequence[Tensor]
) -> None:
    """Refuse a model if transformers initialized some of its weights: they would differ between roles and runs."""
    shapes = {
        name: f"is {list(saved)} in the files and {list(needed)} in the model"
        for name, saved, needed in info["mismatched_keys"]
    }
    ids = {id(weight) for weight in optional}
    names = {name for name, weight in causal.named_parameters(remove_duplicate=False) if id(weight) in ids}
    problems = [f"no {name}" for name in sorted(info["missing_keys"] - shapes.keys() - names)]
    problems += [f"{name} {shape}" for name, shape in sorted(shapes.items())]
    if problems:
        more = f"; and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
        raise ConfigError(
            f"the files of {model.path!r} do not contain the whole model",
            got="; ".join(problems[:_MAX_LISTED]) + more,
            need=f"all weights of {type(causal).__name__}, in its shapes; others would be initialized at random",
            do="download the files again, or fix config.json if it describes another model",
        )


@contextmanager
def _no_report_of_new_heads(architecture: Architecture) -> Iterator[None]:
    """Hide transformers' report of weights that are missing, if those of a head may be; all others are refused."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    if architecture.may_miss_head:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers, which would mix with those of purerl."""
    from transformers.utils import logging

    is_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_enabled:
            logging.enable_progress_bar()
