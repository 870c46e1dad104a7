"""A model's tokenizer and end tokens: what the loop and every engine load alike, from a directory or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purerl.errors import ConfigError
from purerl.protocols import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["cannot_load", "end_tokens", "load_tokenizer"]


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


def end_tokens(model: Model) -> tuple[int, ...]:
    """Ids that `model` itself says end a completion, as transformers reads them; none where it says nothing.

    They are in generation_config.json, or else in config.json, and need not be the tokenizer's.
    """
    for file in ("generation_config.json", "config.json"):
        found = _end_tokens_in(file, model)
        if found is not None:
            return (found,) if isinstance(found, int) else tuple(found)
    return ()


def _end_tokens_in(file: str, model: Model) -> int | list[int] | None:
    from transformers import GenerationConfig

    whole = {"_from_model_config": True} if file == "config.json" else {}
    try:
        read = GenerationConfig.from_pretrained(model.path, config_file_name=file, revision=model.revision, **whole)
    except (OSError, ValueError, TypeError):  # without a config.json it is a TypeError; who loads the model says so
        return None
    return read.eos_token_id


def cannot_load(what: str, model: Model, error: Exception) -> ConfigError:
    """What to raise where `what` of `model` could not be loaded."""
    where = "the directory" if Path(model.path).is_dir() else "the hub's repository"
    return ConfigError(
        f"no {what} can be loaded from {where} {model.path!r}",
        got=str(error).strip().splitlines()[0],
        need="files as transformers' save_pretrained writes them",
        do="check model.path; without a network, name a local directory",
    )
