"""Values of options: arguments of chat templates, prompts, environments, and reward functions with weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from purerl.errors import ConfigError, nearest
from purerl.system.nesting import read_toml

if TYPE_CHECKING:
    from purerl.envs.settings import EnvironmentSettings

__all__ = [
    "all_settings",
    "change_environment",
    "parse_arguments",
    "parse_columns",
    "parse_environment",
    "parse_kinds",
    "parse_rewards",
    "parse_sampling",
    "read_prompts",
]

T = TypeVar("T")


def all_settings(options: Sequence[str] | None, assignments: Sequence[str] | None) -> list[str]:
    """The settings of ``--set``, and those that follow the recipe without it.

    Raises: ConfigError for a key in both, because the order of the two is not known.

    >>> all_settings(["seed=1"], ["max_steps=2"])
    ['seed=1', 'max_steps=2']
    """
    keys = {option.partition("=")[0].strip() for option in options or ()}
    for assignment in assignments or ():
        key = assignment.partition("=")[0].strip()
        if key in keys:
            raise ConfigError(key, got=f"both --set and {assignment!r}", need="one of the two", do="leave one out")
    return [*(options or ()), *(assignments or ())]


def parse_arguments(options: Iterable[str]) -> Mapping[str, Any]:
    """Arguments of a chat template, each ``KEY=VALUE``. A value is TOML, or otherwise a string."""
    from purerl.config.overrides import apply
    from purerl.data.settings import Data

    settings = [f"chat_template_kwargs.{option}" for option in options]
    return apply(Data(files=("file",)), settings).chat_template_kwargs


def parse_columns(options: Iterable[str]) -> Mapping[str, str]:
    """Other names of columns, each ``NAME=COLUMN``. Raises ConfigError as `Data`.

    >>> dict(parse_columns(["prompt=instruction"]))
    {'prompt': 'instruction'}
    """
    from purerl.config.overrides import apply
    from purerl.data.settings import Data

    return apply(Data(files=("file",)), [f"columns.{option}" for option in options]).columns


def parse_sampling(options: Sequence[str]) -> dict[str, Any]:
    """Settings of the section ``evaluate``, each ``KEY=VALUE``, as in --set. Raises ConfigError for any other.

    >>> parse_sampling(["top_k=20", "regex=[a-z]+"])
    {'top_k': 20, 'regex': '[a-z]+'}
    """
    from purerl.config.keys import EVALUATION_PARAMETERS
    from purerl.config.overrides import apply
    from purerl.evaluation.settings import Evaluate

    names = [option.partition("=")[0].strip() for option in options]
    for name in names:
        if name not in EVALUATION_PARAMETERS:
            need = f"KEY=VALUE with one of: {', '.join(EVALUATION_PARAMETERS)}"
            raise ConfigError("--sampling", got=repr(name), need=need, do=nearest(name, EVALUATION_PARAMETERS))
    changed = apply(Evaluate(max_tokens=sys.maxsize, temperature=1.0), options)
    return {name: getattr(changed, name) for name in names}


def parse_environment(
    *,
    environment: str | None = None,
    tool: Sequence[str] = (),
    mcp: Sequence[str] = (),
    max_turns: int | None = None,
    environment_settings: Sequence[str] = (),
) -> EnvironmentSettings | None:
    """Settings of an environment from command-line options; None without any. A URL in `environment` is a remote one.

    Raises: ConfigError for settings that are invalid, or that need an environment.

    >>> parse_environment(tool=["tools.py:add"], environment_settings=["timeout=5"]).timeout
    5.0
    """
    from purerl.config.overrides import build
    from purerl.envs.settings import EnvironmentSettings
    from purerl.settings import in_section

    is_remote = environment is not None and environment.startswith(("http://", "https://"))
    source = {"url" if is_remote else "factory": environment, "tools": [*tool], "mcp": [*mcp]}
    table = {key: value for key, value in source.items() if value}
    settings = _turns(max_turns, environment_settings)
    if not table:
        if settings:
            raise _without_environment(settings[0], "--environment, --tool or --mcp")
        return None
    with in_section("environment", EnvironmentSettings):
        return build(EnvironmentSettings, settings, table)


def change_environment(
    run: Path, *, max_turns: int | None = None, environment_settings: Sequence[str] = ()
) -> EnvironmentSettings | None:
    """The section ``environment`` of a run with other settings; None if none is given.

    Raises: ConfigError for settings that are invalid, or of a run without an environment; RunDirectoryError if there is
    no run.
    """
    settings = _turns(max_turns, environment_settings)
    if not settings:
        return None
    from purerl.config.overrides import apply
    from purerl.config.stored import read_config
    from purerl.envs.settings import EnvironmentSettings
    from purerl.opening.start_checkpoint import parse_start_checkpoint
    from purerl.settings import in_section

    environment = read_config(parse_start_checkpoint(run, "--run").run).environment
    if environment is None:
        raise _without_environment(settings[0], "a run with an environment")
    with in_section("environment", EnvironmentSettings):
        return apply(environment, settings)


def _turns(max_turns: int | None, settings: Sequence[str]) -> list[str]:
    return [*([] if max_turns is None else [f"max_turns={max_turns}"]), *settings]


def _without_environment(setting: str, need: str) -> ConfigError:
    key, _, value = setting.partition("=")
    return ConfigError(f"environment.{key} has no effect", got=value, need=need, do="leave it out")


def read_prompts(options: Sequence[str] | None, images: Sequence[Path] | None = None) -> list[Any]:
    """The prompts that ``--prompt`` gives. ``-`` stands for all of standard input, without its last line break.

    With `images`, each prompt is a message of the user that has them before the text. Raises ImageError for one that
    cannot be decoded.
    """
    prompts = _read_texts(options)
    if not images:
        return prompts
    if not prompts:
        raise ConfigError("--image has no effect", need="--prompt", do="add --prompt TEXT")
    from purerl.images import Image, check_pillow

    check_pillow()
    for path in images:
        Image(path).check()
    parts = [{"type": "image", "image": str(path.absolute())} for path in images]
    return [[{"role": "user", "content": [*parts, {"type": "text", "text": text}]}] for text in prompts]


def _read_texts(options: Sequence[str] | None) -> list[str]:
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
    """``--reward`` as a setting, if it is given: each of `options` is NAME, NAME=WEIGHT, or a table of a kind.

    `settings` are those of ``--set``, which must not set the rewards too.

    >>> parse_rewards(["module:correct", "file.py:short=0.5", '{kind = "format"}'], [])
    ['rewards=[{function="module:correct", weight=1.0}, {function="file.py:short", weight=0.5}, {kind = "format"}]']
    """
    if options and any(setting.partition("=")[0].strip() == "rewards" for setting in settings):
        raise ConfigError("--reward and --set rewards", got="both", need="one of the two", do="leave out --set rewards")
    return [f"rewards=[{', '.join(map(_reward_table, options))}]"] if options else []


def _reward_table(option: str) -> str:
    """The table of a reward that ``--reward`` gives, as TOML."""
    if option.startswith("{"):
        _read_table("--reward", option)
        return option
    name, equals, weight = option.rpartition("=")
    try:
        return f"{{function={json.dumps(name if equals else option)}, weight={float(weight) if equals else 1.0}}}"
    except ValueError as error:
        need, do = "NAME, or NAME=WEIGHT with a number", "write it as module:function=0.5"
        raise ConfigError(f"--reward {option!r}", got=f"the weight {weight!r}", need=need, do=do) from error


def parse_kinds(option: str, names: Sequence[str], cls: type[T]) -> list[T]:
    """The rewards or gates of the class `cls` that `names` describe: functions, or tables of kinds as TOML.

    `option` is the name of the option. Raises: ConfigError for a table that is none, or with invalid settings.
    """
    from purerl.config.structure import from_dict
    from purerl.settings import in_section

    tables = [_read_table(option, name) if name.startswith("{") else name for name in names]
    with in_section(option, cls):
        return [from_dict(cls, table) for table in tables]  # pyright: ignore[reportArgumentType] - a string is short for a table


def _read_table(option: str, text: str) -> Mapping[str, Any]:
    try:
        return read_toml(f"table = {text}")["table"]
    except ValueError as error:
        do = f"""write it as {option} '{{kind = "format"}}'"""
        raise ConfigError(f"{option} {text!r}", got=str(error), need="a table in TOML", do=do) from error
