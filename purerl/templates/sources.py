"""Chat templates in files: a Jinja file, a directory of them, or the directory of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from purerl.errors import ConfigError
from purerl.models.tokenizer import end_tokens, load_tokenizer
from purerl.settings import Model
from purerl.templates.tokenizers import stop_tokens_of, tokenizer_of_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["NamedTemplate", "read_templates"]


class NamedTemplate(NamedTuple):
    """A tokenizer with a chat template, its name, and more tokens that end a turn."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    stop_tokens: tuple[int, ...] = ()


def read_templates(path: str, model: str | None = None) -> list[NamedTemplate]:
    """The chat templates at `path`, sorted by name, each with a tokenizer and stop tokens.

    path   a file, a directory with ``.jinja`` files, or the directory of a model with a template
    model  the model whose tokenizer and stop tokens they get. Without it, the template in the directory of a model has
           those of the model, and any other template a tokenizer of bytes and of its own tags

    Raises: ConfigError if there is no template.
    """
    given, own = Path(path), Path(path) / "tokenizer_config.json"
    if own.exists() and model is None:
        tokenizer = load_tokenizer(Model(path))
        found = [NamedTemplate(given.resolve().name, tokenizer, tuple(end_tokens(Model(path))))]
        found = [each for each in found if each.tokenizer.chat_template]
    else:
        files = [given] if given.is_file() else sorted(given.glob("*.jinja"))
        found = [_with_tokenizer(file, model) for file in files]
    if not found:
        need = "a file with a template, a directory of .jinja files, or the directory of a model with a template"
        raise ConfigError(f"chat templates at {path!r}", got="none", need=need)
    return found


def _with_tokenizer(file: Path, model: str | None) -> NamedTemplate:
    template = file.read_text(encoding="utf-8")
    if model is None:
        tokenizer = tokenizer_of_template(template)
        return NamedTemplate(file.stem, tokenizer, stop_tokens_of(tokenizer))
    tokenizer = load_tokenizer(Model(model))
    tokenizer.chat_template = template
    return NamedTemplate(file.stem, tokenizer, tuple(end_tokens(Model(model))))
