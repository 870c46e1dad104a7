"""Arguments of chat templates: which ones a template reads, and which values of them have an effect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from purerl.errors import ConfigError

__all__ = [
    "RESERVED_KWARGS",
    "SWITCHES",
    "check_template_kwargs",
    "find_invalid_switch",
    "template_variables",
    "template_words",
]

RESERVED_KWARGS = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "max_length", "messages",
    "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs",
    "truncation",
)  # fmt: skip
"""Arguments of `apply_chat_template` of transformers that purerl sets, or that change what it returns."""

SWITCHES = ("enable_thinking", "thinking")
"""Arguments that turn thoughts on or off."""


def find_invalid_switch(kwargs: Mapping[str, Any]) -> str | None:
    """The first of `kwargs` that must be true or false, and is something else; None if there is none.

    Templates test such values in several ways: the text "false" and the number 0 do not turn thinking off in all.

    >>> find_invalid_switch({"enable_thinking": "false"}), find_invalid_switch({"thinking": False, "effort": "low"})
    ('enable_thinking', None)
    """
    return next((name for name in SWITCHES if name in kwargs and not isinstance(kwargs[name], bool)), None)


def check_template_kwargs(tokenizer: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError for `kwargs` of a run that the chat template does not read, or that have no effect."""
    read = template_variables(tokenizer)
    for name in kwargs:
        if name in RESERVED_KWARGS:
            got = "an argument that purerl sets for every prompt"
            raise ConfigError(f"chat_template_kwargs.{name}", got=got, do="remove it")
        if name not in read:
            matches = get_close_matches(name, read, n=1)
            do = f"did you mean {matches[0]!r}?" if matches else "remove it"
            need = "an argument that the chat template reads"
            raise ConfigError(f"chat_template_kwargs.{name} has no effect", need=need, do=do)
    if name := find_invalid_switch(kwargs):
        raise ConfigError(f"chat_template_kwargs.{name}", got=repr(kwargs[name]), need="true or false")


def template_variables(tokenizer: Any, tools: Sequence[Any] | None = None) -> frozenset[str]:
    """The variables that the chat template for these `tools` reads and does not set: its arguments, `tools` among them.

    Of a template that Jinja cannot parse, all words.
    """
    return _variables(str(tokenizer.get_chat_template(tools=tools)))


@lru_cache(maxsize=16)
def _variables(template: str) -> frozenset[str]:
    from jinja2 import Environment, TemplateSyntaxError, meta

    plain = re.sub(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}", "", template)  # markers of transformers
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701 -- nothing is rendered
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(plain)))
    except TemplateSyntaxError:
        return _words(template)


def template_words(tokenizer: Any, tools: Sequence[Any] | None = None) -> frozenset[str]:
    """All words in the chat template for these `tools`, such as names of variables and of keys that it reads."""
    return _words(str(tokenizer.get_chat_template(tools=tools)))


@lru_cache(maxsize=16)
def _words(template: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", template))
