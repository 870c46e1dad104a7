"""The model of a server, for a run that has to know whether it is its own: GET /purerl/model.

    {"config": the content of config.json, "vocabulary": {"size", "digest"}}

A part that cannot be read is left out. It imports nothing but the standard library and what every engine has.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

__all__ = ["PATH", "describe_model", "describe_vocabulary"]

PATH = "/purerl/model"

_MODEL, _TOKENIZER = ("--model-path", "--model"), ("--tokenizer-path", "--tokenizer")


@cache
def describe_model() -> dict[str, Any]:
    """The content of the files of the model on the command line of this process, read at the first call."""
    model, tokenizer = _model(sys.argv), _option(sys.argv, *_TOKENIZER)
    options: dict[str, Any] = {"trust_remote_code": True} if "--trust-remote-code" in sys.argv else {}
    options |= {} if (revision := _option(sys.argv, "--revision")) is None else {"revision": revision}
    described: dict[str, Any] = {}
    if model is None:
        return described
    with suppress(Exception):  # whatever a library raises about the files: there is nothing to say about them then
        from transformers import PretrainedConfig

        described["config"] = PretrainedConfig.get_config_dict(model, **options)[0]
    with suppress(Exception):
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(tokenizer or model, **options)
        described["vocabulary"] = describe_vocabulary(loaded.get_vocab())
    return described


def describe_vocabulary(vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """The number of tokens, and a digest of them with their numbers."""
    text = json.dumps(sorted(vocabulary.items()))
    return {"size": len(vocabulary), "digest": hashlib.sha256(text.encode()).hexdigest()}


def _model(arguments: Sequence[str]) -> str | None:
    """The model in the `arguments` of an engine: an option, or what follows the command serve."""
    named = _option(arguments, *_MODEL)
    if named is not None or "serve" not in arguments[:-1]:
        return named
    return arguments[arguments.index("serve") + 1]


def _option(arguments: Sequence[str], *names: str) -> str | None:
    for k, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name in names:
            return value if is_joined else (*arguments, None)[k + 1]
    return None
