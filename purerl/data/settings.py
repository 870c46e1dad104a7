"""Settings of the section `data`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import frozen

from purerl.data.curriculum_settings import Curriculum
from purerl.errors import ConfigError
from purerl.settings import at_least, no_effect, one_of, setting

__all__ = [
    "TRUNCATED_SIDES",
    "Data",
    "Order",
    "SpecialTokens",
    "Truncation",
    "UnusedColumns",
    "check_truncation",
    "to_data",
]

SpecialTokens = Literal["keep", "escape"]
Order = Literal["shuffled", "sequential"]
Truncation = Literal["drop", "error", "left", "right", "middle"]
UnusedColumns = Literal["note", "error"]
TRUNCATED_SIDES = ("left", "right", "middle")
"""The values of `truncation` with which prompts lose tokens."""


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
    columns: Mapping[str, str] = setting(
        "names of columns: the name that purerl and the reward functions read = the name in the files, such as "
        "{prompt = 'instruction'}; also in the files of evaluate and validation",
        factory=dict,
    )
    order: Order = setting(
        "shuffled: every epoch is another permutation of the rows; sequential: the order of the files",
        default="shuffled",
        **one_of(*get_args(Order)),
    )
    seed: int | None = setting(
        "seed of the order; if not given, that of the run", default=None, **at_least(0, 2**63 - 1)
    )
    curriculum: Curriculum | None = setting(
        "draw prompts by how often they have been solved; if not given, every prompt is drawn once in each epoch",
        default=None,
    )
    system_prompt: str | None = setting("added to conversations that have no system prompt", default=None)
    chat_template_kwargs: Mapping[str, Any] = setting(
        "arguments of the chat template, such as enable_thinking", factory=dict
    )
    max_prompt_tokens: int | None = setting(
        "maximum length of the prompts for training, and of the texts of a column text, see truncation",
        unit="tokens",
        default=None,
        **at_least(1),
    )
    truncation: Truncation = setting(
        "what happens to a longer prompt; drop: its row is left out; error: the run is refused; left, right, middle: "
        "its first, last or middle tokens are left out",
        default="drop",
        **one_of(*get_args(Truncation)),
    )
    special_tokens: SpecialTokens = setting(
        "text in a prompt that spells a special token, such as <|im_end|>; keep: it becomes the token; "
        "escape: it is tokenized as text",
        default="keep",
        **one_of(*get_args(SpecialTokens)),
    )
    unused_columns: UnusedColumns = setting(
        "columns and keys of messages that nothing reads; note: they are listed before the first step; error: the run "
        "is refused",
        default="note",
        **one_of(*get_args(UnusedColumns)),
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
        if self.truncation != "drop" and self.max_prompt_tokens is None:
            raise no_effect("truncation", self.truncation, "a limit", "set max_prompt_tokens, or leave truncation out")
        if self.seed is not None and self.order == "sequential":
            raise no_effect("seed", self.seed, "order shuffled: the order of the files needs no random numbers")
        if self.curriculum is not None and self.order == "sequential":
            raise no_effect("order", self.order, "order shuffled: a curriculum draws at random")
        if self.curriculum is not None and self.weights:
            need = "no weights with data.curriculum, which draws from all files"
            raise ConfigError("weights", got=repr(self.weights), need=need, do="leave weights out")
        self._check_columns()
        if None in self.chat_template_kwargs.values():
            got, need = repr(self.chat_template_kwargs), "values other than None: TOML cannot express it"
            raise ConfigError("chat_template_kwargs", got=got, need=need)

    def _check_columns(self) -> None:
        for name, column in self.columns.items():
            if not (name and isinstance(column, str) and column):
                raise ConfigError(f"columns.{name}", got=repr(column), need="names of columns, not empty")
            if name == column:
                raise no_effect(f"columns.{name}", column, "another name in the files")
        if len({*self.columns.values()}) < len(self.columns):
            need = "another column for each name: a column has one name"
            raise ConfigError("columns", got=repr(dict(self.columns)), need=need)


def to_data(value: str | Data) -> Data:
    """A file name as the section that it stands for."""
    return Data(files=(value,)) if isinstance(value, str) else value


def check_truncation(settings: Data, *, renders_messages: bool) -> None:
    """Refuse truncated prompts where a conversation is rendered again: its tokens would not be the truncated ones.

    `renders_messages` says whether there is an environment or a workflow. Raises: ConfigError.
    """
    if renders_messages and settings.truncation in TRUNCATED_SIDES:
        need, do = "drop or error with an environment or a workflow, which render messages themselves", "leave it out"
        raise ConfigError("data.truncation", got=settings.truncation, need=need, do=do)
