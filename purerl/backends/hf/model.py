"""Loading a causal language model and its tokenizer, from a directory or from the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from purerl.errors import ConfigError
from purerl.protocols import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["load_model", "load_tokenizer", "no_progress_bars"]


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
        raise _cannot_load("model", model, error) from error


def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside it. Raises ConfigError where there is none."""
    from transformers import AutoTokenizer

    kwargs = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, **kwargs)
    except (OSError, ValueError, ImportError) as error:
        raise _cannot_load("tokenizer", model, error) from error
    if tokenizer.get_vocab().keys() <= tokenizer.get_added_vocab().keys():
        # From a configuration without a tokenizer's files transformers makes one that knows no words.
        raise _cannot_load("tokenizer", model, ValueError("no vocabulary: tokenizer.json is missing"))
    return tokenizer


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


def _cannot_load(what: str, model: Model, error: Exception) -> ConfigError:
    where = "the directory" if Path(model.path).is_dir() else "the hub's repository"
    return ConfigError(
        f"no {what} can be loaded from {where} {model.path!r}",
        got=str(error).strip().splitlines()[0],
        need="files as transformers' save_pretrained writes them",
        do="check model.path; without a network, name a local directory",
    )
