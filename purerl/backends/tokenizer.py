"""A model's tokenizer and end tokens: what the loop and every engine load alike, from a directory or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purerl.errors import ConfigError
from purerl.protocols import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["cannot_load", "check_same_ids", "end_tokens", "load_tokenizer"]


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


def check_same_ids(tokenizer: PreTrainedTokenizerBase, teacher: Model) -> None:
    """Refuse a `teacher` that reads other texts in `tokenizer`'s tokens, or knows fewer of them. Raises ConfigError."""
    ours, theirs = tokenizer.get_vocab(), load_tokenizer(teacher).get_vocab()
    other = sorted((token, text) for text, token in ours.items() if theirs.get(text, token) != token)
    do = "name a teacher of the same family, whose tokenizer is the policy's"
    if other:
        token, text = other[0]
        got = f"{text!r} is token {token} of the policy and {theirs[text]} of the teacher; {len(other):,} differ"
        need = "tokens that mean the same in both"
        raise ConfigError(f"teacher {teacher.path!r} has another tokenizer", got=got, need=need, do=do)
    size, needed = _vocabulary(teacher) or max(theirs.values()) + 1, max(ours.values()) + 1
    if size < needed:
        need = f"{needed:,}, as many as the policy's tokenizer has"
        raise ConfigError(f"teacher {teacher.path!r}", got=f"{size:,} token ids", need=need, do=do)


def _vocabulary(model: Model) -> int | None:
    """How many ids there are in the logits of `model`, if its configuration is one that transformers knows."""
    from transformers import AutoConfig

    kwargs = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(model.path, **kwargs)
    except (OSError, ValueError, ImportError):
        return None
    return getattr(config.get_text_config(decoder=True), "vocab_size", None)


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
