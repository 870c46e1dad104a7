"""Settings of the section `data`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import frozen

from purerl.errors import ConfigError
from purerl.settings import at_least, one_of, setting

__all__ = ["Data", "SpecialTokens", "to_data"]

SpecialTokens = Literal["keep", "escape"]


@frozen(kw_only=True)
class Data:
    """The training data. In settings a string stands for the file with that name.

    All files have the same columns in the same format.
    """

    files: tuple[str, ...] = setting(
        "Parquet or JSON Lines files, glob patterns, or directories of data sets", short=list
    )
    weights: tuple[float, ...] = setting(
        "relative number of draws from each file; if not given, every row is drawn equally often", default=()
    )
    system_prompt: str | None = setting("added to conversations that have no system prompt", default=None)
    chat_template_kwargs: Mapping[str, Any] = setting(
        "arguments of the chat template, such as enable_thinking", factory=dict
    )
    max_prompt_tokens: int | None = setting(
        "rows with a longer prompt are left out", unit="tokens", default=None, **at_least(1)
    )
    special_tokens: SpecialTokens = setting(
        "text in a prompt that spells a special token, such as <|im_end|>; keep: it becomes the token; "
        "escape: it is tokenized as text",
        default="keep",
        **one_of(*get_args(SpecialTokens)),
    )
    validation_fraction: float | None = setting(
        "fraction of the prompts, chosen by their hash, that is used for evaluation only; 0: none, also if a recipe "
        "holds some out",
        default=None,
        need="from 0 to below 1",
        valid=lambda value: 0 <= value < 1,
    )

    def __attrs_post_init__(self) -> None:
        if not self.files:
            raise ConfigError("files", got="none", need="at least one file")
        if self.weights and len(self.files) == 1:
            do = "leave weights out, or give several files"
            raise ConfigError("weights has no effect", got=repr(self.weights), need="several files", do=do)
        if self.weights and len(self.weights) != len(self.files):
            need = f"one for each of the {len(self.files)} files"
            raise ConfigError("weights", got=f"{len(self.weights)} weights", need=need)
        if not all(0 < weight < math.inf for weight in self.weights):
            need, do = "finite numbers above 0", "leave the file out instead of a weight of 0"
            raise ConfigError("weights", got=repr(self.weights), need=need, do=do)
        if None in self.chat_template_kwargs.values():
            got, need = repr(self.chat_template_kwargs), "values other than None: TOML cannot express it"
            raise ConfigError("chat_template_kwargs", got=got, need=need)


def to_data(value: str | Data) -> Data:
    """A file name as the section that it stands for."""
    return Data(files=(value,)) if isinstance(value, str) else value
