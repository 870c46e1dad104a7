"""Freezing: the parameters of a model that are not trained."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from purerl.errors import ConfigError, nearest

if TYPE_CHECKING:
    from purerl.backends.hf.model.token_model import TokenModel

__all__ = ["VISION", "freeze", "frozen_names"]

VISION = "vision"
"""Stands for everything that is neither in the decoder nor in the output head."""


def frozen_names(module: TokenModel, patterns: Sequence[str]) -> set[str]:
    """The names of the parameters of the model in `module` that `patterns` freeze.

    A pattern is compared with the whole name, or with what follows any dot in it.

    Raises: ConfigError for a pattern that matches no name.
    """
    names = [name for name, _ in module.model.named_parameters()]
    language = _language_names(module)
    frozen = set[str]()
    for pattern in patterns:
        is_vision = pattern == VISION
        matches = {*names} - language if is_vision else {n for n in names if fnmatchcase(f".{n}", f"*.{pattern}")}
        if not matches:
            need = "a vision-language model" if is_vision else "a pattern of names of parameters"
            do = "leave it out" if is_vision else nearest(pattern, [VISION, *names[:3], *names[-3:]])
            raise ConfigError("freeze", got=f"{pattern!r}, which no parameter matches", need=need, do=do)
        frozen |= matches
    return frozen


def _language_names(module: TokenModel) -> set[str]:
    """The names of the parameters of the decoder and of the output head."""
    head = module.model.get_output_embeddings() if module.has_vocabulary else None
    parts = [module.decoder, *([head] if head is not None else [])]
    language = {id(parameter) for part in parts for parameter in part.parameters()}
    return {name for name, parameter in module.model.named_parameters() if id(parameter) in language}


def freeze(module: TokenModel, names: Collection[str]) -> None:
    """Do not train the parameters of the model in `module` that have these `names`.

    Raises: ConfigError if nothing remains to train.
    """
    for name, parameter in module.model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in names)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        need = "at least one parameter that is trained"
        raise ConfigError("freeze", got="all parameters of the model", need=need, do="remove some of its patterns")
