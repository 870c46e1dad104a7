"""Loading a causal language model, from a directory or from the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from purerl.backends.tokenizer import cannot_load
from purerl.errors import ConfigError
from purerl.protocols import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["load_model", "no_progress_bars"]

_SHOWN = 3
# What transformers says where it refuses an attention implementation.
_OF_ATTENTION = "attn_implementation|attention implementation|FlashAttention|flash_attn|`kernels`"


def load_model(model: Model, *, headless: bool = False) -> PreTrainedModel:
    """The causal language model that `model` names, with every weight from its files.

    With `headless`, the output head may be missing there, as in what a critic writes; it is drawn at random then.

    Raises: ConfigError where it cannot be loaded, and where the files lack weights or hold others of that name.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    kwargs = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    # Weights of another shape are counted as missing ones are, instead of transformers' error that names none.
    kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        with no_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                model.path, dtype=model.dtype, attn_implementation=model.attention, **kwargs
            )
    except (OSError, ValueError, ImportError, SafetensorError, EOFError, UnpicklingError) as error:
        if re.search(_OF_ATTENTION, str(error)) and not isinstance(error, OSError):
            raise _no_attention(model, error) from error
        raise cannot_load("model", model, error) from error
    causal, found = loaded
    _check_complete(model, causal, found, headless=headless)
    return causal


def _no_attention(model: Model, error: Exception) -> ConfigError:
    got = f"{model.attention!r}: {str(error).strip().splitlines()[0]}"
    need = "an attention implementation that is installed, and that the model knows"
    return ConfigError("model.attention", got=got, need=need, do="leave it out for sdpa, or set it to eager")


def _check_complete(model: Model, causal: PreTrainedModel, found: Mapping[str, Any], *, headless: bool) -> None:
    """Refuse a model of which transformers drew weights itself: in every role, and every time, it would draw others."""
    shapes = {name: f"{list(there)} there, {list(here)} here" for name, there, here in found["mismatched_keys"]}
    head = {id(weight) for weight in causal.get_output_embeddings().parameters()} if headless else set()
    may_lack = {name for name, weight in causal.named_parameters(remove_duplicate=False) if id(weight) in head}
    lacks = [f"no {name}" for name in sorted(found["missing_keys"] - shapes.keys() - may_lack)]
    lacks += [f"{name} {shape}" for name, shape in sorted(shapes.items())]
    if lacks:
        more = f"; and {len(lacks) - _SHOWN} more" if len(lacks) > _SHOWN else ""
        raise ConfigError(
            f"the files of {model.path!r} do not hold the whole model",
            got="; ".join(lacks[:_SHOWN]) + more,
            need=f"every weight of {type(causal).__name__}, in its shape: others would be drawn at random",
            do="get the files again, or mend config.json where it describes another model",
        )


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing its own progress bars across ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
