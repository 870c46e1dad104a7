"""A model's tokenizer: what the loop and every engine load alike, from a directory or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purerl.errors import ConfigError
from purerl.protocols import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["cannot_load", "load_tokenizer"]


def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside `model`. Raises ConfigError where there is none."""
    from transformers import AutoTokenizer

    kwargs = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, **kwargs)
    except (OSError, ValueError, ImportError) as error:
        raise cannot_load("tokenizer", model, error) from error
    if tokenizer.get_vocab().keys() <= tokenizer.get_added_vocab().keys():
        # From a configuration without a tokenizer's files transformers makes one that knows no words.
        raise cannot_load("tokenizer", model, ValueError("no vocabulary: tokenizer.json is missing"))
    return tokenizer


def cannot_load(what: str, model: Model, error: Exception) -> ConfigError:
    """What to raise where `what` of `model` could not be loaded."""
    where = "the directory" if Path(model.path).is_dir() else "the hub's repository"
    return ConfigError(
        f"no {what} can be loaded from {where} {model.path!r}",
        got=str(error).strip().splitlines()[0],
        need="files as transformers' save_pretrained writes them",
        do="check model.path; without a network, name a local directory",
    )
