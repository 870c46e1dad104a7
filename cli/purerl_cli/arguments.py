"""Values of options: arguments of chat templates, prompts, and reward functions with weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from purerl.errors import ConfigError

__all__ = ["parse_arguments", "parse_rewards", "read_prompts"]


def parse_arguments(options: Iterable[str]) -> Mapping[str, Any]:
    """Arguments of a chat template, each ``KEY=VALUE``. A value is TOML, or otherwise a string."""
    from purerl.config.overrides import apply
    from purerl.data.settings import Data

    settings = [f"chat_template_kwargs.{option}" for option in options]
    return apply(Data(files=("file",)), settings).chat_template_kwargs


def read_prompts(options: Sequence[str] | None) -> list[str]:
    """The prompts that ``--prompt`` gives. ``-`` stands for all of standard input, without its last line break."""
    prompts = list(options or ())
    if prompts.count("-") > 1:
        raise ConfigError("--prompt -", got=f"{prompts.count('-')} times", need="once: it reads all of standard input")
    if "-" in prompts:
        text = sys.stdin.read().removesuffix("\n")
        if not text:
            raise ConfigError("--prompt -", got="nothing on standard input", need="the text of a prompt")
        prompts[prompts.index("-")] = text
    return prompts


def parse_rewards(options: Sequence[str], settings: Sequence[str]) -> list[str]:
    """``--reward`` as a setting, if it is given: each of `options` is NAME or NAME=WEIGHT.

    `settings` are those of ``--set``, which must not set the rewards too.

    >>> parse_rewards(["module:correct", "file.py:short=0.5"], [])
    ['rewards=[{function="module:correct", weight=1.0}, {function="file.py:short", weight=0.5}]']
    """
    if options and any(setting.partition("=")[0].strip() == "rewards" for setting in settings):
        raise ConfigError("--reward and --set rewards", got="both", need="one of the two", do="leave out --set rewards")
    rewards = [_parse_reward(option) for option in options]
    tables = ", ".join(f"{{function={json.dumps(name)}, weight={weight}}}" for name, weight in rewards)
    return [f"rewards=[{tables}]"] if rewards else []


def _parse_reward(option: str) -> tuple[str, float]:
    name, equals, weight = option.rpartition("=")
    if not equals:
        return option, 1.0
    try:
        return name, float(weight)
    except ValueError as error:
        need, do = "NAME, or NAME=WEIGHT with a number", "write it as module:function=0.5"
        raise ConfigError(f"--reward {option!r}", got=f"the weight {weight!r}", need=need, do=do) from error
