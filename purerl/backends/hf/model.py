"""Loading a causal language model, from a directory or from the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from purerl.backends.tokenizer import cannot_load
from purerl.protocols import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["load_model", "no_progress_bars"]


def load_model(model: Model) -> PreTrainedModel:
    """The causal language model that `model` names. Raises ConfigError where it cannot be loaded."""
    from transformers import AutoModelForCausalLM

    kwargs = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        with no_progress_bars():
            return AutoModelForCausalLM.from_pretrained(
                model.path, dtype=model.dtype, attn_implementation=model.attention, **kwargs
            )
    except (OSError, ValueError, ImportError) as error:
        raise cannot_load("model", model, error) from error


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
